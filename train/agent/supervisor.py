"""Looks after one task from Commit to the end of its job, whether or not anybody is connected."""

import json
import os
import signal
import socket
import time
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence

from train.agent.control import ControlServer
from train.agent.disk import remove_file, write_atomic
from train.agent.environment import task_environment
from train.agent.gate import Facts
from train.agent.journal import Journal, write_result
from train.agent.loop import READ, Loop
from train.agent.paths import TaskPaths
from train.agent.ports import TaskPort
from train.agent.processes import descendants, everybody, identify
from train.agent.progress import ProgressParser
from train.agent.reach import Door
from train.agent.records import (
    Commit,
    End,
    Exit,
    Follow,
    Inspect,
    JobResult,
    Notice,
    Phase,
    Progress,
    Record,
    Stop,
    Stopped,
    TaskState,
    Usage,
)
from train.agent.sides import Side, bond_of, side_of
from train.agent.spawn import adopt_orphans, spawn
from train.agent.task import TaskProcess
from train.agent.usage import GPU_COMMAND, PERIOD_S, CpuMeter, GpuMeter

_PROGRESS_S = 0.2
_WAKE_S = 0.01
_FEW_EPOCHS = 1000  # after so many, ends of epochs are kept at most once a second
_CLOSE_S = 5.0


class Start(NamedTuple):
    """All that a supervisor is given."""

    commit: Commit
    fleet: str
    paths: TaskPaths
    session: Dict[str, str]
    umask: int
    facts: Facts
    port: TaskPort
    listener: socket.socket
    control: socket.socket


