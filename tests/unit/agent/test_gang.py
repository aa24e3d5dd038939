from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from train.agent import gang
from train.agent.gang import (
    CHECK_TIMEOUT_S,
    NOT_READY,
    STOP_MARGIN_S,
    Action,
    Check,
    Checked,
    DeadlinePassed,
    Event,
    Exited,
    Finish,
    Gang,
    Go,
    Joined,
    LostPeer,
    Ready,
    StopAll,
    StopRequested,
)
from train.agent.gate import TIMED_OUT, Facts
from train.agent.records import Exit, Member, Outcome

DONE = Exit(code=0)
HEALTHY = Facts({"python": "3.11.7", "tensorflow": "2.21.0"}, [], 1 << 40)
OLD = HEALTHY._replace(versions={"python": "3.11.7", "tensorflow": "2.19.1"})


def gang_of(count: int) -> Gang:
    members = tuple(Member(f"worker-{n}", f"10.0.0.{n + 2}", 2222, 4000) for n in range(count))
    return gang.form("job", 1, members, grace_s=10, join_timeout_s=60, now=100.0)


def play(state: Gang, *events: Event, now: float = 101.0) -> tuple[Gang, list[Action]]:
    actions: list[Action] = []
    for event in events:
        state, more = gang.step(state, event, now)
        actions += more
    return state, actions


def names(count: int) -> list[str]:
    return [f"worker-{n}" for n in range(count)]


def all_reached(task: str, count: int) -> Checked:
    return Checked(task, {other: "" for other in names(count) if other != task})


def joined(count: int, facts: Facts = HEALTHY) -> Gang:
    """A gang that checks who reaches whom."""
    events = [event for task in names(count) for event in (Joined(task, facts), Ready(task))]
    state, actions = play(gang_of(count), *events)
    assert actions == [Check()]
    return state


def ready(count: int) -> Gang:
    """A gang that has started."""
    state, actions = play(joined(count), *[all_reached(task, count) for task in names(count)])
    assert actions == [Go()]
    return state


def finish(actions: list[Action]) -> Finish:
    found = [action for action in actions if isinstance(action, Finish)]
    assert len(found) == 1
    return found[0]


def test_nobody_goes_before_all_are_ready_and_every_pair_is_proven() -> None:
    state, actions = play(gang_of(2), Joined("worker-0", HEALTHY), Ready("worker-0"), Ready("worker-1"))
    assert actions == []
    assert state.deadline == 160.0
    state, actions = play(state, all_reached("worker-0", 2), Joined("worker-1", HEALTHY))
    assert actions == [Check()]  # what was told before the order counts for nothing
    assert state.deadline == 101.0 + CHECK_TIMEOUT_S
    state, actions = play(state, all_reached("worker-0", 2), Joined("worker-1", HEALTHY), Ready("worker-1"))
    assert actions == []
    state, actions = play(state, all_reached("worker-1", 2))
    assert actions == [Go()]
    assert state.deadline is None


def test_a_gang_of_one() -> None:
    state, actions = play(ready(1), Exited("worker-0", DONE))
    result = finish(actions).result
    assert (result.outcome, result.exits, result.started) == (Outcome.SUCCEEDED, {"worker-0": DONE}, True)
    assert state.finished


def test_a_pair_that_is_blocked_starts_nothing_and_is_named_with_both_ends() -> None:
    state, actions = play(joined(2), Checked("worker-1", {"worker-0": TIMED_OUT}), all_reached("worker-0", 2))
    reason = (
        "worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; "
        "open TCP port 2222 between the hosts (all TCP among the hosts of the fleet)"
    )
    assert actions == [StopAll(NOT_READY, 10)]
    _, actions = play(state, *[Exited(task, Exit(signal=15)) for task in names(2)])
    result = finish(actions).result
    assert (result.outcome, result.first_task, result.reason) == (Outcome.FAILED, "worker-0", reason)
    assert not result.started


def test_hosts_that_do_not_fit_together_start_nothing() -> None:
    events: list[Event] = [Joined("worker-0", HEALTHY), Joined("worker-1", OLD), *map(Ready, names(2))]
    events += [all_reached(task, 2) for task in names(2)]
    state, actions = play(gang_of(2), *events)
    assert actions == [Check(), StopAll(NOT_READY, 10)]
    assert state.reason.startswith("TensorFlow differs: 2.21 on worker-0 (10.0.0.2), 2.19 on worker-1 (10.0.0.3);")


