"""Run a gang in simulated time: real peers (train.agent.gang.election), stand-in tasks, a faulty network, and a seed.

The outer parts of a supervisor are modelled: a follower dials its leader repeatedly, a connection that breaks may
come back within the link timeout, and a supervisor that is killed or freezes is replaced by its watchdog,
which ends all processes first.
"""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from train.agent.checkpoints.snapshot import Snapshot, newest
from train.agent.gang import election, reconciler
from train.agent.gang.assignment import count_workers, is_coordinated, is_evaluator
from train.agent.gang.attempt import JobTerms
from train.agent.gang.election import (
    DeadlineReached,
    Dial,
    MessageReceived,
    Peer,
    PeerConnected,
    PeerLost,
    ProbePeer,
    SendMessage,
)
from train.agent.gang.readiness import ReadinessFacts
from train.agent.gang.reconciler import (
    CheckpointHeld,
    CheckpointRestored,
    Claim,
    Claimed,
    Closed,
    EndTask,
    Exited,
    Failed,
    FetchCheckpoint,
    Finish,
    HeldAtGate,
    HostAnnounced,
    InspectTask,
    OpenGate,
    PortsProbed,
    ProbePorts,
    Reserve,
    Reserved,
    RestoreCheckpoint,
    Slot,
    Spawn,
    TaskActivity,
    TaskInspected,
    Unqueued,
    Work,
)
from train.agent.gang.states import DesiredState, SlotStatus, Source
from train.agent.protocol.records import Exit, JobResult, Member, Outcome, Policy, Reason, ReasonKind

LINK_TIMEOUT_S = 10.0
WATCHDOG_S = 0.6 * LINK_TIMEOUT_S  # a supervisor that is silent for this time is replaced
NOTICE_S = 30.0  # a host that the cloud takes is gone after this time
HEALED_S = 8.0  # after this time the parts of a network are connected again
PULSE_S = 2.0
HEALTHY = ReadinessFacts({"python": "3.11.7", "tensorflow": "2.21.0"}, [], 1 << 40)


class BrokenPropertyError(AssertionError):
    """A property that must always hold did not hold."""


@dataclass
class Task:
    """A stand-in for a process of TensorFlow."""

    attempt: int
    name: str
    snapshot: Snapshot | None
    alive: bool = True
    frozen: bool = False
    gone: bool = False  # past its gate
    exit: Exit | None = None
    ours: bool = False


@dataclass
class Host:
    """A host, its supervisor and its task."""

    name: str
    node: Peer | None = None
    up: bool = True
    frozen: bool = False
    life: int = 0  # number of its supervisor; events for an earlier one are dropped
    dialling: str = ""
    task: Task | None = None
    held_snapshot: Snapshot | None = None
    live: Snapshot | None = None
    last_order: DesiredState | None = None
    result: JobResult | None = None
    done: bool = False
    left_at: float = 0.0  # when the earlier job left the host, if the job is queued
    claimed: bool = False  # the host is locked for a queued job
    resumed: bool = False  # its first supervisor was killed
    ends: list[tuple[int, str, Exit]] = field(default_factory=list)  # attempt, task, exit of tasks past their gate
    timer: int = 0


@dataclass
class Link:
    """A connection; `dialler` is the side that follows or seeks."""

    dialler: str
    other: str
    heard: dict[str, float]
    open: bool = True
    waiting: list[tuple[str, object]] = field(default_factory=list)


