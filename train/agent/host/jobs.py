"""Find, list, and report the jobs of this host, and lock it for one of them."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import time
from typing import TYPE_CHECKING, Any, Dict, Iterable, List, Optional, Sequence, Type, TypeVar

from train.agent.files.disk import list_names, read_text, size_of
from train.agent.files.journal import last_attempt, last_progress, read_job, read_result, states
from train.agent.files.paths import HostPaths, TaskPaths
from train.agent.host import control
from train.agent.protocol import records
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import JobReport, JobResult, Outcome, Phase, Policy, ReasonKind, Refusal, build

if TYPE_CHECKING:
    T = TypeVar("T")

JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

MARKS = "/run/fleet/jobs"
"""Directory of the startup script of an instance (provision/gce/api/startup.sh), which does not power off as idle
while there is a mark of a job in it."""
_ANSWER_DEADLINE_S = 2.0
_ALL = 1_000_000
_EMPTY: Dict[str, Any] = {"job": "", "fleet": "", "slot": "", "started_at": 0.0, "command": [], "members": []}


def find_task(host: HostPaths, job: str, slot: str) -> TaskPaths:
    """Return the paths of the task that was committed in `slot` of this host.

    Raises:
        RefusedError: there is none of that name.
    """
    paths = host.task(job, slot)
    plain = all(name and "/" not in name and name not in (".", "..") for name in (job, slot))
    if not plain or read_job(paths) is None:
        raise RefusedError(Refusal.REQUEST, f"{slot} of job {job} is not on this host", next_step="fleet status")
    return paths


def lost_result(paths: TaskPaths, job: str, attempt: int) -> JobResult:
    """Return the result of a job whose supervisor is gone without having written one."""
    attempt = max(1, attempt)
    history = states(paths, attempt)
    task = history[-1].task if history else os.path.basename(paths.directory)
    lines = read_text(paths.agent_log).strip().splitlines()
    reason, kind = f"the agent that looked after {task} is gone without a word", ReasonKind.OTHER
    if lines:
        reason = f"the agent that looked after {task} broke off: {lines[-1]}"
        is_full = any(os.strerror(number) in lines[-1] for number in (errno.ENOSPC, errno.EDQUOT))
        kind = ReasonKind.DISK_FULL if is_full else kind
    at = max((_changed(path) for path in (paths.records(attempt), paths.log(attempt))), default=0.0)
    return JobResult(job, attempt, Outcome.LOST, at, task, reason, reason_kind=kind)


def _changed(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def list_tasks(host: HostPaths, jobs: Sequence[str] = ()) -> List[TaskPaths]:
    """Return the tasks of jobs on this host, committed or not; without names, those of all jobs."""
    names = [job for job in jobs if JOB_NAME.fullmatch(job)] if jobs else list_names(host.jobs)
    return [host.task(job, task) for job in names for task in list_names(os.path.join(host.jobs, job))]


def newest_tasks(host: HostPaths, limit: int, jobs: Sequence[str] = ()) -> List[TaskPaths]:
    """Return tasks that were committed on this host, newest first; if jobs are given, only theirs."""
    return _newest_first(list_tasks(host, jobs))[: max(0, limit)]


def _newest_first(tasks: Iterable[TaskPaths]) -> List[TaskPaths]:
    """Return those tasks that were committed, in order."""
    committed = [(_changed(paths.job), paths) for paths in tasks]
    return [paths for at, paths in sorted(committed, reverse=True) if at]


def is_queued(paths: TaskPaths) -> bool:
    """Return True if a job waits for an earlier one, or did so when its host restarted."""
    return os.path.exists(paths.queued) and not os.path.exists(paths.result)


def queued_jobs(host: HostPaths) -> List[str]:
    """Return the jobs that wait for earlier ones on this host, in the order in which they start."""
    queued = reversed(_newest_first(filter(is_queued, list_tasks(host))))
    return [os.path.basename(os.path.dirname(paths.directory)) for paths in queued if _has_supervisor(paths)]


def _order(paths: TaskPaths) -> int:
    if os.path.exists(paths.result):
        return 1  # also of a job that was stopped while it was queued
    return 2 if is_queued(paths) else 0 if _has_supervisor(paths) else 1


def _has_supervisor(paths: TaskPaths) -> bool:
    connection = control.connect(paths.control)
    if connection is not None:
        connection.close()
    return connection is not None


def holder_of(host: HostPaths) -> str:
    """Return the job that holds the host, or held it last, and its slot: ``JOB/SLOT``; empty if there is none."""
    job, _, slot = read_text(host.active).partition("/")
    return f"{job}/{slot}" if JOB_NAME.fullmatch(job) and JOB_NAME.fullmatch(slot) else ""


def report_jobs(channel: Channel, host: HostPaths, request: records.Inspect) -> records.End:
    """Answer Inspect with the reports of the newest jobs: the running one first, queued ones last.

    Raises:
        ClientGoneError: the client disconnected.
    """
    tasks = sorted(newest_tasks(host, _ALL), key=_order)
    for paths in tasks[: max(0, request.limit)]:
        report = report_task(paths)
        if report is not None:
            channel.send(report)
    return records.End()


def read_clock(channel: Channel, host: HostPaths, request: records.ReadClock) -> records.ClockTime:  # noqa: ARG001
    """Answer ReadClock with the time of this host."""
    return records.ClockTime(time.time())


def report_task(paths: TaskPaths) -> Optional[JobReport]:
    """Return the report of a task, or None if its commit cannot be read."""
    job = read_job(paths)
    if job is None:
        return None
    attempt = last_attempt(paths)
    live = control.query(paths.control, _ANSWER_DEADLINE_S)
    result = read_result(paths)
    if result is None and live is None:
        result = lost_result(paths, str(job.get("job", "")), attempt)
    history = states(paths, attempt)
    slot, policy = str(job.get("slot", "")), build(Policy, job.get("policy") or {})
    newest = history[-1] if history else None
    tasks = [member.task for member in members_of(job) if member.slot == slot]
    is_open = live is not None and result is None
    report: JobReport = build(
        JobReport,
        {
            **_EMPTY,
            **job,
            "task": newest.task if newest else "".join(tasks),
            "attempt": attempt,
            "phase": (newest.phase if newest else Phase.WAITING).value,
            "alive": live is not None,
            "log_size": size_of(paths.log(attempt)),
            "attempts": policy.max_attempts,
            "max_workers": policy.max_workers or None,
            "queued_after": read_text(paths.queued) if is_open else "",
        },
    )
    return report._replace(
        exit=newest.exit if newest else None,
        listened=newest.listened if newest else None,
        result=result,
        progress=_newest(records.Progress, live) if live is not None else last_progress(paths, attempt),
        usage=_newest(records.Usage, live or []),
    )


def members_of(job: Dict[str, Any]) -> List[records.Member]:
    """Return the members of a stored commit."""
    given = job.get("members", [])
    return [records.Member(*(member.get(field) for field in records.Member._fields)) for member in given]


def _newest(kind: Type[T], given: List[records.Record]) -> Optional[T]:
    return next((record for record in reversed(given) if isinstance(record, kind)), None)


# --- the lock of the host -------------------------------------------------------------------------------------------


def open_lock(path: str) -> int:
    """Return a file descriptor of the lock at `path`, which is not taken yet.

    Raises:
        OSError: the file cannot be created.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def wait_for_lock(lock: int) -> None:
    """Take a lock as `try_lock` does, as soon as no other process holds it."""
    fcntl.flock(lock, fcntl.LOCK_EX)


def unlock(lock: int) -> None:
    """Release a lock for all copies of its descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)


def try_lock(lock: int) -> bool:
    """Take a lock until all copies of its descriptor are closed; return False if another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def job_mark() -> str:
    """Return the path of the file that shows the job of this process; the script deletes it after the process."""
    return os.path.join(MARKS, str(os.getpid()))


def mark_job() -> None:
    """Create that file, if this host has such a script."""
    with contextlib.suppress(OSError):
        os.close(os.open(job_mark(), os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o644))


def has_job() -> bool:
    """Return whether a job holds this host."""
    return any(os.path.exists(f"/proc/{name}") for name in list_names(MARKS) if name.isdigit())
