"""Wait until no earlier job holds this host, and lock it for a queued job: in processes that wait in the kernel."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from typing import Callable

from train.agent.files.disk import free_space, remove_file, write_atomic
from train.agent.files.journal import read_job, write_job
from train.agent.gang import reconciler
from train.agent.host import control
from train.agent.host.jobs import holder_of, unlock, wait_for_lock
from train.agent.host.processes import end_leftovers
from train.agent.host.spawn import fork_helper
from train.agent.protocol.records import Reason
from train.agent.supervisor.environment import Start


class HostQueue:
    """The place of a job in the queue of its host.

    Two steps, because all hosts begin together: a job whose leader still waits for another host does not lock this
    one, so that an earlier job can come back to it after the loss of its host.

    Args:
        start: What was prepared and committed.
        feed: Takes the event of each step.
        holds_port: Whether this supervisor holds the port of the first attempt, because it is the first one.
    """

    def __init__(self, start: Start, feed: Callable[[reconciler.SlotEvent], None], *, holds_port: bool) -> None:
        self._start = start
        self._holds_port = holds_port
        self._feed = feed
        self._pid = 0
        self._claims = 0  # attempt for which the host must be locked; 0: the job waits for its turn

    def await_turn(self) -> None:
        """Wait for the end of all earlier jobs; feed Unqueued."""
        self._pid = self._fork()

    def claim(self, attempt: int) -> None:
        """Lock the host as soon as it is free; feed Claimed."""
        self._claims = attempt
        self._pid = self._fork()

    def child_exited(self, pid: int, status: int) -> None:
        """Handle the end of a child process of the supervisor."""
        if pid != self._pid:
            return
        self._pid = 0
        if status != 0:
            reason = Reason(f"the queue of {self._start.commit.slot} cannot be read")
            self._feed(reconciler.Failed(self._claims or self._start.commit.attempt, reason))
        elif not self._claims:
            self._feed(reconciler.Unqueued())
        else:
            is_first = self._holds_port and self._claims == self._start.commit.attempt
            port = self._start.port.port if is_first else 0
            free, _ = free_space(self._start.paths.directory)
            self._feed(reconciler.Claimed(self._claims, port, self._start.facts._replace(disk_free=free)))

    def _fork(self) -> int:
        return fork_helper(partial(_claim if self._claims else _await_turn, self._start), {self._start.lock})

    def close(self) -> None:
        """Stop waiting."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
        remove_file(self._start.paths.queued)


def _await_turn(start: Start) -> None:
    """Wait for the end of the job before this one, and until no job holds the host."""
    before = start.host.task(start.commit.after, start.commit.slot)
    while (connection := control.connect(before.control)) is not None:
        with connection, contextlib.suppress(OSError):
            while connection.recv(1):  # nothing comes: this ends with its supervisor, which may be replaced
                continue
    holder = holder_of(start.host).partition("/")[0]
    if holder and os.path.exists(start.paths.queued):  # that job was stopped while it waited for this one
        write_atomic(start.paths.queued, holder.encode())
    wait_for_lock(start.lock)
    unlock(start.lock)


def _claim(start: Start) -> None:
    """Lock the host, end processes of a dead supervisor, and record the start of the job."""
    wait_for_lock(start.lock)
    job, _, slot = holder_of(start.host).partition("/")
    if job:
        end_leftovers(start.host.task(job, slot))
    os.ftruncate(start.lock, 0)
    os.pwrite(start.lock, f"{start.commit.job}/{start.commit.slot}".encode(), 0)
    values = read_job(start.paths)
    if values is not None:
        write_job(start.paths, {**values, "queued_at": values.get("started_at"), "started_at": start.now()})
    remove_file(start.paths.queued)
