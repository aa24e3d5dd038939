from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from train.agent import gang
from train.agent.gang import (
    STOP_MARGIN_S,
    Action,
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
from train.agent.records import Exit, Member, Outcome

DONE = Exit(code=0)


def gang_of(count: int) -> Gang:
    members = tuple(Member(f"worker-{n}", f"10.0.0.{n + 2}", 2222, 4000) for n in range(count))
    return gang.form("job", 1, members, grace_s=10, join_timeout_s=60, now=100.0)


def play(state: Gang, *events: Event, now: float = 101.0) -> tuple[Gang, list[Action]]:
    actions: list[Action] = []
    for event in events:
        state, more = gang.step(state, event, now)
        actions += more
    return state, actions


def ready(count: int) -> Gang:
    return play(gang_of(count), *[Ready(f"worker-{n}") for n in range(count)])[0]


def finish(actions: list[Action]) -> Finish:
    found = [action for action in actions if isinstance(action, Finish)]
    assert len(found) == 1
    return found[0]


def test_nobody_goes_before_all_are_ready() -> None:
    state, actions = play(gang_of(2), Joined("worker-0"), Ready("worker-0"), Joined("worker-1"))
    assert actions == []
    assert state.deadline == 160.0
    state, actions = play(state, Ready("worker-1"))
    assert actions == [Go()]
    assert state.deadline is None


def test_a_gang_of_one() -> None:
    state, actions = play(gang_of(1), Ready("worker-0"), Exited("worker-0", DONE))
    assert actions[0] == Go()
    result = finish(actions).result
    assert (result.outcome, result.exits) == (Outcome.SUCCEEDED, {"worker-0": DONE})
    assert state.finished


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
    state, actions = play(gang_of(3), Ready("worker-0"), Ready("worker-2"))
    assert play(state, DeadlinePassed(), now=159.9)[1] == []
    state, actions = play(state, DeadlinePassed(), now=160.0)
    reason = "worker-1 (10.0.0.3) did not join within 60 s; nothing was started"
    assert actions == [StopAll(reason, 10)]
    _, actions = play(state, Exited("worker-0", Exit(signal=9)), Exited("worker-2", Exit(signal=9)))
    assert (finish(actions).result.first_task, finish(actions).result.reason) == ("worker-1", reason)


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
EVENTS: st.SearchStrategy[Event] = st.one_of(
    st.builds(Joined, TASKS),
    st.builds(Ready, TASKS),
    st.builds(Exited, TASKS, EXITS),
    st.builds(LostPeer, TASKS, st.just("its agent ended")),
    st.builds(StopRequested, st.just(1.0)),
    st.just(DeadlinePassed()),
)


@given(st.lists(st.tuples(EVENTS, st.floats(0, 30)), max_size=20))
@settings(max_examples=500, deadline=None)
def test_whatever_the_order_of_events_a_gang_ends_once_and_rightly(events: list[tuple[Event, float]]) -> None:
    state, now = gang_of(COUNT), 100.0
    actions: list[Action] = []
    ready_tasks: set[str] = set()
    for event, pause in events:
        now += pause
        state, more = gang.step(state, event, now)
        if isinstance(event, Ready):
            ready_tasks.add(event.task)
        if Go() in more:
            assert ready_tasks >= {f"worker-{n}" for n in range(COUNT)}
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
    assert actions.count(Go()) <= 1
    assert sum(isinstance(action, StopAll) for action in actions) <= 1
    assert isinstance(actions[-1], Finish)
    if result.outcome is Outcome.SUCCEEDED:
        assert result.exits == {f"worker-{n}": DONE for n in range(COUNT)}
        assert Go() in actions
    else:
        assert result.reason
    if Go() in actions and any(isinstance(action, StopAll) for action in actions):
        assert actions.index(Go()) < [isinstance(action, StopAll) for action in actions].index(True)
