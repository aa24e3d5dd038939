"""One attempt on this host: its port, its process, its output, and its measurements."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from typing import Any, Callable, List, Optional, Sequence, Set

from train.agent.files.disk import make_scratch, write_atomic
from train.agent.files.journal import Journal
from train.agent.gang import reconciler
from train.agent.gang.assignment import is_evaluator
from train.agent.host.control import ControlServer
from train.agent.host.loop import READ, Loop
from train.agent.host.ports import TaskPort
from train.agent.host.processes import identify, is_marked
from train.agent.host.spawn import spawn
from train.agent.host.usage import GPU_COMMAND, PERIOD_S, SLACK_S, CpuMeter, GpuMeter
from train.agent.peers.probes import PortProbes, answer_probes
from train.agent.protocol import records
from train.agent.protocol.cluster import expand_placeholders
from train.agent.protocol.errors import reason_kind
from train.agent.protocol.records import NO_REASON, Exit, Phase, Reason, Record
from train.agent.protocol.session import Credentials
from train.agent.supervisor.environment import Start, TaskIdentity, task_environment
from train.agent.supervisor.listening import PortWatch
from train.agent.supervisor.observations import Observations
from train.agent.supervisor.progress import CPU_FRACTION, ProgressParser, ProgressQueue
from train.agent.supervisor.task import TaskEvents, TaskProcess
from train.agent.supervisor.warm import WarmTask, start_warm

_ANNOUNCE_S = 0.01  # from output until followers are notified of it, and of all that came meanwhile
_PROGRESS_S = 0.5  # between two readings of the progress in the output
_PROGRESS_SLACK_S = 0.25  # … to wait for more output
_FEW_EPOCHS = 1000  # after this many, ends of epochs are recorded at most once a second
_FIRST_SAMPLE_S = 0.5
_IDLE_PERCENT = 5.0  # of one core or GPU; TensorFlow's heartbeats take less, and all training takes more


class Attempt:
    """One attempt on this host.

    Args:
        loop: Event loop that serves it.
        start: Of the supervisor.
        number: Of the attempt.
        port: Reserved for it.
        control: Notifies followers.
        report_event: Called with each event.
        helpers: Child processes of this process that are not part of the task.

    Raises:
        OSError: the disk is full.
    """

    def __init__(
        self,
        loop: Loop,
        start: Start,
        number: int,
        port: TaskPort,
        *,
        control: ControlServer,
        report_event: Callable[[reconciler.SlotEvent], None],
        helpers: Set[int],
    ) -> None:
        self.number = number
        self._loop = loop
        self._start = start
        self._port = port
        self._control = control
        self._report_event = report_event
        self._helpers = helpers
        commit = self._commit = start.commit
        try:
            self.journal = Journal(start.paths, number)
            self._credentials = Credentials(commit.job, bytes.fromhex(commit.secret), commit.slot, number)
            self._probe_listener = answer_probes(loop, port.listener, self._credentials, len(commit.members))
        except OSError:
            port.release()
            raise
        events = TaskEvents(
            self._output,
            self._exited,
            self._closed,
            held=lambda: report_event(reconciler.HeldAtGate(number)),
            report=self._observed,
        )
        self.task = TaskProcess(loop, events, start.paths.directory, self._is_helper)
        self._task = ""
        self._checkpoint: Optional[str] = None
        self._cold: Optional[str] = None
        self._scratch = ""
        self._failure = NO_REASON
        self._stopping = False
        self._probes: Optional[PortProbes] = None
        self._port_watch: Optional[PortWatch] = None
        self._queue = self._new_queue(1)
        self._observations = Observations()
        self._was_observed = False  # followers have a progress that may have to be replaced
        self._recorded_progress: Optional[records.Progress] = None
        self._sampled_progress: Optional[records.Progress] = None
        self._recorded_count = 0
        self._parsed_at = self._published_at = 0.0
        self._cpu = CpuMeter()
        self._gpu = GpuMeter()
        self._gpu_pid = 0
        self._usage: Optional[records.Usage] = None
        self._output_at = self._active_at = self._worked_at = time.monotonic()

    def _new_queue(self, workers: int) -> ProgressQueue:
        return ProgressQueue(ProgressParser(self._commit.slot, self._task, self.number, workers))

    def _is_helper(self, pid: int) -> bool:
        """Return True for a child process of this process that is not part of the task."""
        return pid in self._helpers or (self._commit.warm and is_marked(pid, self._start.host.warm))

    @property
    def _name(self) -> str:
        """Return the name of the task in messages to the user."""
        return self._task or self._commit.slot

    @property
    def port(self) -> int:
        """The reserved port."""
        return self._port.port

    @property
    def latest_records(self) -> List[Record]:
        """Return the latest progress and usage, which are not stored in a file."""
        return [record for record in (self._progress(), self._usage) if record is not None]

    # --- actions --------------------------------------------------------------------------------------------------

    def spawn(self, action: reconciler.Spawn, supervisor: int) -> None:
        """Start the process, held at its gate.

        Args:
            action: The task, and all tasks.
            supervisor: Process id to be written down as that which looks after the task.

        Raises:
            OSError: no process can be made, or the disk is full.
        """
        commit, start, paths = self._commit, self._start, self._start.paths
        self._task, self._checkpoint = action.task, action.checkpoint
        self._queue = self._new_queue(len(action.members))
        with contextlib.suppress(OSError):  # the task uses the host's directory
            self._scratch = make_scratch(paths.scratch, start.session.get("TMPDIR") or "/tmp")  # noqa: S108
        env = task_environment(
            start.session,
            {**commit.env, **commit.secret_env},
            identity=TaskIdentity(start.fleet, commit.job, action.task, self.number, action.members),
            paths=paths,
            checkpoints=start.checkpoints,
            scratch=self._scratch,
            host_environment=start.host_environment,
        )
        command = expand_placeholders(commit.command, action.members, action.task, self.number)
        warm = start_warm(start, command, env) if commit.warm else None
        if isinstance(warm, WarmTask):
            self._cold = ""
            self.task.adopt(warm)
        else:
            self._cold = warm if isinstance(warm, str) else None
            self.task.start(command, env, paths.source, start.umask, start.hook)
        processes = {"supervisor": identify(supervisor), "task": identify(self.task.pid)}
        write_atomic(paths.processes, json.dumps(processes).encode())
        if len(action.members) > 1 and not is_evaluator(action.task):
            self._port_watch = PortWatch(self.port)
        self._record_phase(Phase.WAITING)

    def probe_ports(self, others: Sequence[records.Member]) -> None:
        """Probe the ports of the other tasks."""
        self._probes = PortProbes(
            self._loop,
            self._credentials,
            others,
            lambda results: self._report_event(reconciler.PortsProbed(self.number, results)),
        )
        self._probes.begin()

    def open_gate(self, left_s: float = 0.0) -> None:
        """Open the gate after a time, for which the task's process waits: this one may be busy when it has passed."""
        if self._stopping or not self.task.held:
            return
        self._probe_listener.close()
        self._port.yield_to_task()
        self._output_at = self._active_at = self._worked_at = time.monotonic() + left_s
        self._record_phase(Phase.RUNNING, at=self._start.now() + left_s)
        if self._failure:
            return
        self.task.release(self._output_at)
        self._loop.after("usage", left_s + _FIRST_SAMPLE_S, self._sample)
        if self._start.facts.gpus:
            self._start_gpu_meter()

    def end(self, reason: str, grace_s: float) -> None:
        """End the task: SIGTERM, then SIGKILL after `grace_s` seconds."""
        first, self._stopping = not self._stopping, True
        self._close_probes()
        if first and self.task.exit is None:
            self._record_phase(Phase.STOPPING, Reason(reason))
        self.task.stop(grace_s, self._observations.unending)

    def inspect(self, number: int) -> None:
        """Inspect what the task is doing, and report it to the gang and all followers."""

        def report(inspection: records.HangInspection) -> None:
            inspection = inspection._replace(slot=self._commit.slot, task=self._task, attempt=self.number)
            inspection = inspection._replace(at=self._start.now())
            self.record(inspection)
            self._report_event(reconciler.TaskInspected(self.number, number, inspection))

        self.task.inspect(report)

    def give_up(self, reason: Reason) -> None:
        """End the task because of a failure of this host."""
        if not self._failure:
            self._failure = reason
            self.journal.free_reserve()
            if self.task.pid:
                self.task.stop(self._commit.grace_s, self._observations.unending)
            else:
                self._report_event(reconciler.Failed(self.number, reason))

    def child_exited(self, pid: int, status: int) -> None:
        """Handle the end of a child process."""
        if pid == self.task.pid:
            self.task.record_exit(status)
        elif pid == self._gpu_pid:
            self._gpu_pid = 0

    def record(self, record: Record) -> None:
        """Append a record to the journal, and notify followers."""
        self._store("records", lambda: self.journal.write_record(record))
        self._control.wake()

    def _store(self, name: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            text = f"{self._name}'s {name} cannot be written: {error.strerror}"
            self.give_up(Reason(text, reason_kind(error)))
            return False
        return True

    def close(self) -> None:
        """Release all resources."""
        self._close_probes()
        for name in ("usage", "wake", "progress", "parse"):
            self._loop.cancel(name)
        if self._gpu_pid:
            os.kill(self._gpu_pid, signal.SIGKILL)
        self._port.release()
        self.journal.close()

    def _close_probes(self) -> None:
        self._probe_listener.close()
        if self._probes is not None:
            self._probes.close()

    # --- events of the task ---------------------------------------------------------------------------------------

    def _output(self, data: bytes) -> None:
        if self._failure or not self._store("log", lambda: self.journal.write_log(data, self._start.now())):
            return
        self._output_at = time.monotonic()
        if self._port_watch is not None:
            self._port_watch.read_output(data)
        if not self._loop.waits_for("wake"):
            self._loop.after("wake", _ANNOUNCE_S, self._control.wake)
        self._queue.put(data, self._start.now())
        self._call_at(self._parsed_at + _PROGRESS_S, "parse", self._parse)

    def _call_at(self, at: float, name: str, call: Callable[[], None]) -> None:
        """Call `call` at a time, or soon after it with something else; only once, however often this is called."""
        if not self._loop.waits_for(name):
            pause_s = max(0.0, at - time.monotonic())
            self._loop.after(name, pause_s, call, slack_s=_PROGRESS_SLACK_S if pause_s else 0.0)

    def _parse(self) -> None:
        """Parse some of the output; heartbeats, messages, and the log itself come first."""
        before, self._parsed_at = self._queue.parser.latest, time.monotonic()
        for progress in self._queue.parse():
            self._keep(progress)
        if self._queue.parser.latest is not before:
            self._call_at(self._published_at + _PROGRESS_S, "progress", self._publish_progress)
        if self._queue.size:
            self._loop.after("parse", (1 / CPU_FRACTION - 1) * (time.monotonic() - self._parsed_at), self._parse)

    def _observed(self, report: bytes) -> None:
        """Take a report of the hook."""
        self._worked_at = time.monotonic()
        self._observations.add(report, self._worked_at)
        if self._port_watch is not None and self._observations.has_server:
            self._port_watch.find_server()
        self._call_at(self._worked_at + _PROGRESS_S, "progress", self._publish_progress)

    def _progress(self) -> Optional[records.Progress]:
        """Return what is known about the progress from the output and from the hook; None: nothing."""
        nothing = records.Progress(self._commit.slot, self._task, self.number, self._start.now())
        progress = self._with_observation(self._queue.parser.latest or nothing)
        if progress == nothing and not self._was_observed:
            return None
        self._was_observed = True
        return progress

    def _with_observation(self, progress: records.Progress) -> records.Progress:
        return progress._replace(**self._observations.latest(time.monotonic()))

    def _publish_progress(self) -> None:
        self._published_at = time.monotonic()
        progress = self._progress()
        if progress is not None:
            self._control.publish(progress)

    def _keep(self, progress: records.Progress) -> None:
        last = self._recorded_progress
        if last is None or self._recorded_count <= _FEW_EPOCHS or progress.at - last.at >= 1.0:
            self._recorded_progress = progress
            self._recorded_count += 1
            self.record(self._with_observation(progress))

    def _record_phase(
        self, phase: Phase, reason: Reason = NO_REASON, at: Optional[float] = None, **more: Any
    ) -> None:
        state = records.TaskState(
            self._commit.slot,
            self._task,
            self.number,
            phase,
            self._start.now() if at is None else at,
            self.task.pid,
            reason=reason.text,
            reason_kind=reason.kind,
            checkpoint=self._checkpoint,
            cold=self._cold,
            **more,
        )
        self.record(state)

    @property
    def _reason(self) -> Reason:
        clause = self.task.reason
        return self._failure or (clause._replace(text=f"{self._name} was {clause.text}") if clause else clause)

    def _exited(self, ended: Exit) -> None:
        self._report_event(reconciler.Exited(self.number, ended, self._reason))

    def _closed(self) -> None:
        for name in ("usage", "parse"):
            self._loop.cancel(name)
        for progress in self._queue.finish():
            self._keep(progress)
        latest = self._queue.parser.latest
        if latest is not None and latest is not self._recorded_progress:
            self.record(latest)
        if latest is not self._sampled_progress:
            self._write_sample(None)
        self._record_phase(
            Phase.EXITED,
            self._reason,
            # The exit of a process whose gate was never opened is not the result of user code.
            exit=None if self.task.never_ran else self.task.exit,
            started=not self.task.never_ran,
            listened=None if self._port_watch is None else self._port_watch.listened,
        )
        self._report_event(reconciler.Closed(self.number))

    # --- resource use ---------------------------------------------------------------------------------------------

    def _sample(self) -> None:
        now, table = time.monotonic(), self.task.read_processes()
        if self._port_watch is not None:
            self._port_watch.examine(self.task.pid, table)
        with contextlib.suppress(OSError):
            os.utime(self._scratch)  # systemd-tmpfiles removes directories that were not used for ten days
        percent, resident = self._cpu.read(table, set(table), now)
        if percent >= _IDLE_PERCENT:
            self._active_at = now
        gpus = self._gpu.read()
        is_measured = bool(self._gpu_pid and gpus) or not self._start.facts.gpus
        if not is_measured or any(gpu.percent >= _IDLE_PERCENT for gpu in gpus):
            self._worked_at = now
        if percent >= 0 and resident:  # processes that have ended have no memory
            used = (self._start.now(), round(percent, 1), resident, gpus)
            self._usage = records.Usage(self._commit.slot, self._task, *used)
            self._control.publish(self._usage)
            self._write_sample(self._usage)
        # The tasks start together; their leader should not receive all reports at the same moment.
        period_s = PERIOD_S if percent >= 0 else PERIOD_S * (0.5 + os.urandom(1)[0] / 256)
        self._loop.after("usage", period_s, self._sample, slack_s=SLACK_S)
        stepped, latest = self._queue.parser.latest is not None, max(self._output_at, self._active_at)
        quiet_s, idle_s = round(now - self._output_at, 1), round(now - self._active_at, 1)
        inactive_s = round(now - max(latest, self._worked_at), 1)
        self._report_event(reconciler.TaskActivity(self.number, quiet_s, idle_s, stepped, inactive_s))

    def _write_sample(self, usage: Optional[records.Usage]) -> None:
        self.journal.write_sample(self._task, self._start.now(), usage, self._progress())
        self._sampled_progress = self._queue.parser.latest

    def _start_gpu_meter(self) -> None:
        meter = spawn(GPU_COMMAND, self._start.session, "/", umask=self._start.umask, gated=False)
        self._gpu_pid = meter.pid
        self._helpers.add(meter.pid)

        def read(_: int) -> None:
            data = os.read(meter.output, 1 << 14)
            self._gpu.feed(data)
            if not data:
                self._loop.unwatch(meter.output)

        self._loop.watch(meter.output, READ, read)
