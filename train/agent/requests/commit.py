"""The request Commit: fork the supervisor, with everything that was reserved."""

from __future__ import annotations

import os
import select
import signal
import time
from typing import NoReturn, Optional, Set

from train.agent.checkpoints.resumption import copy_checkpoint
from train.agent.checkpoints.store import ReplicaError
from train.agent.files.disk import free_space, read_text, remove_file, write_atomic
from train.agent.files.journal import write_job
from train.agent.gang.readiness import ReadinessFacts
from train.agent.gang.states import DesiredState
from train.agent.host import control
from train.agent.host.spawn import close_descriptors, fork_released
from train.agent.protocol.cluster import chief_of, cluster_spec
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Commit, Reason, Refusal, Resumption, to_dict
from train.agent.protocol.wording import signal_name
from train.agent.requests.prepare import Reservation
from train.agent.supervisor.environment import Start
from train.agent.supervisor.supervisor import Supervisor
from train.agent.supervisor.watchdog import Watchdog, watch

_STARTED = b"s"
_START_DEADLINE_S = 20.0
# Of the link timeout: a supervisor that is stopped for longer is replaced before the others give it up.
_STOPPED_FRACTION = 0.5


def commit(reservation: Reservation, request: Commit, umask: int) -> int:
    """Start the supervisor; return its process ID once the task waits at its gate.

    Raises:
        RefusedError: the request does not fit what was prepared, or the supervisor did not start.
        OSError: probably because the disk is full.
    """
    _check(reservation, request)
    if request.resume is not None and not request.join:
        _copy_checkpoint(reservation, request.resume)
    start = _lay_out(reservation, request, umask)
    reads, writes = os.pipe()
    pid = fork_released(start.port.release)
    if pid == 0:
        _supervise(start, writes)
    os.close(writes)
    start.control.close()
    try:
        _await_start(reservation, request, pid, reads)
    finally:
        os.close(reads)
    reservation.hand_over()
    return pid


def _check(reservation: Reservation, request: Commit) -> None:
    prepared = reservation.request
    if prepared.dry_run or (prepared.job, prepared.slot) != (request.job, request.slot):
        raise RefusedError(Refusal.REQUEST, f"{request.slot} of job {request.job} is not prepared on this host")
    if prepared.after != request.after:
        raise RefusedError(Refusal.REQUEST, f"job {request.job} is not prepared for its place in the queue")
    if reservation.member() not in [member._replace(task="") for member in request.members]:
        raise RefusedError(Refusal.REQUEST, f"the job's members do not have {request.slot} as it was prepared")
    replication = request.replication
    if request.resume is not None and (replication.mib_s <= 0 or "://" in replication.directory):
        raise RefusedError(Refusal.REQUEST, "a job continues from a checkpoint only if checkpoints are replicated")
    if not request.command or request.attempt < 1:
        raise RefusedError(Refusal.REQUEST, "a job has a command, and attempts from 1 on")
    try:
        members = [member for member in request.members if member.task]
        if request.join:  # another lost member may have had a port that is ours now; the next attempt has new ones
            members = [member._replace(port=number) for number, member in enumerate(members, 1)]
        cluster_spec(members)
        chief_of(members)
        bytes.fromhex(request.secret)
    except ValueError as error:
        raise RefusedError(Refusal.REQUEST, str(error)) from error


def _copy_checkpoint(reservation: Reservation, resume: Resumption) -> None:
    try:
        copy_checkpoint(reservation.host, resume, reservation.paths)
    except ReplicaError as error:
        raise RefusedError(Refusal.DISK, str(error)) from error


def _lay_out(reservation: Reservation, request: Commit, umask: int) -> Start:
    """Record the commit without its secrets, and open what the supervisor needs."""
    paths = reservation.paths
    values = to_dict(request._replace(secret="", secret_env={}))
    del values["secret"], values["secret_env"]
    values.update(fleet=reservation.request.fleet, started_at=time.time() + request.clock_correction_s)
    values.update(python=reservation.interpreter.path, versions=reservation.interpreter.versions)
    remove_file(paths.control)  # of a supervisor that died with its host
    if request.join:
        remove_file(paths.result)
    listener = control.listen(paths.control)
    if request.after:
        write_atomic(paths.queued, request.after.encode())
    write_job(paths, values)
    if reservation.port is None or reservation.listener is None:
        raise RefusedError(Refusal.FAULT, "the reservation holds no ports")
    variables = {**reservation.session, **request.env, **request.secret_env}
    free, _ = free_space(paths.directory)
    gpus, machine = reservation.visible_gpus(variables), os.uname().machine
    return Start(
        commit=request,
        fleet=reservation.request.fleet,
        paths=paths,
        session=reservation.session,
        umask=umask,
        facts=ReadinessFacts(reservation.interpreter.versions, gpus, free, machine=machine),
        port=reservation.port,
        listener=reservation.listener,
        control=listener,
        hook=reservation.host.hook if reservation.interpreter.runs_hook else "",
        host_environment=reservation.host_environment(variables),
        host=reservation.host,
        lock=reservation.lock,
    )


def _supervise(start: Start, writes: int) -> NoReturn:
    try:
        os.setsid()
        os.chdir("/")
        keep = {start.lock, writes, start.control.fileno(), start.listener.fileno(), *start.port.descriptors()}
        _close_others(keep, start.paths.agent_log)

        def supervise(watchdog: Watchdog, last: Optional[DesiredState], reason: Reason) -> None:
            supervisor = Supervisor(start, watchdog, last, reason)
            supervisor.begin()
            if last is None:  # nothing waits for the start of a replacement
                os.write(writes, _STARTED)
                os.close(writes)
            supervisor.run()

        stopped_s = _STOPPED_FRACTION * start.commit.link_timeout_s
        watch(start.paths, start.commit.slot, stopped_s, supervise, start.port.release)
    except BaseException:  # noqa: BLE001 - report the error of a process without a parent that could
        import traceback

        os.write(2, traceback.format_exc().encode("utf-8", "backslashreplace"))
    finally:
        os._exit(0)


def _close_others(keep: Set[int], log: str) -> None:
    """Detach from the connection, so that the client may disconnect."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    words = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(nothing, 0)
    os.dup2(words, 1)
    os.dup2(words, 2)
    close_descriptors(keep)


def _await_start(reservation: Reservation, request: Commit, pid: int, reads: int) -> None:
    poll = select.poll()
    poll.register(reads, select.POLLIN)
    has_reported = bool(poll.poll(_START_DEADLINE_S * 1000))
    if has_reported and os.read(reads, 1) == _STARTED:
        return
    if not has_reported:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    reason = start_failure(status, read_text(reservation.paths.agent_log), in_time=has_reported)
    raise RefusedError(Refusal.FAULT, f"the supervisor of {request.slot} did not start: {reason}")


def start_failure(status: int, log: str, *, in_time: bool) -> str:
    """Return why a supervisor did not start.

    Args:
        status: How its watchdog ended, as waitpid(2) returns it.
        log: What both wrote. If the watchdog was killed, that explains nothing: the supervisor fails because of it.
        in_time: Whether the watchdog ended before the deadline.
    """
    if not in_time:
        return f"it did not report within {_START_DEADLINE_S:.0f} s"
    if os.WIFSIGNALED(status):
        return f"its watchdog was killed by {signal_name(os.WTERMSIG(status))}"
    lines = log.strip().splitlines()
    return lines[-1] if lines else f"its watchdog exited with code {os.WEXITSTATUS(status)}"
