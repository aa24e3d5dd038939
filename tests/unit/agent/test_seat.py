"""A seat pursues what is ordered, whatever it missed, and never runs two attempts at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import slot as seats
from train.agent.gang.slot import (
    Closed,
    EndTask,
    Exited,
    Failed,
    Fetch,
    Finish,
    Held,
    Holds,
    Open,
    Reached,
    Reserve,
    Reserved,
    Restore,
    Restored,
    Seat,
    SeatAction,
    SeatEvent,
    Spawn,
    TellEnd,
    Visit,
)
from train.agent.gang.states import Order, Part, Source, Stage
from train.agent.protocol.records import Exit, JobResult, Member, Outcome

MEMBERS = [Member("worker-0", "10.0.0.2", 2222, 4000), Member("worker-1", "10.0.0.3", 2223, 4000)]
CAST = [Part("worker-0", "worker-0"), Part("worker-1", "worker-1")]
RESULT = JobResult("job", 1, Outcome.FAILED, 0.0)
NEWEST = Snapshot(1, 4, "abc")


def order(stage: Stage, attempt: int = 1, **more: object) -> Order:
    return Order(1, "worker-0", attempt, stage, CAST, MEMBERS)._replace(**more)  # type: ignore[arg-type]


def play(seat: Seat, *events: SeatEvent) -> tuple[Seat, list[SeatAction]]:
    actions: list[SeatAction] = []
    for event in events:
        seat, more = seats.step(seat, event)
        actions += more
    return seat, actions


def begun() -> Seat:
    seat, actions = play(Seat("worker-1", attempt=1, port=2223, restored=True), order(Stage.LAUNCH))
    assert actions == [Spawn(1, "worker-1", tuple(MEMBERS))]
    return seat


def test_one_attempt_from_the_launch_to_the_result() -> None:
    seat, actions = play(begun(), Held(1), order(Stage.CHECK), Reached(1, {"worker-0": ""}), order(Stage.GO))
    assert actions == [Visit(1, (MEMBERS[0],)), Open(1)]
    seat, actions = play(
        seat, order(Stage.STOP, reason="why", grace_s=3.0), order(Stage.STOP, reason="why", grace_s=3.0)
    )
    assert actions == [EndTask(1, "why", 3.0)]
    seat, actions = play(seat, order(Stage.RESULT, result=RESULT, grace_s=3.0))
    assert actions == []
    _, actions = play(seat, Exited(1, Exit(signal=9)), Closed(1))
    assert actions == [Finish(RESULT)]


def test_the_next_attempt_waits_until_nothing_is_left_of_the_one_before() -> None:
    seat, actions = play(begun(), Held(1), order(Stage.GO), order(Stage.RESERVE, 2))
    assert actions == [Open(1), EndTask(1, "attempt 2 begins", 0.0)]
    seat, actions = play(seat, Exited(1, Exit(signal=9)))
    assert actions == []
    seat, actions = play(seat, Closed(1))
    assert actions == [Reserve(2)]
    sources = [Source("10.0.0.2", 5000)]
    seat, actions = play(seat, Reserved(2, 2300), order(Stage.LAUNCH, 2, snapshot=NEWEST, sources=sources))
    assert actions == [Restore(2, NEWEST, tuple(sources))]
    _, actions = play(seat, Restored(2))
    assert actions == [Spawn(2, "worker-1", tuple(MEMBERS))]


def test_what_is_told_of_another_attempt_changes_nothing() -> None:
    seat = begun()
    assert play(seat, Held(2), Exited(7, Exit(code=0)), Closed(0)) == (seat, [])


def test_the_end_of_an_attempt_is_told_once_by_who_took_part() -> None:
    waits = order(Stage.WAIT, reason="worker-0 was killed", first="worker-0", retry_s=2.0)
    seat, _ = play(begun(), Exited(1, Exit(code=1)), Closed(1))
    seat, actions = play(seat, waits, waits)
    assert [type(action) for action in actions] == [TellEnd]
    spare = Seat("worker-2", attempt=1, restored=True)
    assert play(spare, waits)[1] == []


def test_a_host_that_cannot_take_part_says_so_and_does_nothing_else() -> None:
    seat, actions = play(Seat("worker-1", attempt=1), order(Stage.RESERVE, 2), Failed(2, "no port is free"))
    assert actions == [Reserve(2)]
    assert seats.report(seat)[:2] == ("worker-1", 2)
    assert (seats.report(seat).reason, seats.report(seat).closed) == ("no port is free", True)
    assert play(seat, order(Stage.LAUNCH, 2))[1] == []


def test_newer_checkpoints_are_fetched_while_all_train_and_older_ones_never() -> None:
    sources = [Source("10.0.0.2", 5000)]
    goes = order(Stage.GO, snapshot=NEWEST, sources=sources)
    seat, actions = play(begun(), Held(1), goes, goes)
    assert actions == [Open(1), Fetch(NEWEST, tuple(sources))]
    seat, actions = play(seat, Holds(NEWEST, None), order(Stage.GO, snapshot=Snapshot(1, 3, "old"), sources=sources))
    assert actions == []
    _, actions = play(Seat("worker-2", attempt=1, restored=True), goes)
    assert actions == [Fetch(NEWEST, tuple(sources))]


ATTEMPTS = st.integers(1, 3)
EVENTS: st.SearchStrategy[SeatEvent] = st.one_of(
    st.builds(order, st.sampled_from(Stage), ATTEMPTS, result=st.just(RESULT)),
    st.builds(Reserved, ATTEMPTS, st.just(2300)),
    st.builds(Restored, ATTEMPTS, st.sampled_from(["", "cannot be fetched"])),
    st.builds(Held, ATTEMPTS),
    st.builds(Exited, ATTEMPTS, st.sampled_from([Exit(code=0), Exit(signal=9)])),
    st.builds(Closed, ATTEMPTS),
    st.builds(Failed, ATTEMPTS, st.just("no port is free")),
    st.builds(Holds, st.just(NEWEST), st.none()),
)


@given(st.lists(EVENTS, max_size=40))
@settings(max_examples=500, deadline=None)
def test_whatever_is_ordered_no_two_processes_live_at_once(events: list[SeatEvent]) -> None:
    seat = Seat("worker-1", attempt=1, port=2223, restored=True)
    alive, highest = 0, 0
    for event in events:
        if isinstance(event, Closed) and event.attempt == alive:
            alive = 0
        elif isinstance(event, Closed):
            continue  # of a process that never was
        seat, actions = seats.step(seat, event)
        for action in actions:
            if isinstance(action, Spawn):
                assert alive == 0
                assert action.attempt > highest
                alive = highest = action.attempt
            if isinstance(action, Open):
                assert action.attempt == alive
            if isinstance(action, Finish):
                assert alive == 0
