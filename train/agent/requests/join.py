"""A host joins a running job: one that replaces a lost one, with what another host sends, or one that was restarted.

A client fetches what a replacement needs by GetJoinInfo and FetchContents. After a restart, the startup script of the
instance runs the program that `train.agent.files.boot` has stored, which calls `rejoin_jobs`.
"""

from __future__ import annotations

import os
import socket
import time
from typing import Dict

from train.agent.files.boot import mark_job
from train.agent.files.contents import BLOCK_BYTES, join_blocks, pack_block, read_contents
from train.agent.files.disk import read_json
from train.agent.files.journal import read_entries, read_job
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.host.facts import Probe
from train.agent.host.jobs import find_task, list_tasks
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Chunk, Commit, FetchContents, GetJoinInfo, JoinInfo, Prepare, Refusal, build

_ANSWER_DEADLINE_S = 5.0


def get_join_info(_: Channel, host: HostPaths, request: GetJoinInfo) -> JoinInfo:
    """Answer GetJoinInfo.

    Raises:
        RefusedError: the job does not run here.
    """
    paths = find_task(host, request.job, request.slot)
    job, entries = read_job(paths) or {}, read_entries(paths)
    connection = control.connect(paths.control)
    if connection is None or entries is None:
        raise RefusedError(
            Refusal.REQUEST, f"job {request.job} does not run on this host any more", next_step="fleet status"
        )
    with connection:
        control.send_record(connection, request)
        records = control.receive_all(connection, _ANSWER_DEADLINE_S)
        record = next((record for record in records if isinstance(record, Commit)), None)
    if record is None:
        raise RefusedError(Refusal.REQUEST, f"job {request.job} has just ended", next_step="fleet status")
    python = str(job.get("python", ""))
    return JoinInfo(str(job.get("fleet", "")), entries, record, python)


def send_contents(channel: Channel, host: HostPaths, request: FetchContents) -> Chunk:
    """Answer FetchContents.

    Raises:
        RefusedError: the store does not have one of the contents.
    """
    for block in join_blocks(read_contents(host.store, request.objects, BLOCK_BYTES)):
        data, size = pack_block(block)
        channel.send(Chunk(len(data), size), data)
    return Chunk(0)


DRIVER_DEADLINE_S = 600.0
PEERS_DEADLINE_S = 120.0
_PAUSE_S = 2.0
_CONNECT_S = 2.0


def rejoin_jobs(root: str) -> None:
    """Rejoin the unfinished jobs of all slots of the fleet in `root`, each in a process of its own."""
    os.umask(0o077)
    for host in HostPaths(root).slots():
        for paths in list_tasks(host):
            if _is_unfinished(paths) and os.fork() == 0:
                try:
                    os.setsid()
                    mark_job()  # it may wait for longer than an idle timeout
                    _rejoin(host, paths)
                except Exception as error:  # noqa: BLE001 - no client is connected that could report it
                    _note(paths, f"this host was restarted and cannot rejoin the job: {_describe(error)}")
                finally:
                    os._exit(0)


def _is_unfinished(paths: TaskPaths) -> bool:
    """Return whether a task ran when its host ended; queued jobs have not begun."""
    present = all(map(os.path.exists, (paths.boot, paths.job, paths.bundle)))
    return present and not os.path.exists(paths.result) and not os.path.exists(paths.queued)


def _describe(error: Exception) -> str:
    return error.record.reason if isinstance(error, RefusedError) else str(error) or type(error).__name__


def _note(paths: TaskPaths, text: str) -> None:
    descriptor = os.open(paths.agent_log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(descriptor, f"{text}\n".encode("utf-8", "surrogateescape"))
    finally:
        os.close(descriptor)


def _rejoin(host: HostPaths, paths: TaskPaths) -> None:
    """Start a supervisor that joins the running job in the slot that this host had.

    Raises:
        RefusedError: another job runs here, or the host cannot run this one any more.
        ClientGoneError: contents of the job are missing.
        OSError: no other host runs the job, GPUs are missing, or the disk is full.
    """
    from train.agent.requests.commit import commit
    from train.agent.requests.prepare import prepare

    stored, values = read_json(paths.boot) or {}, read_job(paths) or {}
    os.environ.clear()
    os.environ.update(stored["session"])
    now = {"members": stored.get("members", values["members"]), "secret": stored["secret"]}
    request: Commit = build(Commit, {**values, **now, "secret_env": {}, "join": True})
    members = {member.slot: member for member in request.members}
    mine = members[request.slot]
    _await_gpus(host, stored["session"], int(stored["gpus"]))
    _await_peers(request)
    nothing = os.open(os.devnull, os.O_RDWR)
    preparation = Prepare(
        job=request.job,
        fleet=str(values.get("fleet", "")),
        slot=request.slot,
        entries=read_entries(paths) or [],
        address=mine.address,
        python=str(values.get("python", "")),
        join=True,
    )
    reservation = prepare(Channel(nothing, os.dup(nothing)), host, preparation)
    try:
        members[request.slot] = reservation.member()._replace(task=mine.task)
        commit(reservation, request._replace(members=[*members.values()]), int(stored["umask"]))
    except BaseException:
        reservation.release()
        raise


def _await_gpus(host: HostPaths, session: Dict[str, str], expected: int) -> None:
    """Wait until the driver lists the GPUs that this host had: it may load late.

    Raises:
        OSError: it lists fewer after ten minutes.
    """
    deadline = time.monotonic() + DRIVER_DEADLINE_S
    while expected:
        probe = Probe(host.probe, session, host.hook)
        probe.forget("gpus")
        count = len(probe.gpus())
        if count >= expected:
            return
        if time.monotonic() > deadline:
            raise OSError(f"the driver lists {count} of {expected} GPUs")
        time.sleep(_PAUSE_S)


def _await_peers(request: Commit) -> None:
    """Wait until the agent of another member listens.

    If none does, all hosts were restarted, and no host leads the job any more.

    Raises:
        OSError: none listens within two minutes.
    """
    others = [member for member in request.members if member.slot != request.slot]
    deadline = time.monotonic() + PEERS_DEADLINE_S
    while not any(_listens(member.address, member.link_port) for member in others):
        if time.monotonic() > deadline:
            raise OSError("no other host runs it any more")
        time.sleep(_PAUSE_S)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), _CONNECT_S).close()
    except OSError:
        return False
    return True