def test_warnings_come_with_the_start() -> None:
    late = HEALTHY._replace(ahead_s=-60.0)
    events: list[Event] = [Joined("worker-0", HEALTHY), Joined("worker-1", late), *map(Ready, names(2))]
    events += [all_reached(task, 2) for task in names(2)]
    _, actions = play(gang_of(2), *events)
    assert isinstance(actions[-1], Go)
    (warning,) = actions[-1].warnings
    assert warning.startswith("the clock of worker-0 (10.0.0.2) is 60 s ahead of that of worker-1 (10.0.0.3)")


def test_who_does_not_tell_what_it_reaches_is_named() -> None:
    state, _ = play(joined(2), all_reached("worker-0", 2))
    assert state.deadline is not None
    assert play(state, DeadlinePassed(), now=state.deadline - 0.1)[1] == []
    state, actions = play(state, DeadlinePassed(), now=state.deadline)
    assert actions == [StopAll(NOT_READY, 10)]
    assert state.reason.startswith("worker-1 (10.0.0.3) did not say in time which of the others it reaches")
    assert (state.first_task, state.started) == ("worker-1", False)


def test_a_stop_during_the_check_is_obeyed() -> None:
    state, actions = play(joined(2), StopRequested(3), *[all_reached(task, 2) for task in names(2)])
    assert actions == [StopAll("stopped on request", 3)]
    _, actions = play(state, *[Exited(task, Exit(signal=15)) for task in names(2)])
    assert (finish(actions).result.outcome, finish(actions).result.started) == (Outcome.CANCELLED, False)


def test_success_waits_for_the_last_exit() -> None:
    state, actions = play(ready(2), Exited("worker-1", DONE))
    assert actions == []
    _, actions = play(state, Exited("worker-0", DONE), now=200.0)
    assert finish(actions).result.outcome is Outcome.SUCCEEDED


def test_the_first_failure_is_the_cause_and_our_own_kills_are_not() -> None:
    state, actions = play(ready(3), Exited("worker-1", Exit(code=1)))
    assert actions == [StopAll("worker-1 exited with code 1", 10)]
    assert state.deadline == 101.0 + 10 + STOP_MARGIN_S
    state, actions = play(state, Exited("worker-0", Exit(signal=9)), Exited("worker-2", Exit(signal=15)))
    result = finish(actions).result
    assert (result.outcome, result.first_task, result.reason) == (
        Outcome.FAILED,
        "worker-1",
        "worker-1 exited with code 1",
    )
    assert result.exits["worker-0"] == Exit(signal=9)


def test_a_reason_of_the_agent_counts_even_with_a_clean_exit() -> None:
    _, actions = play(ready(1), Exited("worker-0", DONE, "worker-0's log cannot be written: No space left on device"))
    assert finish(actions).result.outcome is Outcome.FAILED


def test_signals_are_named() -> None:
    assert gang.describe_exit("worker-1", Exit(signal=9)) == "worker-1 was killed by SIGKILL"
    assert gang.describe_exit("worker-1", Exit(signal=63)) == "worker-1 was killed by signal 63"


def test_a_lost_peer_fails_the_job_and_is_not_waited_for() -> None:
    state, actions = play(ready(2), LostPeer("worker-1", "its agent was silent for 10 s"))
    reason = "worker-1 (10.0.0.3) was lost: its agent was silent for 10 s"
    assert actions == [StopAll(reason, 10)]
    _, actions = play(state, Exited("worker-0", Exit(signal=15)))
    result = finish(actions).result
    assert (result.first_task, result.reason) == ("worker-1", reason)


def test_an_agent_that_is_lost_after_the_clean_exit_of_its_task_fails_nothing() -> None:
    state, actions = play(ready(2), Exited("worker-1", DONE), LostPeer("worker-1", "its agent ended"))
    assert actions == []
    _, actions = play(state, Exited("worker-0", DONE))
    assert finish(actions).result.outcome is Outcome.SUCCEEDED


def test_who_does_not_join_in_time_is_named() -> None:
    here = [event for task in ("worker-0", "worker-2") for event in (Joined(task, HEALTHY), Ready(task))]
    state, actions = play(gang_of(3), *here)
    assert play(state, DeadlinePassed(), now=159.9)[1] == []
    state, actions = play(state, DeadlinePassed(), now=160.0)
    reason = "worker-1 (10.0.0.3) did not join within 60 s; nothing was started"
    assert actions == [StopAll(reason, 10)]
    _, actions = play(state, Exited("worker-0", Exit(signal=9)), Exited("worker-2", Exit(signal=9)))
    assert (finish(actions).result.first_task, finish(actions).result.reason) == ("worker-1", reason)
    assert not finish(actions).result.started