class Supervisor:
    """One task, its output, and its part in the gang.

    Args:
        start: What was prepared and committed.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._commit = start.commit
        self._loop = Loop()
        self._journal = Journal(start.paths, start.commit.attempt)
        self._parser = ProgressParser(start.commit.task, start.commit.attempt, len(start.commit.members))
        visitors = len(start.commit.members)
        self._door = Door(self._loop, start.port.listener, bond_of(start.commit), start.commit.task, visitors)
        self._control = ControlServer(self._loop, start.control, self._asked)
        self._task = TaskProcess(
            self._loop, on_output=self._output, on_exit=self._task_exited, on_closed=self._task_closed
        )
        self._cpu = CpuMeter()
        self._gpu = GpuMeter()
        self._gpu_pid = 0
        self._usage: Optional[Usage] = None
        self._kept: Optional[Progress] = None
        self._kept_count = 0
        self._result: Optional[JobResult] = None
        self._fault = ""
        self._stopping = False
        self._written = False
        self._told = False
        self._over = False
        self._stoppers: List[Callable[[Record], None]] = []
        self._side: Side

    def run(self, started: Callable[[], None]) -> None:
        """Look after the task until the job is over; calls `started` when it waits at its gate.

        Raises:
            OSError: the task's process cannot be made, or the disk is full before it is.
        """
        self._take_signals()
        adopt_orphans()
        self._start_task()
        self._side = side_of(self._loop, self._commit, self._start.listener, self, self._start.facts)
        started()
        self._side.ready()
        while not self._over:
            self._loop.turn()
        self._end()

    def _take_signals(self) -> None:
        reads, writes = os.pipe()
        os.set_blocking(reads, False)
        os.set_blocking(writes, False)
        signal.set_wakeup_fd(writes, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM):
            signal.signal(number, lambda *_: None)  # their numbers come through the pipe
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._loop.watch(reads, READ, lambda _: self._signalled(os.read(reads, 4096)))

    def _start_task(self) -> None:
        commit, paths = self._commit, self._start.paths
        env = task_environment(
            self._start.session,
            {**commit.env, **commit.secret_env},
            fleet=self._start.fleet,
            job=commit.job,
            task=commit.task,
            attempt=commit.attempt,
            members=commit.members,
            paths=paths,
        )
        self._task.start(commit.command, env, paths.source, self._start.umask)
        self._commit = commit._replace(secret_env={})
        known = {"supervisor": list(identify(os.getpid())), "task": list(identify(self._task.pid))}
        write_atomic(paths.processes, json.dumps(known).encode())
        self._record_phase(Phase.WAITING)

    # --- orders of the gang ---------------------------------------------------------------------------------------

    def go(self, warnings: Sequence[str]) -> None:
        """Open the gate of the task; `warnings` are for the user."""
        if self._stopping or not self._task.held:
            return
        self._door.close()
        self._start.port.yield_to_task()
        self._task.release()
        for text in warnings:
            self._record(Notice(self._commit.task, self._commit.attempt, time.time(), text))
        self._record_phase(Phase.RUNNING)
        if self._start.facts.gpus:
            self._start_gpu_meter()
        self._sample()

    def stop(self, reason: str, grace_s: float) -> None:
        """End the task: TERM, `grace_s` seconds, KILL."""
        if self._stopping:
            return
        self._stopping = True
        self._door.close()
        if self._task.exit is None:
            self._record_phase(Phase.STOPPING, reason)
        self._task.stop(grace_s)

    def finish(self, result: JobResult) -> None:
        """The job is over."""
        if self._result is None:
            self._result = result
            self._loop.after("told", self._commit.link_timeout_s + _CLOSE_S, self.told)
            if not self._task.closed:
                self._loop.after("finish", _CLOSE_S, self._task.give_up)
            self._finish_if_closed()

    def told(self) -> None:
        """Everybody who can be told knows the result."""
        self._told = True
        self._over = self._written

    # --- what the task does ---------------------------------------------------------------------------------------

    def _output(self, data: bytes) -> None:
        if self._fault:
            return
        try:
            self._journal.write_log(data)
        except OSError as error:
            self._give_up(f"{self._commit.task}'s log cannot be written: {error.strerror}")
            return
        before = self._parser.latest
        for progress in self._parser.feed(data, time.time()):
            self._keep(progress)
        self._wake_soon()
        if self._parser.latest is not before and not self._loop.waits_for("progress"):
            self._loop.after("progress", _PROGRESS_S, self._publish_progress)

    def _wake_soon(self) -> None:
        if not self._loop.waits_for("wake"):
            self._loop.after("wake", _WAKE_S, self._control.wake)

    def _publish_progress(self) -> None:
        if self._parser.latest is not None:
            self._control.publish(self._parser.latest)

    def _keep(self, progress: Progress) -> None:
        often = self._kept_count > _FEW_EPOCHS and self._kept is not None and progress.at - self._kept.at < 1.0
        if not often:
            self._kept = progress
            self._kept_count += 1
            self._record(progress)

    def _record_phase(self, phase: Phase, reason: str = "", ended: Optional[Exit] = None) -> None:
        commit = self._commit
        self._record(TaskState(commit.task, commit.attempt, phase, time.time(), self._task.pid, ended, reason))
        self._control.wake()

    def _record(self, record: Record) -> None:
        try:
            self._journal.write_record(record)
        except OSError as error:
            self._give_up(f"{self._commit.task}'s records cannot be written: {error.strerror}")

    def _give_up(self, reason: str) -> None:
        if not self._fault:
            self._fault = reason
            self._journal.use_spare()
            self._task.stop(self._commit.grace_s)

    def _task_exited(self, ended: Exit) -> None:
        self._loop.cancel("kill")
        self._side.exited(ended, self._fault)

    def _task_closed(self) -> None:
        self._loop.cancel("usage")
        if self._parser.latest is not None and self._parser.latest is not self._kept:
            self._record(self._parser.latest)
        self._record_phase(Phase.EXITED, self._fault, self._task.exit)
        self._finish_if_closed()

    def _finish_if_closed(self) -> None:
        if self._result is None or not self._task.closed:
            return
        self._loop.cancel("finish")
        try:
            write_result(self._start.paths, self._result)
        except OSError as error:
            os.write(2, f"the result cannot be written: {error.strerror}\n{self._result}\n".encode())
        self._control.wake()
        self._written = True
        self._over = self._told

    # --- what the host and its users do ---------------------------------------------------------------------------

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers:
            self._give_up(f"the agent of {self._commit.task} was told to end (SIGTERM)")
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self._task.pid:
                self._task.reaped(status)
            elif pid == self._gpu_pid:
                self._gpu_pid = 0

    def _asked(self, request: Record, answer: Callable[[Record], None]) -> bool:
        if isinstance(request, Stop):
            self._stoppers.append(answer)
            self._side.stop_requested(request.grace_s)
            return True
        if isinstance(request, (Follow, Inspect)):
            for known in (self._parser.latest, self._usage):
                if known is not None:
                    answer(known)
            if isinstance(request, Inspect):
                answer(End())
        return isinstance(request, Follow)

    def _sample(self) -> None:
        table = everybody()
        pids = {pid for pid in descendants(os.getpid(), table) if pid != self._gpu_pid}
        percent, resident = self._cpu.read(table, pids, time.monotonic())
        if percent >= 0:
            self._usage = Usage(self._commit.task, time.time(), round(percent, 1), resident, self._gpu.read())
            self._control.publish(self._usage)
        self._loop.after("usage", PERIOD_S, self._sample)

    def _start_gpu_meter(self) -> None:
        meter = spawn(GPU_COMMAND, self._start.session, "/", umask=self._start.umask, gated=False)
        self._gpu_pid = meter.pid
        self._task.spare(meter.pid)

        def read(_: int) -> None:
            data = os.read(meter.output, 1 << 14)
            self._gpu.feed(data)
            if not data:
                self._loop.unwatch(meter.output)

        self._loop.watch(meter.output, READ, read)

    def _end(self) -> None:
        self._side.close()
        if self._gpu_pid:
            os.kill(self._gpu_pid, signal.SIGKILL)
        self._start.port.release()
        remove_file(self._start.paths.processes)
        remove_file(self._start.paths.control)
        for answer in self._stoppers:
            answer(Stopped(killed=self._task.killed, running=True))
        self._journal.close()
        self._control.close()