class World:
    """A job on hosts that fail.

    Args:
        seed: Seed of everything that is random.
        count: Number of hosts.
        policy: Policy of the job.
        spares: Number of hosts without a task at first.
        tasks: The first task of each host, empty for a spare; without them: each host's name.
        later: Number of hosts that do not exist at first, and may join.
        queued_s: About when the earlier job ends for which the job waits; 0: it waits for none.
    """

    def __init__(
        self,
        seed: int,
        count: int,
        policy: Policy,
        spares: int = 0,
        tasks: tuple[str, ...] = (),
        later: int = 0,
        queued_s: float = 0.0,
    ) -> None:
        self.random = random.Random(seed)
        self.now = 1000.0
        self.blocked: dict[frozenset[str], float] = {}
        self.healed: dict[frozenset[str], float] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.away: dict[tuple[str, str], float] = {}  # (host, lost peer): until when the peer may come back
        self.trace: list[str] = []
        self.lifetime_end: float | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        names = [f"worker-{n}" for n in range(count)]
        tasks = tasks or (*names[: count - spares], *[""] * spares)
        members = tuple(
            Member(name, task, f"10.0.0.{n + 2}", 2222 + n, 4000 + n)
            for n, (name, task) in enumerate(zip(names, tasks, strict=True))
        )
        joinable = tuple(f"worker-{n}" for n in range(count, count + later))
        absent = tuple(Member(name, "", "", 0, 0) for name in joinable)
        everyone = (*members, *absent)
        self.terms = JobTerms("job", everyone, policy, join_timeout_s=30.0, joinable=joinable, queued=queued_s > 0)
        self.hosts = {name: Host(name) for name in names}
        self.ports = itertools.count(3000)
        self.work_s = self.random.choice([2.0, 20.0, 60.0])
        self.ports_taken = 0.03  # how often a task finds that another program has its port
        self.attempts: dict[int, dict[str, Snapshot | None]] = {}
        for host in self.hosts.values():
            slot = Slot(SlotStatus(host.name, 1, 2222, facts=HEALTHY), work=Work(restored=True))
            host.claimed = not queued_s
            if queued_s:
                slot = reconciler.queued(slot)
                host.left_at = self.now + queued_s + self.random.uniform(0.0, 3.0)
            self.at(self.random.random() * 0.2, self._birth(host, slot))
        self.hosts.update({name: Host(name, up=False) for name in joinable})

    # --- time -----------------------------------------------------------------------------------------------------

    def at(self, seconds: float, call: Callable[[], None]) -> None:
        """Call a function after this number of seconds."""
        heapq.heappush(self._queue, (self.now + seconds, next(self._count), call))

    def run(self, until_s: float) -> None:
        """Run the simulation for this time, or until all hosts are done."""
        end, turns = self.now + until_s, 0
        while self._queue and self._queue[0][0] <= end and not self.over:
            when, _, call = heapq.heappop(self._queue)
            self.now = max(self.now, when)
            call()
            turns += 1
            if turns > 400_000:
                raise BrokenPropertyError("no end of turns")
        self.now = end if not self.over else self.now

    @property
    def over(self) -> bool:
        """Return whether all hosts are done or down."""
        return all(host.done or not host.up for host in self.hosts.values())

    def say(self, text: str) -> None:
        """Add a line to the trace of the history."""
        self.trace.append(f"{self.now - 1000:8.3f} {text}")

    def terms_of(self, host: Host) -> JobTerms:
        """Return the terms as they are committed on a host, which knows its own address."""
        slots = [slot._replace(address="10.0.1.2") if slot.slot == host.name else slot for slot in self.terms.slots]
        return self.terms._replace(slots=tuple(slots)) if host.name in self.terms.joinable else self.terms

    # --- supervisors ----------------------------------------------------------------------------------------------

    def _birth(self, host: Host, slot: Slot) -> Callable[[], None]:
        def born() -> None:
            if host.up:
                node, actions = election.begin(self.terms, host.name, slot, self.now)
                if slot.status.queued:
                    self._later(host)(max(0.0, host.left_at - self.now), Unqueued())
                self._turn(host, node, actions)
                self._pulse(host, host.life)
                self._hold(host, host.held_snapshot)
                self.announce(host, end_at=self.lifetime_end)

        return born

    def feed(self, host: Host, event: election.PeerEvent) -> None:
        """Pass an event to a supervisor."""
        if host.node is None or not host.up or host.done:
            return
        if host.frozen:
            life = host.life
            self.at(0.5, lambda: self.feed(host, event) if host.life == life else None)
            return
        node, actions = election.step(host.node, event, self.now)
        self._turn(host, node, actions)

    def announce(self, host: Host, **changes: object) -> None:
        """Announce changes of a host by its cloud; a frozen supervisor reads them later."""
        if host.frozen:
            self._announce_later(host, 0.5, **changes)
        elif host.node is not None:
            fields = {name: getattr(host.node.slot.status, name) for name in HostAnnounced._fields}
            self.feed(host, HostAnnounced(**{**fields, **changes}))

    def _announce_later(self, host: Host, seconds: float, **changes: object) -> None:
        life = host.life
        self.at(seconds, lambda: self.announce(host, **changes) if host.life == life else None)

    def _turn(self, host: Host, node: Peer, actions: list[election.PeerAction]) -> None:
        host.node = node
        if node.slot.desired is not None:
            host.last_order = node.slot.desired
        for action in actions:
            self._do(host, action)
        self._set_timer(host)
        self._check()

    def _set_timer(self, host: Host) -> None:
        host.timer += 1
        due = election.deadline(host.node, self.now) if host.node is not None else None
        if due is None:
            return
        timer = host.timer

        def ring() -> None:
            if host.timer == timer:
                self.feed(host, DeadlineReached())

        self.at(max(0.0, due - self.now) + 0.001, ring)

    def _pulse(self, host: Host, life: int) -> None:
        if host.life != life or host.done or not host.up:
            return
        task = host.task
        if task is not None and task.gone and task.exit is None:
            idle = task.frozen or self._serves(task) or self._peers_stuck(task)
            self.feed(host, TaskActivity(task.attempt, 60.0 if idle else 0.0, 60.0 if idle else 0.0, True))
        self.at(PULSE_S, lambda: self._pulse(host, life))

    def _do(self, host: Host, action: election.PeerAction) -> None:
        if isinstance(action, SendMessage):
            self._send(host.name, action.slot, action.message)
        elif isinstance(action, Dial):
            host.dialling = action.slot
            self._dial(host, host.life, 0.01)
        elif isinstance(action, ProbePeer):
            self._probe(host, action)
        elif isinstance(action, Finish):
            self._finish(host, action.result)
        elif isinstance(action, (Spawn, OpenGate, InspectTask, EndTask)):
            self._do_with_task(host, action)
        else:
            self._make_ready(host, action)

    def _later(self, host: Host) -> Callable[[float, election.PeerEvent], None]:
        life = host.life

        def later(seconds: float, event: election.PeerEvent) -> None:
            self.at(seconds, lambda: self.feed(host, event) if host.life == life else None)

        return later

    def _make_ready(self, host: Host, action: election.PeerAction) -> None:
        life, later, quick = host.life, self._later(host), self.random.uniform(0.001, 0.05)
        if isinstance(action, Claim):
            self._claim(host, action, later)
        elif isinstance(action, Reserve):
            later(quick, Reserved(action.attempt, next(self.ports)))
        elif isinstance(action, RestoreCheckpoint):
            self._restore(host, action)
        elif isinstance(action, FetchCheckpoint):
            self._fetch(host, action.snapshot, life)
        elif isinstance(action, ProbePorts):
            results = {o.slot: "" if self.reach(host.name, o.slot) else "timed out" for o in action.others}
            later(5.0 if any(results.values()) else quick, PortsProbed(action.attempt, results))

    def _claim(self, host: Host, action: Claim, later: Callable[[float, election.PeerEvent], None]) -> None:
        seconds = max(0.0, host.left_at - self.now) + self.random.choice([0.01, 0.1, 2.0])
        life = host.life

        def claim() -> None:
            host.claimed = host.claimed or host.life == life

        self.at(seconds, claim)
        port = next(self.ports) if action.attempt == 1 and not host.resumed else 0
        later(seconds, Claimed(action.attempt, port, HEALTHY))

    def _do_with_task(self, host: Host, action: Spawn | OpenGate | InspectTask | EndTask) -> None:
        if isinstance(action, Spawn):
            self._spawn(host, action, self._later(host))
        elif isinstance(action, OpenGate):
            self._open(host)
        elif isinstance(action, InspectTask):
            self._later(host)(0.02, TaskInspected(action.attempt, action.inspection, None))
        else:
            self._end_task(host, action)

    def _finish(self, host: Host, result: JobResult) -> None:
        self.say(f"{host.name} finishes: {result.outcome.value} {result.reason}")
        host.result = result
        if host.task is not None and host.task.alive:
            raise BrokenPropertyError(f"{host.name} finished before its task")
        life = host.life
        leads = host.node is not None and host.node.leader == host.name
        if not leads:
            self._leave(host)
            return
        self.at(LINK_TIMEOUT_S + 5.0, lambda: self._leave(host) if host.life == life and not host.done else None)

    def _leave(self, host: Host) -> None:
        host.done = True
        self._hang_up_all(host)
        for other in self.hosts.values():
            is_informed = other.node is not None and other.result is not None and not other.done
            if is_informed and not any(other.name in pair for pair, link in self.links.items() if link.open):
                self._leave(other)

    # --- faults ---------------------------------------------------------------------------------------------------

    def kill_supervisor(self, host: Host) -> None:
        """Kill a supervisor (SIGKILL); its watchdog ends the processes and starts another supervisor."""
        if not host.up or host.done or host.node is None or host.result is not None:
            return
        self.say(f"supervisor of {host.name} killed")
        slot, last = host.node.slot, host.last_order
        host.life += 1
        host.timer += 1
        host.frozen = False
        host.node = None
        self._hang_up_all(host)
        if host.task is not None and host.task.alive:
            self._exit(host, host.task, Exit(signal=9), quiet=True)
            host.task.alive = False
        life = host.life

        def again() -> None:
            if host.life != life or not host.up or last is None:
                return
            fresh = Slot(SlotStatus(host.name, slot.attempt, facts=HEALTHY))
            reason = Reason(f"the agent of {host.name} was killed", ReasonKind.AGENT_KILLED)
            node, actions = election.resume(self.terms_of(host), host.name, fresh, last, reason, self.now)
            host.resumed = True
            if node.slot.status.queued:
                self._later(host)(max(0.0, host.left_at - self.now), Unqueued())
            self._turn(host, node, actions)
            self._pulse(host, life)
            self._hold(host, host.held_snapshot)
            self.announce(host, end_at=self.lifetime_end)

        self.at(0.3, again)

    def freeze_supervisor(self, host: Host) -> None:
        """Freeze a supervisor (SIGSTOP); its watchdog notices after a delay."""
        if not host.up or host.done or host.frozen or host.node is None:
            return
        self.say(f"supervisor of {host.name} frozen")
        host.frozen = True
        life = host.life
        self.at(WATCHDOG_S, lambda: self.kill_supervisor(host) if host.life == life and host.frozen else None)

    def kill_host(self, host: Host) -> None:
        """Remove a host, with everything that runs on it."""
        if not host.up or host.done:
            return
        self.say(f"{host.name} is gone")
        host.up = False
        host.life += 1
        if host.task is not None:
            host.task.alive = False
        self._peers_notice(host)

    def preempt(self, host: Host, back_s: float) -> None:
        """Preempt a host after the notice of the cloud; replace it `back_s` seconds after that."""
        if not host.up or host.done:
            return
        self.say(f"{host.name} is being preempted")
        self.announce(host, preempted=True)

        def taken() -> None:
            if host.up:
                self.kill_host(host)
                self.at(back_s, lambda: self.replace(host))

        self.at(NOTICE_S, taken)

    def replace(self, host: Host) -> None:
        """Replace a host that is gone by a new one with the same name, invited by a host that still runs the job."""
        if host.up:
            return
        if not any(
            peer.up and not peer.done and peer.result is None and peer.node is not None for peer in self._others(host)
        ):
            return
        self.say(f"{host.name} is replaced")
        self._hang_up_all(host)
        host.up, host.life, host.timer = True, host.life + 1, host.timer + 1
        host.frozen, host.dialling, host.task, host.claimed = False, "", None, True
        host.node = host.held_snapshot = host.live = host.last_order = host.result = None
        fresh = Slot(SlotStatus(host.name, facts=HEALTHY, address="10.0.1.2"))
        node, actions = election.join(self.terms_of(host), host.name, fresh, self.now)
        self._turn(host, node, actions)
        self._pulse(host, host.life)
        self.announce(host, end_at=self.lifetime_end)

    def end_lifetime(self, in_s: float) -> None:
        """Schedule the end of the lifetime of all hosts; an earlier one is replaced."""
        self.lifetime_end = end = self.now + in_s
        self.say(f"the lifetime ends in {in_s:.1f} s")
        for host in self.hosts.values():
            self._announce_later(host, self.random.uniform(0.0, 1.0), end_at=end)
        self.at(in_s - 5.0, lambda: self._check_lifetime(end))

    def _check_lifetime(self, end: float) -> None:
        """Check that no task takes a step shortly before hosts power off."""
        for host in self.hosts.values() if end == self.lifetime_end else ():
            if host.up and host.task is not None and host.task.alive and host.task.exit is None:
                raise BrokenPropertyError(f"{host.name} still runs {host.task.name} at the end of its lifetime")

    def _others(self, host: Host) -> list[Host]:
        return [other for other in self.hosts.values() if other is not host]

    def kill_task(self, host: Host, ended: Exit) -> None:
        """End the process of a task."""
        if host.up and host.task is not None and host.task.alive and host.task.exit is None:
            self.say(f"task of {host.name}: {ended}")
            self._exit(host, host.task, ended)

    def freeze_task(self, host: Host) -> None:
        """Stop a task (SIGSTOP), and continue it (SIGCONT) 120 s later."""
        task = host.task
        if host.up and task is not None and task.alive:
            self.say(f"task of {host.name} frozen")
            task.frozen = True
            self.at(120.0, lambda: setattr(task, "frozen", False))

    def block(self, first: str, second: str, seconds: float) -> None:
        """Drop all packets between two hosts for `seconds`."""
        pair = frozenset((first, second))
        self.say(f"{first} | {second} for {seconds:.1f} s")
        self.blocked[pair] = max(self.blocked.get(pair, 0.0), self.now + seconds)
        self.at(seconds + 0.001, lambda: self._heal(pair))

    def _heal(self, pair: frozenset[str]) -> None:
        if self.now >= self.blocked.get(pair, 0.0):
            self.blocked.pop(pair, None)
            self.healed[pair] = self.now

    def reach(self, first: str, second: str) -> bool:
        """Return whether packets pass between two hosts."""
        return self.hosts[second].up and self.hosts[first].up and frozenset((first, second)) not in self.blocked

    # --- links ----------------------------------------------------------------------------------------------------

    def _dial(self, host: Host, life: int, pause_s: float) -> None:
        target = host.dialling

        def attempt() -> None:
            if host.life != life or host.dialling != target or host.done:
                return
            link = self.links.get((host.name, target))
            if link is not None and link.open:
                return
            other = self.hosts[target]
            ready = self.reach(host.name, target) and not host.frozen and not other.frozen
            if ready and other.node is not None and not other.done:
                self._connect(host, other)
            else:
                self._dial(host, life, min(1.0, pause_s * 2))

        for (dialler, other_name), link in self.links.items():
            if dialler == host.name and other_name != target and link.open:
                self._break(link, by=host.name)
                self._part(host, life, other_name)
        self.at(pause_s, attempt)

    def _part(self, host: Host, life: int, other: str) -> None:
        self.at(0.0, lambda: self.feed(host, PeerLost(other, "")) if host.life == life else None)

    def _connect(self, host: Host, other: Host) -> None:
        link = Link(host.name, other.name, {host.name: self.now, other.name: self.now})
        self.links[(host.name, other.name)] = link
        for near, far in ((host, other), (other, host)):
            self.away.pop((near.name, far.name), None)
            self.feed(near, PeerConnected(far.name))
        self._listen(link)

    def _listen(self, link: Link) -> None:
        """Update the time of the last heartbeat, deliver waiting messages, and break a silent connection."""
        if not link.open:
            return
        ends = (self.hosts[link.dialler], self.hosts[link.other])
        if self.reach(link.dialler, link.other):
            for near, far in (ends, ends[::-1]):
                if not far.frozen and far.node is not None and far.up:
                    link.heard[near.name] = self.now
            waiting, link.waiting = link.waiting, []
            for receiver, message in waiting:
                self._deliver(link, receiver, message)
        for near, far in (ends, ends[::-1]):
            if link.open and near.up and not near.frozen and self.now - link.heard[near.name] > 0.8 * LINK_TIMEOUT_S:
                self._break(link, by=near.name)
                self._down(near, far, "its agent was silent for 10 s")
        if link.open:
            self.at(0.5, lambda: self._listen(link))

    def _send(self, sender: str, receiver: str, message: object) -> None:
        both = [self.links.get(pair) for pair in ((sender, receiver), (receiver, sender))]
        link = next((candidate for candidate in both if candidate is not None and candidate.open), None)
        if link is not None:
            link.waiting.append((receiver, message))
            self.at(self.random.uniform(0.0005, 0.02), lambda: self._pass(link))

    def _pass(self, link: Link) -> None:
        while link.open and link.waiting and self.reach(link.dialler, link.other):
            receiver, message = link.waiting.pop(0)
            self._deliver(link, receiver, message)

    def _deliver(self, link: Link, receiver: str, message: object) -> None:
        sender = link.dialler if receiver == link.other else link.other
        if link.open:
            self.feed(self.hosts[receiver], MessageReceived(sender, message))  # type: ignore[arg-type]

    def _break(self, link: Link, by: str) -> None:
        """Close a connection; a side that did not close it waits for it to come back."""
        if not link.open:
            return
        link.open = False
        for near, far in ((link.dialler, link.other), (link.other, link.dialler)):
            if near != by and self.hosts[near].up:
                self._miss(self.hosts[near], self.hosts[far], link.heard[near] + LINK_TIMEOUT_S)

    def _miss(self, host: Host, other: Host, until: float) -> None:
        self.away[(host.name, other.name)] = until
        if host.dialling == other.name and not host.done:
            self._dial(host, host.life, 0.05)

        def over() -> None:
            if self.away.get((host.name, other.name)) == until:
                del self.away[(host.name, other.name)]
                self._down(host, other, "its connection broke")

        self.at(max(0.0, until - self.now), over)

    def _down(self, host: Host, other: Host, reason: str) -> None:
        self.feed(host, PeerLost(other.name, reason))

    def _hang_up_all(self, host: Host) -> None:
        for link in list(self.links.values()):
            if host.name in (link.dialler, link.other):
                self._break(link, by=host.name)
        for pair in [pair for pair in self.away if pair[0] == host.name]:
            del self.away[pair]

    def _probe(self, host: Host, action: ProbePeer) -> None:
        other = self.hosts[action.slot]
        if self.reach(host.name, action.slot) and other.node is not None and not other.done:
            self.at(0.02, lambda: self.feed(other, MessageReceived(host.name, action.message)))

    # --- tasks ----------------------------------------------------------------------------------------------------

    def _spawn(self, host: Host, action: Spawn, later: Callable[[float, election.PeerEvent], None]) -> None:
        if host.task is not None and host.task.alive:
            raise BrokenPropertyError(f"{host.name} spawned twice")
        if not host.claimed:
            raise BrokenPropertyError(f"{host.name} spawned without its host")
        host.task = Task(action.attempt, action.task, host.live)
        self.say(f"{host.name} spawns attempt {action.attempt} as {action.task} at {host.live}")
        workers, most = count_workers(member.task for member in action.members), self.terms.policy.max_workers
        if workers > max(most, count_workers(self.terms.tasks)):
            raise BrokenPropertyError(f"attempt {action.attempt} has {workers} workers")
        snapshots = self.attempts.setdefault(action.attempt, {})
        snapshots[host.name] = host.live
        later(self.random.uniform(0.01, 0.4), HeldAtGate(action.attempt))

    def _open(self, host: Host) -> None:
        task = host.task
        if task is None or not task.alive:
            return
        task.gone = True
        self.say(f"{host.name} goes, attempt {task.attempt}")
        if self.random.random() < self.ports_taken:
            self.at(0.5, lambda: self._exit(host, task, Exit(code=1)) if task.alive and not task.exit else None)
            return
        self._work(host, task, math.inf if self._serves(task) else self.work_s)

    def _serves(self, task: Task) -> bool:
        """Return whether a task never ends by itself, as evaluators, servers and tasks that receive their work."""
        kind = task.name.rpartition("-")[0]
        return kind in ("ps", "evaluator") or (kind == "worker" and is_coordinated(self.terms.tasks))

    def _work(self, host: Host, task: Task, left_s: float) -> None:
        part = min(1.0, left_s)

        def worked() -> None:
            if not task.alive or task.exit is not None or not host.up:
                return
            if task.frozen or self._peers_stuck(task):
                self._work(host, task, left_s)
                return
            if task.name == self.terms.tasks[0] and self.random.random() < 0.3:
                last = host.held_snapshot
                number = last.number + 1 if last is not None and last.attempt == task.attempt else 1
                self._hold(host, Snapshot(task.attempt, number, f"{host.name}-{task.attempt}-{number}"))
            if left_s - part <= 0:
                self._exit(host, task, Exit(code=0))
            else:
                self._work(host, task, left_s - part)

        self.at(part * self.random.uniform(0.9, 1.1), worked)

    def _peers(self, task: Task) -> list[tuple[Host, Task]]:
        return [
            (host, host.task)
            for host in self.hosts.values()
            if host.task is not None and host.task.attempt == task.attempt and host.task is not task
            if not is_evaluator(host.task.name) and not is_evaluator(task.name)
        ]

    def _peers_stuck(self, task: Task) -> bool:
        """Return whether a collective operation of a task waits for a peer."""
        for host, other in self._peers(task):
            if not other.gone or other.frozen or (not other.alive and other.exit != Exit(code=0)) or not host.up:
                return True
        return False

    def _exit(self, host: Host, task: Task, ended: Exit, *, quiet: bool = False) -> None:
        if task.exit is not None:
            return
        task.exit = ended
        if task.gone:
            host.ends.append((task.attempt, task.name, ended))
        life = host.life
        if quiet:
            task.alive = False
        else:
            self.feed(host, Exited(task.attempt, ended))

            def closed() -> None:
                task.alive = False
                if host.life == life:
                    self.feed(host, Closed(task.attempt))

            self.at(self.random.choice([0.001, 0.02, 2.0]), closed)
        if ended != Exit(code=0) and task.gone:
            self._peers_notice(host)

    def _peers_notice(self, host: Host) -> None:
        if host.task is None or not host.task.gone:
            return
        for other, task in self._peers(host.task):
            if task.gone and self.random.random() < 0.7:  # the others hang
                delay = self.random.uniform(0.3, 20.0)
                self._later_collateral(delay, other, task)

    def _later_collateral(self, delay: float, host: Host, task: Task) -> None:
        self.at(delay, lambda: self._collateral(host, task))

    def _collateral(self, host: Host, task: Task) -> None:
        if host.up and task.alive and task.exit is None and not task.frozen:
            self._exit(host, task, Exit(code=1))

    def _end_task(self, host: Host, action: EndTask) -> None:
        task = host.task
        if task is None:
            return
        task.ours = True
        self.say(f"{host.name} ends its task with {action.grace_s} s")
        life = host.life
        heeds = self.random.random() < 0.3 and not task.frozen
        delay = self.random.uniform(0.0, action.grace_s) if heeds else action.grace_s
        ended = Exit(code=0) if heeds and task.gone and self.random.random() < 0.5 else Exit(signal=9)
        self.at(delay, lambda: self._exit(host, task, ended) if task.alive and host.life == life else None)

    # --- checkpoints ----------------------------------------------------------------------------------------------

    def _hold(self, host: Host, snapshot: Snapshot | None) -> None:
        host.held_snapshot = newest(host.held_snapshot, snapshot)
        source = Source(host.name, 1) if host.held_snapshot else None
        self.feed(host, CheckpointHeld(host.held_snapshot, source))

    def _fetch(self, host: Host, snapshot: Snapshot, life: int) -> None:
        def fetched() -> None:
            if host.life == life and self._offered(host, snapshot):
                self._hold(host, snapshot)

        self.at(self.random.uniform(0.1, 3.0), fetched)

    def _offered(self, host: Host, snapshot: Snapshot) -> bool:
        return any(
            other.held_snapshot == snapshot and (other is host or self.reach(host.name, other.name))
            for other in self.hosts.values()
            if other.up
        )

    def _restore(self, host: Host, action: RestoreCheckpoint) -> None:
        life = host.life

        def restored() -> None:
            if host.life != life:
                return
            if action.snapshot is not None and not self._offered(host, action.snapshot):
                self.feed(host, Failed(action.attempt, Reason("the checkpoint cannot be fetched")))
                return
            host.live = action.snapshot
            if action.snapshot is not None:
                self._hold(host, action.snapshot)
            self.feed(host, CheckpointRestored(action.attempt))

        self.at(self.random.uniform(0.01, 1.0), restored)

    # --- properties -----------------------------------------------------------------------------------------------

    def _check(self) -> None:
        alive = [
            (host, host.task)
            for host in self.hosts.values()
            if host.up and host.task is not None and host.task.alive and host.task.exit is None
        ]
        for (first, task), (second, second_task) in itertools.combinations(alive, 2):
            if task.name != second_task.name or not self.reach(first.name, second.name):
                continue
            healed = self.healed.get(frozenset((first.name, second.name)), 0.0)
            if self.now - healed > HEALED_S:
                raise BrokenPropertyError(f"{first.name} and {second.name} both run {task.name}")

    def check_end(self) -> None:
        """Check the properties that must hold at the end."""
        for host in self.hosts.values():
            if not host.up:
                continue
            if not host.done:
                raise BrokenPropertyError(f"{host.name} never ended: {host.node and host.node.mode}")
            if host.task is not None and host.task.alive:
                raise BrokenPropertyError(f"the task of {host.name} outlived the job")
            if host.result is not None and host.result.outcome is Outcome.SUCCEEDED:
                self._check_success(host.result)
        for attempt, held in self.attempts.items():
            gone = {name: held[name] for name in held if any(end[0] == attempt for end in self.hosts[name].ends)}
            if len(set(gone.values())) > 1 and not self.healed and not self.blocked:
                raise BrokenPropertyError(f"attempt {attempt} began at unequal checkpoints: {gone}")

    def _check_success(self, result: JobResult) -> None:
        good = {
            role
            for host in self.hosts.values()
            for attempt, role, ended in host.ends
            if attempt == result.attempt and ended == Exit(code=0)
        }
        workers = {role for role in good if role.startswith("worker-")}
        chief = {role for role in good if role == self.terms.tasks[0]}
        last = max((int(role.rpartition("-")[2]) for role in workers), default=-1)
        all_workers = self.terms.policy.success.value == "all-workers"
        if not chief or (all_workers and workers != {f"worker-{n}" for n in range(last + 1)}):
            raise BrokenPropertyError(f"success of attempt {result.attempt} with only {sorted(good)}")
        wanted = sum(role.startswith("worker-") for role in self.terms.tasks)
        if all_workers and len(workers) < min(wanted, self.terms.policy.min_workers or wanted):
            raise BrokenPropertyError(f"success with {len(workers)} workers")