def test_a_stop_cancels_and_a_task_that_never_ends_is_not_waited_for() -> None:
    state, actions = play(ready(2), StopRequested(3), StopRequested(3), Exited("worker-0", DONE))
    assert actions == [StopAll("stopped on request", 3)]
    assert state.deadline is not None
    assert play(state, DeadlinePassed(), now=state.deadline - 0.1)[1] == []
    _, actions = play(state, DeadlinePassed(), now=state.deadline)
    result = finish(actions).result
    assert (result.outcome, result.exits) == (Outcome.CANCELLED, {"worker-0": DONE})


def test_after_the_finish_nothing_happens() -> None:
    state, _ = play(ready(1), Exited("worker-0", DONE))
    assert play(state, StopRequested(1), LostPeer("worker-0", "x"), DeadlinePassed(), now=1e9) == (state, [])


COUNT = 3
TASKS = st.sampled_from([f"worker-{n}" for n in range(COUNT)] + ["worker-99"])
EXITS = st.sampled_from([DONE, Exit(code=1), Exit(signal=9)])
FACTS = st.sampled_from([HEALTHY, HEALTHY, HEALTHY, OLD])
REACHED = st.dictionaries(TASKS, st.sampled_from(["", "", TIMED_OUT]), max_size=COUNT)
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Joined, TASKS, FACTS),
    st.builds(Ready, TASKS),
    st.builds(Checked, TASKS, REACHED),
    st.builds(Exited, TASKS, EXITS),
    st.builds(LostPeer, TASKS, st.just("its agent ended")),
    st.builds(StopRequested, st.just(1.0)),
    st.just(DeadlinePassed()),
)


# Histories that come as far as the check, and some beyond it, so that chance does not have to find the way.
BEGINNINGS: st.SearchStrategy[list[Event]] = st.sampled_from(
    [
        [],
        [event for task in names(COUNT) for event in (Joined(task, HEALTHY), Ready(task))],
        [
            *[event for task in names(COUNT) for event in (Joined(task, HEALTHY), Ready(task))],
            *[all_reached(task, COUNT) for task in names(COUNT - 1)],
        ],
        [
            *[event for task in names(COUNT) for event in (Joined(task, HEALTHY), Ready(task))],
            *[all_reached(task, COUNT) for task in names(COUNT)],
        ],
    ]
)


class Seen:
    """What an observer knows who hears the same events."""

    def __init__(self) -> None:
        self.facts: dict[str, Facts] = {}
        self.ready: set[str] = set()
        self.reached: dict[str, Checked] = {}
        self.asked = False

    def hear(self, event: Event) -> None:
        if isinstance(event, Joined):
            self.facts.setdefault(event.task, event.facts)
        elif isinstance(event, Ready):
            self.ready.add(event.task)
        elif isinstance(event, Checked) and self.asked:
            self.reached.setdefault(event.task, event)

    def all_is_proven(self) -> bool:
        tasks = set(names(COUNT))
        pairs = [(one, other) for one in tasks for other in tasks if one != other]
        return (
            self.ready >= tasks
            and len({self.facts[task] == OLD for task in tasks}) == 1
            and all(self.reached[one].reached[other] == "" for one, other in pairs)
        )


@given(BEGINNINGS, st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=20))
@settings(max_examples=700, deadline=None)
def test_whatever_the_order_of_events_a_gang_ends_once_and_rightly(
    beginning: list[Event], events: list[tuple[Event, float]]
) -> None:
    state, now = gang_of(COUNT), 100.0
    actions: list[Action] = []
    seen = Seen()
    for event, pause in [*[(event, 0.0) for event in beginning], *events]:
        now += pause
        state, more = gang.step(state, event, now)
        seen.hear(event)
        seen.asked = seen.asked or Check() in more
        if any(isinstance(action, Go) for action in more):
            assert seen.all_is_proven()
        actions += more
    # Whoever still runs ends by itself, or its deadline passes.
    for n in range(COUNT):
        state, more = gang.step(state, Exited(f"worker-{n}", DONE), now)
        actions += more
    if not state.finished:
        assert state.deadline is not None
        state, more = gang.step(state, DeadlinePassed(), state.deadline)
        actions += more
    result = finish(actions).result
    kinds = [type(action) for action in actions]
    assert kinds.count(Check) <= 1
    assert kinds.count(Go) <= 1
    assert kinds.count(StopAll) <= 1
    assert kinds[-1] is Finish
    assert result.started == (Go in kinds)
    if result.outcome is Outcome.SUCCEEDED:
        assert result.exits == {f"worker-{n}": DONE for n in range(COUNT)}
        assert Go in kinds
    else:
        assert result.reason
    if Go in kinds:
        assert kinds.index(Check) < kinds.index(Go)
        assert StopAll not in kinds or kinds.index(Go) < kinds.index(StopAll)
