"""Supervise one slot from Commit to the end of its job, through all attempts, with or without a client.

train.agent.gang.election decides; this module performs the actions.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Set, Tuple

from train.agent.checkpoints.replicator import News, Replicator, Setup
from train.agent.files.disk import remove_file
from train.agent.files.journal import last_attempt, states, write_result
from train.agent.gang import election, reconciler
from train.agent.gang.assignment import is_evaluator
from train.agent.gang.attempt import JobTerms
from train.agent.gang.states import (
    DesiredState,
    Message,
    SlotStatus,
    Source,
    Stage,
    from_wire,
    to_wire,
)
from train.agent.gang.stop import RESTART_EXIT_CODE
from train.agent.host.control import ControlServer
from train.agent.host.jobs import job_mark, mark_job
from train.agent.host.loop import READ, Loop
from train.agent.host.ports import reserve_task_port
from train.agent.host.processes import receive_signals
from train.agent.host.spawn import adopt_orphans
from train.agent.peers.connections import ConnectionEvents, PeerConnections
from train.agent.protocol import records
from train.agent.protocol.errors import RefusedError, reason_kind
from train.agent.protocol.records import Commit, JobResult, Reason, Record
from train.agent.protocol.session import Credentials, LinkError, encode_message
from train.agent.supervisor.attempt import Attempt
from train.agent.supervisor.environment import Start
from train.agent.supervisor.host_queue import HostQueue
from train.agent.supervisor.preemption import Notices, NoticeWatch, find_notice
from train.agent.supervisor.watchdog import Watchdog

_CLOSE_S = 5.0
_SETTLE_S = 8.0
_REPLICATORS = 5
_CLOCK_S = 2.0  # smallest change of the end of the host's lifetime; the server's time has no fractions of a second
_NOTICE_S = 2.0  # a preempted host may receive SIGTERM before its metadata server reports the preemption


class Supervisor:
    """One slot of a job.

    Args:
        start: What was prepared and committed.
        watchdog: The watchdog, which starts another supervisor if this one is killed.
        last: Last desired state of the supervisor before; None: we are the first.
        reason: Why that supervisor is gone.
    """

    def __init__(self, start: Start, watchdog: Watchdog, last: Optional[DesiredState], reason: Reason) -> None:
        self._start = start
        commit = self._commit = start.commit
        members = {member.slot: member for member in commit.members}
        self._address = members[commit.slot].address
        later = [records.Member(slot, "", "", 0, 0) for slot in commit.joinable if slot not in members]
        self._slots = (*members.values(), *later)
        self._watchdog = watchdog
        self._last = last
        self._reason = reason
        self._loop = Loop()
        self._control = ControlServer(self._loop, start.control, self._handle_request)
        self._queue = HostQueue(start, self._feed, holds_port=last is None)
        self._attempt: Optional[Attempt] = None
        self._helpers: Set[int] = set()  # child processes that are not part of the task
        self._notices: Optional[NoticeWatch] = None
        self._replicator: Optional[Replicator] = None
        self._replicator_lives = _REPLICATORS
        self._pending_close: Optional[reconciler.Closed] = None
        self._restoring: Optional[reconciler.RestoreCheckpoint] = None
        self._watching = 0  # attempt whose checkpoints are copied
        self._is_evaluator = False  # our task reads checkpoints as they come
        self._peer: election.Peer
        self._has_begun = False  # what happens before comes after
        self._events: Deque[election.PeerEvent] = deque()
        self._encoded: Tuple[Optional[Message], bytes] = (None, b"")  # the last message, and its text
        self._start_time = (0, 0.0)  # an attempt, and the common start time that this leader has set for it
        self._ended_at = 0.0
        self._result: Optional[JobResult] = None
        self._over = False
        self._killed = False
        self._stoppers: List[Callable[[Record], None]] = []
        self._actions: Dict[type, Callable[[Any], None]] = {
            election.SendMessage: lambda action: self._links.send(action.slot, self._encode(action.message)),
            election.Dial: lambda action: self._links.dial(action.slot),
            election.ProbePeer: lambda action: self._links.send_once(action.slot, to_wire(action.message)),
            reconciler.Claim: lambda action: self._queue.claim(action.attempt),
            reconciler.Reserve: self._reserve,
            reconciler.RestoreCheckpoint: self._restore,
            reconciler.FetchCheckpoint: self._fetch,
            reconciler.Spawn: self._spawn,
            reconciler.ProbePorts: lambda action: self._attempt_for(action.attempt).probe_ports(action.others),
            reconciler.OpenGate: self._open_gate,
            reconciler.Notify: lambda action: self._notify(action.text),
            reconciler.InspectTask: lambda action: self._attempt_for(action.attempt).inspect(action.inspection),
            reconciler.CopyUnlimited: lambda _: self._remove_limit(),
            reconciler.EndTask: lambda action: self._attempt_for(action.attempt).end(action.reason, action.grace_s),
            reconciler.ReportAttemptEnd: self._record_attempt_end,
            reconciler.Finish: lambda action: self._finish(action.result),
        }

    def begin(self) -> None:
        """Set everything up, and begin or resume the job.

        Raises:
            OSError: the disk is full before anything was started.
        """
        reads = receive_signals([signal.SIGCHLD, signal.SIGTERM])
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        self._loop.watch(reads, READ, lambda _: self._signalled(os.read(reads, 4096)))
        mark_job()
        adopt_orphans()
        if self._last is not None or self._commit.join or self._commit.resume is not None:
            self._need_replicator()  # this host may hold a checkpoint already
        self._connect_peers()
        self._begin_job()
        notice = find_notice(self._commit.preemption_notices, self._start.session)
        if notice is not None:
            self._notices = NoticeWatch(self._loop, notice, self._take_notices)
            self._helpers.add(self._notices.pid)

    def run(self) -> None:
        """Supervise the slot until the job ends."""
        while not self._over:
            self._loop.turn()
        self._end()

    def _connect_peers(self) -> None:
        commit = self._commit
        events = ConnectionEvents(
            lambda slot: self._feed(election.PeerConnected(slot)),
            lambda slot, reason: self._feed(election.PeerLost(slot, reason)),
            self._receive,
            self._stop_if_delivered,
        )
        self._links = PeerConnections(
            self._loop,
            self._start.listener,
            Credentials(commit.job, bytes.fromhex(commit.secret), commit.slot),
            commit.link_timeout_s,
            {member.slot: member for member in self._slots if member.slot != commit.slot},
            events=events,
        )

    def _begin_job(self) -> None:
        commit, start = self._commit, self._start
        resume = (commit.resume.attempt, commit.resume.number) if commit.resume is not None else None
        times = (commit.grace_s, commit.join_timeout_s, commit.link_timeout_s)
        terms = JobTerms(commit.job, self._slots, commit.policy, *times, resume, tuple(commit.joinable))
        terms = terms._replace(queued=bool(commit.after) and not commit.join)
        now = time.monotonic()
        if self._last is not None:
            self._record_lost_task(self._last.attempt)
            peer, actions = election.resume(terms, commit.slot, self._new_slot(0), self._last, self._reason, now)
        elif commit.join:
            peer, actions = election.join(terms, commit.slot, self._new_slot(last_attempt(start.paths)), now)
        else:
            if any(member.slot == commit.slot and member.task for member in commit.members):
                self._new_attempt(commit.attempt)
            slot = self._new_slot(commit.attempt, port=start.port.port)
            slot = slot._replace(work=reconciler.Work(restored=commit.resume is None))
            slot = reconciler.queued(slot) if terms.queued else slot
            peer, actions = election.begin(terms, commit.slot, slot, now)
        if peer.slot.status.queued:
            self._queue.await_turn()
        self._apply(peer, actions)
        self._has_begun = True
        self._serve()

    def _new_slot(self, attempt: int, port: int = 0) -> reconciler.Slot:
        link_port = self._start.listener.getsockname()[1]
        status = SlotStatus(self._commit.slot, attempt, port, facts=self._start.facts)
        return reconciler.Slot(status._replace(address=self._address, link_port=link_port))

    def _record_lost_task(self, number: int) -> None:
        """Record the end of the task that ran when the previous supervisor was killed."""
        history, (text, kind) = states(self._start.paths, number), self._reason
        if history and history[-1].phase is not records.Phase.EXITED:
            ended = (number, records.Phase.EXITED, self._start.now(), 0, None, text)
            self._record(records.TaskState(self._commit.slot, history[-1].task, *ended, reason_kind=kind))

    # --- events ---------------------------------------------------------------------------------------------------

    def _feed(self, event: election.PeerEvent) -> None:
        # An action may itself lead to an event, as when a link breaks under a message: one after the other.
        self._events.append(event)
        if self._has_begun and len(self._events) == 1:
            self._serve()

    def _serve(self) -> None:
        while self._events:
            event = self._events[0]
            self._apply(*election.step(self._peer, event, time.monotonic()))
            self._events.popleft()
        self._stop_if_delivered()

    def _apply(self, peer: election.Peer, actions: List[election.PeerAction]) -> None:
        self._peer = peer
        if peer.slot.desired is not None:
            self._links.update_addresses([*peer.slot.desired.joined, *peer.slot.desired.members])
            self._watchdog.remember(peer.slot.desired)
        now = time.monotonic()
        due = election.deadline(peer, now)
        if due is None:
            self._loop.cancel("deadline")
        else:
            self._loop.after("deadline", max(0.0, due - now), lambda: self._feed(election.DeadlineReached()))
        for action in actions:
            self._actions[type(action)](action)

    def _receive(self, slot: str, values: Dict[str, Any]) -> None:
        try:
            message = from_wire(values)
        except records.MalformedRecordError as error:
            raise LinkError(f"its agent sent a message that cannot be read: {error}") from error
        if isinstance(message, SlotStatus) and message.facts is not None:
            ahead_s = message.clock - time.time()
            message = message._replace(facts=message.facts._replace(ahead_s=ahead_s))
        if isinstance(message, SlotStatus) and message.end_at is not None:
            message = message._replace(end_at=time.monotonic() + message.end_at)
        if message is not None:
            self._feed(election.MessageReceived(slot, message))

    def _handle_task_event(self, event: reconciler.SlotEvent) -> None:
        if isinstance(event, reconciler.Closed) and self._attempt is not None:
            task = self._attempt.task
            self._killed = task.needed_sigkill
            if self._replicator is not None and self._watching:  # the last checkpoint counts, too
                self._watching = 0
                self._pending_close = event
                self._loop.after("settle", _SETTLE_S, self._deliver_close)
                # A task that exits with such a code has closed what it saved.
                orderly = (records.Exit(code=0), records.Exit(code=RESTART_EXIT_CODE))
                self._replicator.settle(is_orderly=task.exit in orderly)
                return
        self._feed(event)

    def _deliver_close(self) -> None:
        event, self._pending_close = self._pending_close, None
        self._loop.cancel("settle")
        if event is not None:
            self._feed(event)

    def _take_notices(self, notices: Notices) -> None:
        status = self._peer.slot.status
        end_at = None if notices.end_in_s is None else time.monotonic() + notices.end_in_s
        if end_at is not None and status.end_at is not None and abs(end_at - status.end_at) <= _CLOCK_S:
            end_at = status.end_at
        if notices.preempted:
            self._loop.cancel("terminate")
            self._remove_limit()
        self._feed(reconciler.HostAnnounced(notices.preempted or status.preempted, end_at))

    # --- checkpoints ------------------------------------------------------------------------------------------------

    def _need_replicator(self) -> Optional[Replicator]:
        """Return the replicator, started if it is not running; None if no checkpoints are copied.

        Raises:
            OSError: no process can be made.
        """
        commit, live = self._commit, self._start.checkpoints
        is_needed = len(self._slots) > 1 or commit.resume is not None
        if not is_needed or commit.replication.mib_s <= 0 or "://" in live:
            return None
        if self._replicator is None and self._replicator_lives > 0:
            host = (commit.slot, self._address, live, self._start.paths.replica)
            setup = Setup(commit.job, bytes.fromhex(commit.secret), *host, commit.replication.mib_s)
            self._replicator = Replicator(self._loop, setup, on_news=self._handle_news)
            self._helpers.add(self._replicator.pid)
        return self._replicator

    def _remove_limit(self) -> None:
        """Copy checkpoints from this host without a limit of the bandwidth."""
        if self._replicator is not None:
            self._replicator.remove_limit()

    def _handle_news(self, news: News) -> None:
        for text in filter(None, (news.note, news.error)):
            self._notify(text)
        source = Source(self._address, news.port) if news.held is not None and news.port else None
        self._feed(reconciler.CheckpointHeld(news.held, source))
        if news.settled is not None or news.ended:
            self._deliver_close()
        restoring = self._restoring
        if restoring is not None and news.restored is not None and news.restored.snapshot == restoring.snapshot:
            self._restoring, snapshot = None, restoring.snapshot
            name = ""  # of the checkpoint, as users know it
            if snapshot is not None:
                name = news.checkpoint or f"{snapshot.number} of attempt {snapshot.attempt}"
            self._feed(reconciler.CheckpointRestored(restoring.attempt, news.restored.error, name))
        if news.ended:
            self._restart_replicator()

    def _restart_replicator(self) -> None:
        self._replicator = None
        self._replicator_lives -= 1
        restoring, replicator = self._restoring, self._need_replicator()
        if replicator is None:
            if restoring is not None:
                problem = Reason(f"the replicator of {self._commit.slot} ended repeatedly")
                self._feed(reconciler.CheckpointRestored(restoring.attempt, problem))
            return
        replicator.update_live(on=self._is_evaluator)
        if self._watching:
            replicator.watch(self._watching, self._attempt.task.pid if self._attempt is not None else 0)
        if restoring is not None:
            self._restore(restoring)

    def _restore(self, action: reconciler.RestoreCheckpoint) -> None:
        is_user_directory = bool(self._commit.replication.directory)
        replicator = self._need_replicator()
        if replicator is None or (is_user_directory and action.snapshot is None):
            # Files that were in the user's own directory before the job are kept.
            self._feed(reconciler.CheckpointRestored(action.attempt, checkpoint=None if replicator is None else ""))
            return
        self._restoring = action
        replicator.restore(action.snapshot, action.sources)

    def _fetch(self, action: reconciler.FetchCheckpoint) -> None:
        replicator = self._need_replicator()
        if replicator is not None:
            replicator.fetch(action.snapshot, action.sources)

    # --- actions ----------------------------------------------------------------------------------------------------

    def _encode(self, message: Message) -> bytes:
        """Return the text of a message; the leader sends one state to all slots, which is encoded once."""
        if isinstance(message, SlotStatus):
            end_in_s = None if message.end_at is None else message.end_at - time.monotonic()
            return encode_message(to_wire(message._replace(clock=time.time(), end_at=end_in_s)))
        if message is not self._encoded[0]:
            sent = self._with_times(message) if isinstance(message, DesiredState) else message
            self._encoded = message, encode_message(to_wire(sent))
        return self._encoded[1]

    def _with_times(self, desired: DesiredState) -> DesiredState:
        """Return a state with the times of start and result, which the leader sets once and all hosts share."""
        if desired.stage is Stage.GO and desired.start_delay_s and not desired.start_at:
            if self._start_time[0] != desired.attempt:
                self._start_time = desired.attempt, self._start.now() + desired.start_delay_s
            desired = desired._replace(start_at=self._start_time[1])
        return desired if desired.result is None else desired._replace(result=self._with_end(desired.result))

    def _with_end(self, result: JobResult) -> JobResult:
        self._ended_at = self._ended_at or self._start.now()
        return result if result.at else result._replace(at=self._ended_at)

    def _open_gate(self, action: reconciler.OpenGate) -> None:
        desired, left_s = self._peer.slot.desired, 0.0
        if desired is not None and desired.attempt == action.attempt:
            left_s = self._with_times(desired).time_to_start_s(self._start.now())
        self._attempt_for(action.attempt).open_gate(left_s)

    def _new_attempt(self, number: int) -> Attempt:
        before, first = self._attempt, self._start.port
        is_first = number == self._commit.attempt and self._last is None
        self._attempt = Attempt(
            self._loop,
            self._start,
            number,
            first if is_first else reserve_task_port((before.port if before is not None else first.port) + 1),
            control=self._control,
            report_event=self._handle_task_event,
            helpers=self._helpers,
        )
        if before is not None:
            before.close()
        return self._attempt

    def _attempt_for(self, number: int) -> Attempt:
        if self._attempt is None or self._attempt.number != number:
            return self._new_attempt(number)
        return self._attempt

    def _reserve(self, action: reconciler.Reserve) -> None:
        try:
            port = self._new_attempt(action.attempt).port
        except (OSError, RefusedError) as error:
            failed = f"attempt {action.attempt} could not be prepared: {getattr(error, 'strerror', '')}"
            text = error.record.reason if isinstance(error, RefusedError) else failed
            self._feed(reconciler.Failed(action.attempt, Reason(text, reason_kind(error))))
        else:
            self._feed(reconciler.Reserved(action.attempt, port))

    def _spawn(self, action: reconciler.Spawn) -> None:
        attempt = self._attempt_for(action.attempt)
        is_first = action.members[0].task == action.task  # it writes the checkpoints
        self._is_evaluator = is_evaluator(action.task)
        try:
            replicator = self._need_replicator() if is_first or self._is_evaluator else self._replicator
            attempt.spawn(action, self._watchdog.pid)
        except OSError as error:
            self._feed(reconciler.Closed(action.attempt))
            text = f"{self._commit.slot} cannot be started: {error.strerror}"
            self._feed(reconciler.Failed(action.attempt, Reason(text, reason_kind(error))))
            return
        self._watchdog.keep(attempt.task.output, self._start.paths.log(action.attempt))
        if replicator is None:
            return
        replicator.update_live(on=self._is_evaluator)
        if is_first:
            self._watching = action.attempt
            replicator.watch(action.attempt, attempt.task.pid)

    def _notify(self, text: str) -> None:
        if self._attempt is not None:
            self._record(records.Notice(self._commit.slot, self._attempt.number, self._start.now(), text))

    def _record(self, record: Record) -> None:
        number = getattr(record, "attempt", 0)
        if self._attempt is None and isinstance(record, (records.AttemptEnded, records.TaskState)):
            self._new_attempt(number)
        if self._attempt is not None:
            self._attempt.record(record)

    def _record_attempt_end(self, action: reconciler.ReportAttemptEnd) -> None:
        self._killed = False  # only the task that a stop ends counts
        self._record(action.ended._replace(at=self._start.now(), attempts=self._commit.policy.max_attempts))

    def _finish(self, result: JobResult) -> None:
        self._result = self._with_end(result)
        try:
            write_result(self._start.paths, self._result)
        except OSError as error:
            os.write(2, f"the result cannot be written: {error.strerror}\n{self._result}\n".encode())
        self._control.wake()
        self._loop.after("deliver", self._commit.link_timeout_s + _CLOSE_S, self._stop_loop)

    def _stop_if_delivered(self) -> None:
        """Exit once the result is delivered: the leader waits until the others have disconnected."""
        if self._result is not None and (self._peer.leader != self._commit.slot or not self._links.connected):
            self._stop_loop()

    def _stop_loop(self) -> None:
        self._over = True

    # --- signals and requests -------------------------------------------------------------------------------------

    def _signalled(self, numbers: bytes) -> None:
        if signal.SIGTERM in numbers and not self._peer.slot.status.preempted:
            pause_s = _NOTICE_S if self._notices is not None else 0.0
            self._loop.after("terminate", pause_s, self._terminate)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            self._helpers.discard(pid)
            self._queue.child_exited(pid, status)
            if self._attempt is not None:
                self._attempt.child_exited(pid, status)

    def _terminate(self) -> None:
        if self._attempt is not None:
            self._attempt.give_up(Reason(f"the agent of {self._commit.slot} received SIGTERM"))

    def _handle_request(self, request: Record, answer: Callable[[Record], None]) -> bool:
        if isinstance(request, records.Stop):
            self._stoppers.append(answer)
            self._feed(election.StopRequested(request.grace_s))
            return True
        if isinstance(request, records.GetJoinInfo) and self._has_begun:
            answer(self._join_info())
        if isinstance(request, (records.Follow, records.Inspect)):
            for record in self._attempt.latest_records if self._attempt is not None else []:
                answer(record)
            if isinstance(request, records.Inspect):
                answer(records.End())
        return isinstance(request, records.Follow)

    def _join_info(self) -> Commit:
        """Return the commit with the current address of every slot that has joined."""
        desired = self._peer.slot.desired
        now = {member.slot: member for member in [*desired.joined, *desired.members]} if desired is not None else {}
        members = [now.get(member.slot, member)._replace(task=member.task) for member in self._slots]
        members = [member for member in members if member.address]
        return self._commit._replace(members=members, join=True)

    def _end(self) -> None:
        for part in (self._links, self._queue, self._notices, self._replicator, self._attempt):
            if part is not None:
                part.close()
        for path in (job_mark(), self._start.paths.processes, self._start.paths.control):
            remove_file(path)
        for answer in self._stoppers:
            answer(records.Stopped(killed=self._killed, running=True))
        self._control.close()
