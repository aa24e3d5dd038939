"""The request Prepare: reserve, receive, and unpack what a task needs on its host."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from typing import TYPE_CHECKING, Dict, List, Mapping, Optional, Set, Tuple

from train.agent.files import contents, disk
from train.agent.files.contents import BLOCK_BYTES, unpack_block
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.gang.readiness import visible
from train.agent.host.facts import (
    Interpreter,
    Probe,
    find_executables,
    keras_backend,
    login_environment,
    memory_total,
)
from train.agent.host.jobs import JOB_NAME, holder_of, open_lock, queued_jobs, try_lock
from train.agent.host.ports import TaskPort, listen_for_links, reserve_task_port
from train.agent.host.processes import await_exit, end_leftovers, supervisor_of
from train.agent.protocol.channel import Channel, Periodic
from train.agent.protocol.cluster import parse_task
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import (
    Chunk,
    ContentsReceived,
    Gpu,
    Member,
    Prepare,
    Prepared,
    Refusal,
    Relay,
    to_dict,
)
from train.agent.supervisor.environment import HostEnvironment, create_host_environment, program_directories

if TYPE_CHECKING:
    from train.agent.peers.relay import RelayServer

CACHED_JOBS = 5
"""Pushed contents of this many newest jobs stay in the store, so that a repeat sends nothing again."""

STREAM_DEADLINE_S = 300.0  # without a byte
RELAYED_BYTES = 8 << 20
"""Contents of at least this size may come from another host."""

_REPORT_S = 0.5
_ENDING_S = 20.0  # a chief whose peers do not hang up waits for their link timeout
_PREPARING_S = 3.0
_PACKAGES = {"Rscript": "r-base-core", "R": "r-base-core"}  # of Debian and Ubuntu


class Reservation:
    """Resources that a host holds for a task between Prepare and Commit.

    Args:
        request: What was asked.
        host: Paths of the fleet on this host.

    Attributes:
        removes_directory: Whether `release` removes the task's directory.
    """

    def __init__(self, request: Prepare, host: HostPaths) -> None:
        self.request = request
        self.host = host
        self.paths: TaskPaths = host.task(request.job, request.slot)
        self.session = login_environment()
        self.interpreter = Interpreter("", {})
        self.gpus: List[Gpu] = []
        self.missing: List[str] = []  # of the modules that were asked for
        self.port: Optional[TaskPort] = None
        self.listener: Optional[socket.socket] = None
        self.relay: Optional[RelayServer] = None
        self.lock = -1
        self._held = contextlib.ExitStack()  # closes what a supervisor does not inherit
        self._locked = False
        self.removes_directory = False

    def lock_host(self) -> None:
        """Lock the host for this job, or refuse with the running job; end processes of a dead supervisor.

        Raises:
            RefusedError: the host runs another job, or another job is queued on it.
        """
        self.lock = self._open_lock(self.host.active)
        since = time.monotonic()
        while not try_lock(self.lock):
            _await_holder(self.host, time.monotonic() - since)
        queued = [] if self.request.join else queued_jobs(self.host)
        if queued:
            raise RefusedError(Refusal.BUSY, f"job {queued[0]} is queued on this host and starts now", job=queued[0])
        job, paths = _holder(self.host)
        if job:
            end_leftovers(paths)
        self._locked = True  # from now on this reservation clears the name of the task in the file
        os.ftruncate(self.lock, 0)
        os.pwrite(self.lock, f"{self.request.job}/{self.request.slot}".encode(), 0)

    def join_queue(self) -> None:
        """Lock the queue of the host until the job is committed; its supervisor locks the host when it is its turn.

        Raises:
            RefusedError: another job is being queued, or the queue changed since the client read it.
        """
        self.lock = self._open_lock(self.host.active)
        if not try_lock(self._open_lock(self.host.queue)):
            raise RefusedError(Refusal.BUSY, "another job is being queued on this host", "run the command again")
        last = queued_jobs(self.host)[-1:]
        if last and last != [self.request.after]:
            raise RefusedError(
                Refusal.BUSY, f"job {last[0]} was queued on this host in the meantime", "run the command again"
            )

    def _open_lock(self, path: str) -> int:
        disk.make_directory(self.host.root)
        lock = open_lock(path)
        self._held.callback(os.close, lock)
        return lock

    def reserve_ports(self) -> None:
        """Reserve the ports of the task and of the agent.

        Raises:
            RefusedError: there is none.
        """
        self.port = reserve_task_port(self.request.first_port)
        self._held.callback(self.port.release)
        self.listener = self._held.enter_context(listen_for_links(self.request.address))

    def member(self) -> Member:
        """Return the task as the others see it."""
        port = self.port.port if self.port else 0
        link = self.listener.getsockname()[1] if self.listener else 0
        return Member(self.request.slot, "", self.request.address, port, link)

    def host_environment(self, variables: Mapping[str, str]) -> HostEnvironment:
        """Return the host-specific environment of a task with these variables, and write its programs.

        Raises:
            OSError: they cannot be written.
        """
        python, gpus = self.interpreter.path, len(self.visible_gpus(variables))
        return create_host_environment(self.paths.programs, python, self.request.address, gpus)

    def visible_gpus(self, variables: Mapping[str, str]) -> List[str]:
        """Return the names of the GPUs that a task with these variables finds."""
        return visible([gpu.name for gpu in self.gpus], variables.get("CUDA_VISIBLE_DEVICES"))

    def hand_over(self) -> None:
        """Close everything, because a supervisor holds it now."""
        self._locked = self.removes_directory = False
        self.release()

    def release(self) -> None:
        """Release everything, and leave no files; repeated calls do nothing."""
        if self.removes_directory:
            self.removes_directory = False
            disk.remove_tree(self.paths.directory)
            with contextlib.suppress(OSError):  # holds another task
                os.rmdir(os.path.dirname(self.paths.directory))
        if self._locked:
            self._locked = False
            os.ftruncate(self.lock, 0)
        self.end_relay()
        self._held.close()

    def end_relay(self) -> None:
        """Stop passing contents on; repeated calls do nothing."""
        if self.relay is not None:
            self.relay.close()
            self.relay = None


def prepare(channel: Channel, host: HostPaths, request: Prepare) -> Reservation:
    """Answer Prepare, including Prepared.

    Raises:
        RefusedError: the host does not take the task; nothing is left of it.
        ClientGoneError: the client disconnected; nothing is left of it.
        OSError: probably because the disk is full; nothing is left of it.
    """
    _check(request)
    reservation = Reservation(request, host)
    try:
        if request.after and not request.dry_run:
            reservation.join_queue()
        elif not request.dry_run:
            reservation.lock_host()
        _reserve(reservation)
        if not request.dry_run:
            _receive_bundle(channel, reservation)
        channel.send(_prepared(reservation))
    except BaseException:
        reservation.release()
        raise
    return reservation


def _check(request: Prepare) -> None:
    for name in (request.job, request.slot, *filter(None, [request.after])):
        if not JOB_NAME.fullmatch(name):
            raise RefusedError(Refusal.REQUEST, f"{name!r} cannot be the name of a directory")
    try:
        parse_task(request.slot)
    except ValueError as error:
        raise RefusedError(Refusal.REQUEST, str(error)) from error
    contents.check_entries(request.entries)


def _holder(host: HostPaths) -> Tuple[str, TaskPaths]:
    """Return the job that holds or last held the lock; an empty name if there is none."""
    job, _, task = holder_of(host).partition("/")
    return job, host.task(job, task)


def _await_holder(host: HostPaths, waited_s: float) -> None:
    """Wait briefly for a job that is ending, or that was prepared by a client that may be gone."""
    job, paths = _holder(host)
    activity, patience_s = "running", 0.0
    if os.path.exists(paths.result):
        activity, patience_s = "ending", _ENDING_S
    elif not os.path.exists(paths.job):
        activity, patience_s = "being prepared", _PREPARING_S
    if waited_s >= patience_s:
        reason = f"job {job} is {activity} on this host" if job else "another job is being prepared on this host"
        raise RefusedError(Refusal.BUSY, reason, job=job)
    supervisor = supervisor_of(paths)
    if supervisor is None or not await_exit(supervisor, patience_s - waited_s):
        time.sleep(0.01)  # waiting for the lock in the kernel would have no deadline


def _reserve(reservation: Reservation) -> None:
    request = reservation.request
    probe = Probe(reservation.host.probe, reservation.session, reservation.host.hook)
    reservation.interpreter = probe.interpreter(request.python)
    python = reservation.interpreter.path
    _check_program(request.program, python, reservation.session)
    reservation.missing = probe.missing_modules(reservation.interpreter, request.imports, request.import_directories)
    reservation.gpus = probe.gpus()
    probe.save()
    reservation.reserve_ports()


def _check_program(program: str, python: str, session: Dict[str, str]) -> None:
    """Check that the program of a job exists, unless the bundle contains it."""
    if not program or ("/" in program and not os.path.isabs(program)):
        return
    search = os.pathsep.join([*program_directories(python), session.get("PATH") or os.defpath])
    if os.path.isabs(program):
        exists = os.access(program, os.X_OK) and os.path.isfile(program)
    else:
        exists = any(find_executables(program, search))
    if not exists:
        package = _PACKAGES.get(program, "")
        hint = f"install it on the host: sudo apt-get install -y {package}" if package else "install it on the host"
        raise RefusedError(Refusal.PROGRAM, f"{program} does not exist on this host", hint)


def _receive_bundle(channel: Channel, reservation: Reservation) -> None:
    """Receive the bundle's missing contents from the client, and unpack the bundle."""
    host, paths, entries = reservation.host, reservation.paths, reservation.request.entries
    is_joining = reservation.request.join
    if os.path.exists(paths.job) and not is_joining:
        raise RefusedError(Refusal.REQUEST, f"job {reservation.request.job} has run on this host already")
    is_kept = is_joining and os.path.exists(paths.job) and os.path.isdir(paths.source)
    if not is_kept:
        disk.remove_tree(paths.source if is_joining else paths.directory)
    if not reservation.request.after:
        discard_unused(host, contents.objects_of(entries))
    need = contents.missing(host.store, entries)
    needed, hint = contents.bytes_needed(entries, need), "delete ended jobs, or leave files out with .fleetignore"
    check_space(host.root, needed, "the job needs", hint, "fleet jobs --prune")
    disk.make_directory(host.store)
    if not os.path.exists(paths.job):
        reservation.removes_directory = True
    disk.make_directory(paths.directory)
    disk.write_atomic(paths.objects, "\n".join(sorted(contents.objects_of(entries))).encode())
    if need.size >= RELAYED_BYTES:
        from train.agent.peers.relay import RelayServer

        reservation.relay = RelayServer(listen_for_links(reservation.request.address))
        need = need._replace(port=reservation.relay.port)
    channel.send(need)
    if need.objects:
        sizes = {entry.sha256: entry.size for entry in entries}
        expected = [(digest, sizes[digest]) for digest in need.objects]
        receiver = contents.Receiver(host.store, expected)
        receive_contents(channel, receiver, reservation.relay)
    if not is_kept:
        _lay_out_source(reservation)
    for directory in (paths.checkpoints, paths.logs, paths.model):
        disk.make_directory(directory)


