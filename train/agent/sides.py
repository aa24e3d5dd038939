"""Both sides of a gang, as a supervisor plays them: the chief decides, the others report and obey."""

import socket
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Protocol, Sequence, Tuple

from train.agent import gang
from train.agent.cluster import called, chief_of
from train.agent.gate import Facts, read_facts
from train.agent.link import Message
from train.agent.loop import Loop
from train.agent.reach import Visits
from train.agent.records import Commit, Exit, JobResult, Outcome, decode, encode, to_dict
from train.agent.star import Bond, ChiefEnd, PeerEnd

# How much longer than the chief the others wait for a gang to be complete, so that the verdict is the chief's.
_CHIEF_FIRST_S = 5.0


class Orders(Protocol):
    """What a supervisor does when its gang says so."""

    def go(self, warnings: Sequence[str]) -> None:
        """Open the gate of the task; `warnings` are for the user."""

    def stop(self, reason: str, grace_s: float) -> None:
        """End the task: TERM, `grace_s` seconds, KILL."""

    def finish(self, result: JobResult) -> None:
        """The job is over."""

    def told(self) -> None:
        """Everybody who can be told knows the result."""


class Side(Protocol):
    """What a supervisor tells its gang."""

    def ready(self) -> None:
        """The task waits at its gate."""

    def exited(self, ended: Exit, reason: str) -> None:
        """The task ended."""

    def stop_requested(self, grace_s: float) -> None:
        """Somebody wants the job to end."""

    def close(self) -> None:
        """End all links."""


def bond_of(commit: Commit) -> Bond:
    """What the agents of this attempt have in common."""
    return Bond(commit.job, commit.attempt, bytes.fromhex(commit.secret), commit.link_timeout_s)


class ChiefSide:
    """Of the supervisor that leads the gang.

    Args:
        loop: In which it is served.
        commit: The job.
        listener: Where the other agents connect.
        orders: The supervisor.
        facts: What is known of this host.
    """

    def __init__(self, loop: Loop, commit: Commit, listener: socket.socket, orders: Orders, facts: Facts) -> None:
        self._loop = loop
        self._task = commit.task
        self._orders = orders
        self._facts = facts
        self._asked_at: Dict[str, float] = {}
        self._events: Deque[gang.Event] = deque()
        self._gang = gang.form(
            commit.job,
            commit.attempt,
            tuple(commit.members),
            grace_s=commit.grace_s,
            join_timeout_s=commit.join_timeout_s,
            now=time.monotonic(),
        )
        self._visits = _visits(loop, commit, lambda found: self._feed(gang.Checked(commit.task, found)))
        others = {member.task for member in commit.members} - {commit.task}
        self._links = ChiefEnd(
            loop,
            listener,
            bond_of(commit),
            others,
            on_join=self._ask,
            on_message=self._heard,
            on_loss=self._lost,
        )
        self._set_timer()

    def ready(self) -> None:
        """The task waits at its gate."""
        self._feed(gang.Joined(self._task, self._facts))
        self._feed(gang.Ready(self._task))

    def exited(self, ended: Exit, reason: str) -> None:
        """The task ended."""
        self._feed(gang.Exited(self._task, ended, reason))

    def stop_requested(self, grace_s: float) -> None:
        """Somebody wants the job to end."""
        self._feed(gang.StopRequested(grace_s))

    def close(self) -> None:
        """End all links."""
        self._visits.close()
        self._links.close()

    def _ask(self, task: str) -> None:
        self._asked_at[task] = time.time()
        self._links.send(task, {"tell": 1})

    def _learn(self, task: str, told: Dict[str, Any]) -> None:
        # The other clock was read about half-way between our question and now.
        between = (self._asked_at.get(task, 0.0) + time.time()) / 2
        self._feed(gang.Joined(task, read_facts(told, float(told["clock"]) - between)))

    def _heard(self, task: str, message: Message) -> None:
        if "ready" in message:
            self._feed(gang.Ready(task))
        elif "facts" in message:
            self._learn(task, message["facts"])
        elif "reached" in message:
            self._feed(gang.Checked(task, message["reached"]))
        elif "exited" in message:
            code, number, reason = message["exited"]
            self._feed(gang.Exited(task, Exit(code, number), reason))
        elif "stop" in message:
            self._feed(gang.StopRequested(float(message["stop"])))

    def _lost(self, task: str, reason: str) -> None:
        self._feed(gang.LostPeer(task, reason))
        self._look_if_learn()

    def _look_if_learn(self) -> None:
        # The others hang up when they have the result.
        if self._gang.finished and not self._links.connected:
            self._orders.told()

    def _feed(self, event: gang.Event) -> None:
        # An action may itself lead to an event, as when a link breaks under a broadcast: one after the other.
        self._events.append(event)
        if len(self._events) > 1:
            return
        while self._events:
            self._gang, actions = gang.step(self._gang, self._events[0], time.monotonic())
            self._set_timer()
            for action in actions:
                self._carry_out(action)
            self._events.popleft()

    def _set_timer(self) -> None:
        if self._gang.deadline is None:
            self._loop.cancel("gang")
        else:
            left = self._gang.deadline - time.monotonic()
            self._loop.after("gang", max(0.0, left), lambda: self._feed(gang.DeadlinePassed()))

    def _carry_out(self, action: gang.Action) -> None:
        # The others first: what goes over the network takes longer than what stays here.
        if isinstance(action, gang.Check):
            self._links.broadcast({"check": 1})
            self._visits.begin()
        elif isinstance(action, gang.Go):
            self._links.broadcast({"go": 1, "warnings": action.warnings})
            self._orders.go(action.warnings)
        elif isinstance(action, gang.StopAll):
            self._visits.close()
            self._links.broadcast({"end": [action.reason, action.grace_s]})
            self._orders.stop(action.reason, action.grace_s)
        else:
            result = action.result._replace(at=time.time())
            self._links.broadcast({"result": encode(result).decode()})
            self._orders.finish(result)
            self._look_if_learn()


