"""The rule of the gang, pure: nobody starts before all are ready and reach all, and the first failure ends all.

The chief's supervisor feeds events and carries out actions. Distributed TensorFlow hangs on a peer that is missing,
and a task that goes on alone trains something else, so there is nothing between all and none.
"""

import signal
from typing import Dict, FrozenSet, List, Mapping, NamedTuple, Optional, Tuple, Union

from train.agent import gate
from train.agent.cluster import called
from train.agent.gate import Facts
from train.agent.records import Exit, JobResult, Member, Outcome

# Beyond the grace period, for SIGKILL to work and the news to arrive.
STOP_MARGIN_S = 10.0
NOT_READY = "the hosts are not ready for the job"
# From the order to check until every agent has told what it found.
CHECK_TIMEOUT_S = 25.0


class Joined(NamedTuple):
    """The agent of `task` has proven that it knows the job's secret, and told of its host."""

    task: str
    facts: Facts


class Ready(NamedTuple):
    """The process of `task` waits at its gate."""

    task: str


class Checked(NamedTuple):
    """The agent of `task` visited the others' ports; `reached` has why one cannot be reached, empty where it can."""

    task: str
    reached: Mapping[str, str]


class Exited(NamedTuple):
    """The process of `task` ended; `reason` where its agent knows more than the exit tells."""

    task: str
    exit: Exit
    reason: str = ""


class LostPeer(NamedTuple):
    """The agent of `task` is gone, or was silent for too long; `reason` is a clause that says which."""

    task: str
    reason: str


class StopRequested(NamedTuple):
    """Somebody wants the job to end."""

    grace_s: float


class DeadlinePassed(NamedTuple):
    """The point in time that `Gang.deadline` named has come."""


Event = Union[Joined, Ready, Checked, Exited, LostPeer, StopRequested, DeadlinePassed]


class Check(NamedTuple):
    """Let each agent find out which of the others' ports it reaches."""


class Go(NamedTuple):
    """Open all gates."""

    warnings: Tuple[str, ...] = ()


class StopAll(NamedTuple):
    """End all tasks: TERM, `grace_s` seconds, KILL."""

    reason: str
    grace_s: float


class Finish(NamedTuple):
    """The job is over; when, the one who carries it out knows by his clock."""

    result: JobResult


Action = Union[Check, Go, StopAll, Finish]


class Gang(NamedTuple):
    """What is known of a job; `deadline` is when DeadlinePassed is due, by the clock of `now`."""

    job: str
    attempt: int
    members: Tuple[Member, ...]
    grace_s: float
    join_timeout_s: float
    deadline: Optional[float]
    checking: bool = False
    started: bool = False
    stopping: bool = False
    finished: bool = False
    ready: FrozenSet[str] = frozenset()
    facts: Dict[str, Facts] = {}  # noqa: RUF012 - never changed
    reached: Dict[str, Mapping[str, str]] = {}  # noqa: RUF012 - never changed
    gone: FrozenSet[str] = frozenset()  # lost, or never seen
    exits: Dict[str, Exit] = {}  # noqa: RUF012 - never changed
    outcome: Outcome = Outcome.SUCCEEDED
    first_task: str = ""
    reason: str = ""


Step = Tuple[Gang, List[Action]]


def form(
    job: str, attempt: int, members: Tuple[Member, ...], *, grace_s: float, join_timeout_s: float, now: float
) -> Gang:
    """A gang of which nobody has been heard yet."""
    return Gang(job, attempt, members, grace_s, join_timeout_s, deadline=now + join_timeout_s)


def describe_exit(task: str, ended: Exit) -> str:
    """``worker-1 was killed by SIGKILL``, or ``worker-1 exited with code 1``."""
    if ended.signal is None:
        return f"{task} exited with code {ended.code}"
    try:
        name = signal.Signals(ended.signal).name
    except ValueError:
        name = f"signal {ended.signal}"
    return f"{task} was killed by {name}"