def receive_contents(channel: Channel, receiver: contents.Receiver, relay: Optional[RelayServer] = None) -> None:
    """Receive the contents that a NeedContents named, from the client or from another host.

    Args:
        channel: The connection to the client.
        receiver: What takes the contents.
        relay: What passes them on, if the client requests it.

    Raises:
        RefusedError: they are damaged, or not what was named.
        ClientGoneError: the client disconnected.
        OSError: they cannot be written.
    """
    try:
        while True:
            chunk = channel.receive(STREAM_DEADLINE_S)
            if isinstance(chunk, Relay) and relay is not None:
                from train.agent.peers.relay import fetch

                relay.start(chunk.secret, receiver)
                if not chunk.address:
                    continue
                report = Periodic(_REPORT_S, lambda: channel.send(ContentsReceived(receiver.received)))
                if fetch(chunk, receiver, report):
                    receiver.finish()
                    return
                channel.send(receiver.need())
                continue
            if not isinstance(chunk, Chunk):
                raise RefusedError(Refusal.REQUEST, "something else came in the middle of the contents")
            if chunk.payload == 0:
                receiver.finish()
                return
            if not 0 < chunk.payload <= BLOCK_BYTES:
                raise RefusedError(Refusal.BUNDLE, "a block of contents is too large")
            data = b"".join(channel.payload(chunk.payload, STREAM_DEADLINE_S))
            receiver.feed(unpack_block(data, chunk.size))
    finally:
        receiver.close()


