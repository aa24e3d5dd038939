"""The requests ListJobs, ListFiles, ReadFiles, and PruneJobs: list, send, and delete results."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from typing import Optional, Union

from train.agent.checkpoints.resumption import held_checkpoint
from train.agent.files.disk import free_space, read_json, remove_tree
from train.agent.files.journal import read_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host.facts import list_packages
from train.agent.host.jobs import JOB_NAME, find_task, newest_tasks, queued_jobs, report_task
from train.agent.host.processes import end_leftovers
from train.agent.protocol import records
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import FilePart, Refusal
from train.agent.requests.prepare import HostLock, discard_unused
from train.agent.requests.results import Results, disk_usage

_SLOT = re.compile(r"slot-(0|[1-9][0-9]{0,5})")
_MOST = 1_000_000
_BEAT_S = 2.0
_PIECE = 1 << 18


class Heartbeat:
    """Send heartbeats during long work, so that the client does not time out."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._last = time.monotonic()

    def __call__(self) -> None:
        """Send a heartbeat if the last one is old enough."""
        if time.monotonic() - self._last >= _BEAT_S:
            self._channel.send(records.Beat(time.time()))
            self._last = time.monotonic()


def list_jobs(channel: Channel, host: HostPaths, request: records.ListJobs) -> records.End:
    """Answer ListJobs.

    Raises:
        ClientGoneError: the client disconnected.
    """
    heartbeat = Heartbeat(channel)
    jobs = []
    for host_paths in HostPaths(host.root).slots():
        directory = host_paths.root[len(host.root) + 1 :]
        for paths in newest_tasks(host_paths, _MOST, request.jobs):
            jobs.append((os.stat(paths.job).st_mtime, directory, paths))
    for _, directory, paths in sorted(jobs, key=lambda row: row[0], reverse=True):
        heartbeat()
        areas, fingerprint = Results(paths, host.root, heartbeat).use()
        size = disk_usage(paths.directory, heartbeat)
        slot = os.path.basename(paths.directory)
        stored = (paths.directory, size, fingerprint, areas, report_task(paths), held_checkpoint(paths))
        channel.send(records.StoredJob(_job_of(paths), slot, directory, *stored))
    channel.send(records.DiskSpace(host.root, *free_space(host.root)))
    return records.End()


def _job_of(paths: TaskPaths) -> str:
    return os.path.basename(os.path.dirname(paths.directory))


def _task(host: HostPaths, request: Union[records.ListFiles, records.ReadFiles, records.GetBundle]) -> TaskPaths:
    if request.directory and not _SLOT.fullmatch(request.directory):
        raise RefusedError(Refusal.REQUEST, f"{request.directory!r} is not the directory of a slot")
    host_paths = HostPaths(os.path.join(host.root, request.directory)) if request.directory else host
    return find_task(host_paths, request.job, request.slot)


def list_files(channel: Channel, host: HostPaths, request: records.ListFiles) -> records.FilesListed:
    """Answer ListFiles.

    Raises:
        RefusedError: the task does not exist.
        ClientGoneError: the client disconnected.
    """
    results = Results(_task(host, request), host.root, Heartbeat(channel))
    fingerprint = hashlib.sha256()
    for entry in results.entries(fingerprint, request.areas or tuple(records.Area), request.names):
        channel.send(entry)
    nothing = fingerprint.digest() == hashlib.sha256().digest()
    return records.FilesListed("" if nothing else fingerprint.hexdigest(), results.notes)


def read_files(channel: Channel, host: HostPaths, request: records.ReadFiles) -> None:
    """Answer ReadFiles.

    Raises:
        RefusedError: the task does not exist.
        ClientGoneError: the client disconnected.
    """
    results = Results(_task(host, request), host.root)
    for part in request.parts:
        channel.send(records.FileEnd(_send_part(channel, results.path_of(part.area, part.path), part)))


def _send_part(channel: Channel, path: str, part: FilePart) -> str:
    """Send a part of a file; return why it is incomplete, empty if it is complete."""
    fd: Optional[int] = None
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        offset = part.offset
        while offset < part.end:
            data = os.pread(fd, min(_PIECE, part.end - offset), offset)
            if not data:
                return "it became shorter"
            channel.send(records.Chunk(len(data)), data)
            offset += len(data)
    except OSError as error:
        return error.strerror or str(error)
    finally:
        if fd is not None:
            os.close(fd)
    return ""


def get_bundle(_: Channel, host: HostPaths, request: records.GetBundle) -> records.BundleInfo:
    """Answer GetBundle.

    Raises:
        RefusedError: the task does not exist, or what was uploaded is unknown.
    """
    paths = _task(host, request)
    job, bundle = read_job(paths), read_json(paths.bundle)
    if job is None or bundle is None:
        raise RefusedError(Refusal.REQUEST, f"the files of job {request.job} are unknown on this host")
    return records.BundleInfo(
        [records.build(records.Entry, entry) for entry in bundle["entries"]],
        sorted(job.get("env") or {}),
        str(job.get("requirements", "")),
        str(job.get("constraints", "")),
        list_packages(str(job.get("python") or ""), dict(os.environ)),
    )


def prune_jobs(channel: Channel, host: HostPaths, request: records.PruneJobs) -> records.JobsPruned:
    """Answer PruneJobs.

    Raises:
        ClientGoneError: the client disconnected.
    """
    heartbeat = Heartbeat(channel)
    gone, freed = set(), 0
    with contextlib.ExitStack() as stack:
        existing = [host_paths for host_paths in HostPaths(host.root).slots() if os.path.isdir(host_paths.jobs)]
        locks = [(host_paths, stack.enter_context(HostLock(host_paths))) for host_paths in existing]
        busy = dict.fromkeys((lock.busy_with for _, lock in locks), "it is running")
        for host_paths in existing:
            busy.update(dict.fromkeys(queued_jobs(host_paths), "it is queued"))
        for host_paths, lock in locks:
            for job in request.jobs:
                directory = os.path.join(host_paths.jobs, job)
                if JOB_NAME.fullmatch(job) and job not in busy and os.path.isdir(directory):
                    freed += _remove(directory, heartbeat)
                    gone.add(job)
            if lock.held:
                freed += discard_unused(host_paths, set(), thorough=True)
    return records.JobsPruned(sorted(gone), freed, {job: busy[job] for job in request.jobs if job in busy})


def _remove(directory: str, heartbeat: Heartbeat) -> int:
    """Delete a job; return the bytes that this frees."""
    for task in os.listdir(directory):
        end_leftovers(TaskPaths(os.path.join(directory, task)))
    size = disk_usage(directory, heartbeat)
    remove_tree(directory)
    return size