def step(gang: Gang, event: Event, now: float) -> Step:
    """What becomes of the gang by `event`, and what is to be done.

    `now` is in seconds by any clock that never goes back. Events of unknown tasks, and all events after Finish,
    change nothing.
    """
    task = getattr(event, "task", "")
    if gang.finished or (task and task not in _tasks(gang)):
        return gang, []
    outcome: Step = (gang, [])
    if isinstance(event, Joined):
        outcome = _check_if_complete(gang._replace(facts={event.task: event.facts, **gang.facts}), now)
    elif isinstance(event, Ready):
        outcome = _check_if_complete(gang._replace(ready=gang.ready | {event.task}), now)
    elif isinstance(event, Checked):
        outcome = _checked(gang, event, now)
    elif isinstance(event, Exited):
        outcome = _exited(gang, event, now)
    elif isinstance(event, LostPeer):
        outcome = _lost(gang, event, now)
    elif isinstance(event, StopRequested):
        outcome = _stop(gang, Outcome.CANCELLED, "", "stopped on request", now, event.grace_s)
    elif isinstance(event, DeadlinePassed):
        outcome = _late(gang, now)
    return outcome


def _tasks(gang: Gang) -> List[str]:
    return [member.task for member in gang.members]


def _missing(gang: Gang) -> List[str]:
    return [task for task in _tasks(gang) if task not in gang.ready or task not in gang.facts]


def _check_if_complete(gang: Gang, now: float) -> Step:
    if gang.checking or gang.stopping or _missing(gang):
        return gang, []
    return gang._replace(checking=True, deadline=now + CHECK_TIMEOUT_S), [Check()]


def _checked(gang: Gang, event: Checked, now: float) -> Step:
    if not gang.checking or gang.started or gang.stopping or event.task in gang.reached:
        return gang, []
    gang = gang._replace(reached={**gang.reached, event.task: event.reached})
    return _judge(gang, now) if len(gang.reached) == len(gang.members) else (gang, [])


def _judge(gang: Gang, now: float) -> Step:
    pairs = {(source, task): why for source, found in gang.reached.items() for task, why in found.items()}
    problems, warnings, first = gate.verdict(gang.members, gang.facts, pairs)
    if problems:
        return _stop(gang, Outcome.FAILED, first, "\n".join(problems), now, gang.grace_s, told=NOT_READY)
    return gang._replace(started=True, deadline=None), [Go(warnings)]


def _exited(gang: Gang, event: Exited, now: float) -> Step:
    if event.task in gang.exits:
        return gang, []
    gang = gang._replace(exits={**gang.exits, event.task: event.exit})
    if gang.stopping:
        return _finish_if_over(gang)
    if not gang.started:
        reason = event.reason or f"{event.task} ended before the start"
        return _stop(gang, Outcome.FAILED, event.task, reason, now, gang.grace_s)
    if event.exit.code == 0 and not event.reason:
        return _finish_if_over(gang)
    reason = event.reason or describe_exit(event.task, event.exit)
    return _stop(gang, Outcome.FAILED, event.task, reason, now, gang.grace_s)


def _lost(gang: Gang, event: LostPeer, now: float) -> Step:
    gang = gang._replace(gone=gang.gone | {event.task})
    if gang.stopping:
        return _finish_if_over(gang)
    if event.task in gang.exits:
        return gang, []
    reason = f"{called(gang.members, event.task)} was lost: {event.reason}"
    return _stop(gang, Outcome.FAILED, event.task, reason, now, gang.grace_s)


def _late(gang: Gang, now: float) -> Step:
    if gang.deadline is None or now < gang.deadline:
        return gang, []
    if gang.stopping:
        left = [task for task in _tasks(gang) if task not in gang.exits]
        return _finish_if_over(gang._replace(gone=gang.gone | set(left)))
    if gang.checking:
        return _judge(gang, now)
    missing = _missing(gang)
    names = ", ".join(called(gang.members, task) for task in missing)
    reason = f"{names} did not join within {gang.join_timeout_s:g} s; nothing was started"
    gang = gang._replace(gone=gang.gone | set(missing))
    return _stop(gang, Outcome.FAILED, missing[0], reason, now, gang.grace_s)


def _stop(gang: Gang, outcome: Outcome, first: str, reason: str, now: float, grace_s: float, told: str = "") -> Step:
    # What all are told while they stop is short where the reason is long.
    if gang.stopping:
        return gang, []
    gang = gang._replace(
        stopping=True, outcome=outcome, first_task=first, reason=reason, deadline=now + grace_s + STOP_MARGIN_S
    )
    gang, actions = _finish_if_over(gang)
    return gang, [StopAll(told or reason, grace_s), *actions]


def _finish_if_over(gang: Gang) -> Step:
    if any(task not in gang.exits and task not in gang.gone for task in _tasks(gang)):
        return gang, []
    result = JobResult(
        gang.job, gang.attempt, gang.outcome, 0.0, gang.first_task, gang.reason, dict(gang.exits), gang.started
    )
    return gang._replace(finished=True, deadline=None), [Finish(result)]