def check_space(directory: str, needed: int, user: str, hint: str, next_step: str = "") -> None:
    """Check that a disk has room for `needed` bytes, in addition to what is reserved for logs.

    Args:
        directory: On that disk.
        needed: Bytes.
        user: What needs them, with the verb.
        hint: What to change.
        next_step: Command that frees space.

    Raises:
        RefusedError: it has not.
    """
    free, _ = disk.free_space(directory)
    if needed + disk.DISK_RESERVE > free:
        sizes = [disk.readable_size(count) for count in (free, needed + disk.DISK_RESERVE)]
        reason = f"no space left on this host: {directory} has {sizes[0]} free, and {user} {sizes[1]}"
        raise RefusedError(Refusal.DISK, reason, hint, next_step=next_step)


def _lay_out_source(reservation: Reservation) -> None:
    """Create the task's working directory, and record what was pushed into it.

    The record is written last: a file that changed after it was changed by the task.
    """
    request, paths = reservation.request, reservation.paths
    if request.directory:
        os.symlink(request.directory, paths.source)
    else:
        contents.materialise(reservation.host.store, request.entries, paths.source)
    values = {"entries": to_dict(request.entries)}
    disk.write_atomic(paths.bundle, json.dumps(values).encode("utf-8", "surrogateescape"))


