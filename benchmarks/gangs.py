"""CPU time and messages of the agents of a large gang, from the commit to the result, without processes or network.

The state machines are those of the agents; a queue of messages replaces the network, and every action succeeds at
once. The time of the leader bounds the number of hosts that one leader can serve.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from train.agent.gang import election, reconciler
from train.agent.gang.readiness import Facts
from train.agent.gang.scheduling import Terms
from train.agent.gang.states import Message, SlotStatus, from_wire, to_wire
from train.agent.protocol.records import Exit, Member
from train.agent.protocol.session import decode_message, encode_message

FACTS = Facts({"python": "3.11.7", "tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}, [], 1 << 40)
LEADER = "worker-0"
REPORTS = 3
"""Reports of each host while the job runs; an agent sends one about every 2 s."""


@dataclass
class Cost:
    """The cost of a simulated job.

    Attributes:
        hosts: Number of hosts.
        leader_s: CPU time of the leader to start and end the job, in seconds.
        follower_s: CPU time of one of the other agents, in seconds.
        report_s: CPU time of the leader for one report of a running task, in seconds.
        messages: Number of messages to and from the leader.
        size: Bytes of these messages.
        probes: Number of ports that all agents probed.
    """

    hosts: int
    leader_s: float = 0.0
    follower_s: float = 0.0
    report_s: float = 0.0
    messages: int = 0
    size: int = 0
    probes: int = 0


@dataclass
class Simulation:
    """A gang of workers.

    Attributes:
        hosts: Number of workers, at least 2.
    """

    hosts: int
    _peers: dict[str, election.Peer] = field(default_factory=dict)
    _events: deque[tuple[str, Callable[[], election.PeerEvent]]] = field(default_factory=deque)
    _encoded: tuple[Message | None, bytes] = (None, b"")
    _clock: float = 1000.0

    def run(self) -> Cost:
        """Run a job to its end."""
        self._cost = Cost(self.hosts)
        self._begin()
        self._serve()
        started = self._cost.leader_s
        for _ in range(REPORTS):
            self._clock += 2.0
            self._feed_all(lambda: reconciler.TaskActivity(1, self._clock, 0.1, stepped=True))
        self._cost.report_s = (self._cost.leader_s - started) / (REPORTS * self.hosts)
        self._cost.leader_s = started
        self._feed_all(lambda: reconciler.Exited(1, Exit(code=0)))
        self._feed_all(lambda: reconciler.Closed(1))
        assert all(peer.slot.finished for peer in self._peers.values())
        self._cost.follower_s /= self.hosts - 1
        return self._cost

    def _begin(self) -> None:
        names = [f"worker-{index}" for index in range(self.hosts)]
        members = tuple(Member(name, name, f"10.0.{at >> 8}.{at & 255}", 2222, 4000) for at, name in enumerate(names))
        terms = Terms("20261122-120000-abcd", members)
        for member in members:
            status = SlotStatus(member.slot, 1, member.port, facts=FACTS, address=member.address, link_port=4000)
            slot = reconciler.Slot(status, work=reconciler.Work(restored=True))
            self._take(member.slot, election.begin(terms, member.slot, slot, self._clock))

    def _feed_all(self, event: Callable[[], election.PeerEvent]) -> None:
        self._events.extend((name, event) for name in self._peers)
        self._serve()

    def _serve(self) -> None:
        while self._events:
            name, event = self._events.popleft()
            self._clock += 1e-6
            began = time.process_time()
            self._take(name, election.step(self._peers[name], event(), self._clock))
            self._count(name, time.process_time() - began)

    def _count(self, name: str, seconds: float) -> None:
        if name == LEADER:
            self._cost.leader_s += seconds
        else:
            self._cost.follower_s += seconds

    def _take(self, name: str, step: election.Step) -> None:
        self._peers[name], actions = step
        texts = [self._encode(action.message) for action in actions if isinstance(action, election.SendMessage)]
        self._cost.messages += len(texts)
        self._cost.size += sum(map(len, texts))
        sent = iter(texts)
        for action in actions:
            if isinstance(action, election.SendMessage):
                self._deliver(action.slot, name, next(sent))
            else:
                self._perform(name, action)

    def _encode(self, message: Message) -> bytes:
        if message is not self._encoded[0]:  # encoded once for all slots, as by the supervisor
            self._encoded = message, encode_message(to_wire(message))
        return self._encoded[1]

    def _deliver(self, receiver: str, sender: str, text: bytes) -> None:
        def received() -> election.PeerEvent:
            message = from_wire(decode_message(text))
            assert message is not None
            return election.MessageReceived(sender, message)

        self._events.append((receiver, received))

    def _perform(self, name: str, action: election.PeerAction) -> None:
        event: election.PeerEvent
        if isinstance(action, election.Dial):
            leader = action.slot
            self._events.append((leader, lambda: election.PeerConnected(name)))
            event = election.PeerConnected(leader)
        elif isinstance(action, reconciler.Restore):
            event = reconciler.Restored(action.attempt)
        elif isinstance(action, reconciler.Spawn):
            event = reconciler.HeldAtGate(action.attempt)
        elif isinstance(action, reconciler.ProbePorts):
            self._cost.probes += len(action.others)
            event = reconciler.PortsProbed(action.attempt, {member.slot: "" for member in action.others})
        else:
            return
        self._events.append((name, lambda: event))


if __name__ == "__main__":
    for count in map(int, sys.argv[1:]):
        print(Simulation(count).run(), flush=True)