class PeerSide:
    """Of every other supervisor.

    Args:
        loop: In which it is served.
        commit: The job.
        orders: The supervisor.
        facts: What is known of this host.
    """

    def __init__(self, loop: Loop, commit: Commit, orders: Orders, facts: Facts) -> None:
        self._commit = commit
        self._orders = orders
        self._chief = chief_of(commit.members)
        self._unsaid: List[Message] = []
        self._exits: Dict[str, Exit] = {}
        self._verdict: Optional[Tuple[Outcome, str, str]] = None
        self._facts = facts
        self._started = False
        self._finished = False
        self._visits = _visits(loop, commit, lambda found: self._links.send({"reached": found}))
        self._links = PeerEnd(
            loop,
            self._chief,
            bond_of(commit),
            commit.task,
            commit.join_timeout_s + _CHIEF_FIRST_S,
            on_join=self._joined,
            on_message=self._heard,
            on_loss=self._lost,
        )

    def ready(self) -> None:
        """The task waits at its gate."""
        self._say({"ready": 1})

    def exited(self, ended: Exit, reason: str) -> None:
        """The task ended."""
        self._exits[self._commit.task] = ended
        self._say({"exited": [ended.code, ended.signal, reason]})
        self._finish_alone()

    def stop_requested(self, grace_s: float) -> None:
        """Somebody wants the job to end; without a link we can only end our own part of it."""
        if self._links.joined:
            self._links.send({"stop": grace_s})
        else:
            self._give_up(Outcome.CANCELLED, "", "stopped on request", grace_s)

    def close(self) -> None:
        """End the link."""
        self._visits.close()
        self._links.close()

    def _say(self, message: Message) -> None:
        if self._links.joined:
            self._links.send(message)
        else:
            self._unsaid.append(message)

    def _joined(self) -> None:
        for message in self._unsaid:
            self._links.send(message)
        self._unsaid.clear()

    def _heard(self, message: Message) -> None:
        if "tell" in message:
            self._links.send({"facts": {**to_dict(self._facts), "clock": time.time()}})
        elif "check" in message:
            self._visits.begin()
        elif "go" in message:
            self._started = True
            self._orders.go([str(one) for one in message["warnings"]])
        elif "end" in message:
            reason, grace_s = message["end"]
            self._visits.close()
            self._orders.stop(str(reason), float(grace_s))
        elif "result" in message:
            result = decode(message["result"])
            if isinstance(result, JobResult):
                self._finished = True
                self._links.close()
                self._orders.finish(result)
                self._orders.told()

    def _lost(self, reason: str) -> None:
        chief = called(self._commit.members, self._chief.task)
        self._give_up(Outcome.FAILED, self._chief.task, f"{chief} was lost: {reason}", self._commit.grace_s)

    def _give_up(self, outcome: Outcome, first: str, reason: str, grace_s: float) -> None:
        if self._finished or self._verdict is not None:
            return
        self._verdict = (outcome, first, reason)
        self.close()
        self._orders.stop(reason, grace_s)
        self._finish_alone()

    def _finish_alone(self) -> None:
        if self._verdict is None or not self._exits or self._finished:
            return
        self._finished = True
        outcome, first, reason = self._verdict
        job, attempt = self._commit.job, self._commit.attempt
        exits = dict(self._exits)
        self._orders.finish(JobResult(job, attempt, outcome, time.time(), first, reason, exits, self._started))
        self._orders.told()


def _visits(loop: Loop, commit: Commit, on_done: Callable[[Dict[str, str]], None]) -> Visits:
    others = [member for member in commit.members if member.task != commit.task]
    return Visits(loop, bond_of(commit), commit.task, others, on_done)


def side_of(loop: Loop, commit: Commit, listener: socket.socket, orders: Orders, facts: Facts) -> Side:
    """The side that the supervisor of `commit.task` plays."""
    if chief_of(commit.members).task == commit.task:
        return ChiefSide(loop, commit, listener, orders, facts)
    listener.close()
    return PeerSide(loop, commit, orders, facts)