def _changed_at(path: str) -> float:
    """Return the time of the last change of a file or directory; 0 if `fleet jobs --prune` has just removed it."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return 0.0


def _committed_jobs(host: HostPaths) -> List[str]:
    """Return the directories of committed jobs, newest first; remove reservations that were never committed."""
    changed: Dict[str, float] = {}
    for name in disk.list_names(host.jobs):
        path = os.path.join(host.jobs, name)
        if any(os.path.exists(host.task(name, task).job) for task in disk.list_names(path)):
            changed[path] = _changed_at(path)
        else:
            disk.remove_tree(path)
    return sorted(changed, key=lambda path: changed[path], reverse=True)


def discard_unused(host: HostPaths, needed: Set[str], *, thorough: bool = False) -> int:
    """Remove what can be created again: uncommitted reservations, and contents that only older jobs use.

    Jobs stay, whatever their age and number. An old job's working directory keeps its own copies and hard links, so
    it does not need the store. The caller must hold the host's lock. While a job is being queued, nothing is removed.

    Args:
        host: Paths of the fleet on this host.
        needed: Hashes of contents that stay in any case.
        thorough: Look for contents that no job names even if there are few jobs.

    Returns:
        The bytes that this frees.
    """
    queue = open_lock(host.queue)
    try:
        return _discard_unused(host, needed, thorough=thorough) if try_lock(queue) else 0
    finally:
        os.close(queue)


def _discard_unused(host: HostPaths, needed: Set[str], *, thorough: bool) -> int:
    jobs = _committed_jobs(host)
    if len(jobs) <= CACHED_JOBS and not thorough:
        return 0
    keep = set(needed)
    for path in jobs[:CACHED_JOBS]:
        for task in disk.list_names(path):
            keep.update(disk.read_text(TaskPaths(os.path.join(path, task)).objects).split())
    return contents.prune_objects(host.store, keep)


def lock_idle_host(host: HostPaths) -> Tuple[int, str]:
    """Return a descriptor of the fleet's lock on this host, and the job that holds it; empty: it was free."""
    lock = open_lock(host.active)
    return lock, "" if try_lock(lock) else _holder(host)[0]


def _prepared(reservation: Reservation) -> Prepared:
    free, _ = disk.free_space(reservation.host.root)
    return Prepared(
        member=reservation.member(),
        python=reservation.interpreter.path,
        versions=reservation.interpreter.versions,
        gpus=reservation.gpus,
        disk_free=free,
        memory_total=memory_total(),
        hostname=os.uname().nodename,
        workdir=reservation.paths.source,
        machine=os.uname().machine,
        missing=reservation.missing,
        keras_backend=keras_backend(reservation.session),
    )
