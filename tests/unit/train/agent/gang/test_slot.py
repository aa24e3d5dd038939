"""A slot pursues what is ordered, whatever it missed, and never runs two attempts at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import reconciler
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
    OpenGate,
    PortsProbed,
    ProbePorts,
    ReportAttemptEnd,
    Reserve,
    Reserved,
    RestoreCheckpoint,
    Slot,
    SlotAction,
    SlotEvent,
    Spawn,
    Unqueued,
    Work,
)
from train.agent.gang.states import DesiredState, SlotStatus, Source, Stage, start_delay_s
from train.agent.protocol.records import AttemptEnded, Exit, JobResult, Member, Outcome, Reason

MEMBERS = [
    Member("worker-0", "worker-0", "10.0.0.2", 2222, 4000),
    Member("worker-1", "worker-1", "10.0.0.3", 2223, 4000),
]
RESULT = JobResult("job", 1, Outcome.FAILED, 0.0)
NEWEST = Snapshot(1, 4, "abc")


def order(stage: Stage, attempt: int = 1, **more: object) -> DesiredState:
    return DesiredState(1, "worker-0", attempt, stage, MEMBERS)._replace(**more)  # type: ignore[arg-type]


def play(slot: Slot, *events: SlotEvent) -> tuple[Slot, list[SlotAction]]:
    actions: list[SlotAction] = []
    for event in events:
        slot, more = reconciler.step(slot, event)
        actions += more
    return slot, actions


def begun() -> Slot:
    slot, actions = play(Slot(SlotStatus("worker-1", 1, 2223), work=Work(restored=True)), order(Stage.LAUNCH))
    assert actions == [Spawn(1, "worker-1", tuple(MEMBERS))]
    return slot


def test_one_attempt_from_the_launch_to_the_result() -> None:
    slot, actions = play(
        begun(), HeldAtGate(1), order(Stage.CHECK), PortsProbed(1, {"worker-0": ""}), order(Stage.GO)
    )
    assert actions == [ProbePorts(1, (MEMBERS[0],)), OpenGate(1)]
    slot, actions = play(
        slot,
        order(Stage.STOP, reason=Reason("why"), grace_s=3.0),
        order(Stage.STOP, reason=Reason("why"), grace_s=3.0),
    )
    assert actions == [EndTask(1, "why", 3.0)]
    slot, actions = play(slot, order(Stage.RESULT, result=RESULT, grace_s=3.0))
    assert actions == []
    _, actions = play(slot, Exited(1, Exit(signal=9)), Closed(1))
    assert actions == [Finish(RESULT)]


def test_the_next_attempt_waits_until_nothing_is_left_of_the_one_before() -> None:
    slot, actions = play(begun(), HeldAtGate(1), order(Stage.GO), order(Stage.RESERVE, 2))
    assert actions == [OpenGate(1), EndTask(1, "attempt 2 begins", 0.0)]
    slot, actions = play(slot, Exited(1, Exit(signal=9)))
    assert actions == []
    slot, actions = play(slot, Closed(1))
    assert actions == [Reserve(2)]
    sources = [Source("10.0.0.2", 5000)]
    slot, actions = play(slot, Reserved(2, 2300), order(Stage.LAUNCH, 2, snapshot=NEWEST, sources=sources))
    assert actions == [RestoreCheckpoint(2, NEWEST, tuple(sources))]
    _, actions = play(slot, CheckpointRestored(2))
    assert actions == [Spawn(2, "worker-1", tuple(MEMBERS))]


def test_events_of_another_attempt_change_nothing() -> None:
    slot = begun()
    assert play(slot, HeldAtGate(2), Exited(7, Exit(code=0)), Closed(0)) == (slot, [])


def test_the_end_of_an_attempt_is_reported_once_by_the_slots_that_took_part() -> None:
    ended = AttemptEnded("", 1, 0.0, "worker-0", "worker-0 was killed", {}, 2.0, first_failed_slot="worker-0")
    waits = order(Stage.WAIT, ended=ended)
    slot, _ = play(begun(), Exited(1, Exit(code=1)), Closed(1))
    slot, actions = play(slot, waits, waits)
    assert actions == [ReportAttemptEnd(ended._replace(slot="worker-1"))]
    spare = Slot(SlotStatus("worker-2", 1), work=Work(restored=True))
    assert play(spare, waits)[1] == []


def test_a_host_that_cannot_take_part_says_so_and_does_nothing_else() -> None:
    reason = Reason("no port is free")
    slot, actions = play(Slot(SlotStatus("worker-1", 1)), order(Stage.RESERVE, 2), Failed(2, reason))
    assert actions == [Reserve(2)]
    assert slot.status[:2] == ("worker-1", 2)
    assert (slot.status.reason, slot.status.closed) == (reason, True)
    assert play(slot, order(Stage.LAUNCH, 2))[1] == []


def test_newer_checkpoints_are_fetched_while_all_train_and_older_ones_never() -> None:
    sources = [Source("10.0.0.2", 5000)]
    goes = order(Stage.GO, snapshot=NEWEST, sources=sources)
    slot, actions = play(begun(), HeldAtGate(1), goes, goes)
    assert actions == [OpenGate(1), FetchCheckpoint(NEWEST, tuple(sources))]
    slot, actions = play(
        slot, CheckpointHeld(NEWEST, None), order(Stage.GO, snapshot=Snapshot(1, 3, "old"), sources=sources)
    )
    assert actions == []
    _, actions = play(Slot(SlotStatus("worker-2", 1), work=Work(restored=True)), goes)
    assert actions == [FetchCheckpoint(NEWEST, tuple(sources))]


ATTEMPTS = st.integers(1, 3)
EVENTS: st.SearchStrategy[SlotEvent] = st.one_of(
    st.builds(order, st.sampled_from(Stage), ATTEMPTS, result=st.just(RESULT)),
    st.builds(Reserved, ATTEMPTS, st.just(2300)),
    st.builds(CheckpointRestored, ATTEMPTS, st.sampled_from(["", "cannot be fetched"])),
    st.builds(HeldAtGate, ATTEMPTS),
    st.builds(Exited, ATTEMPTS, st.sampled_from([Exit(code=0), Exit(signal=9)])),
    st.builds(Closed, ATTEMPTS),
    st.builds(Failed, ATTEMPTS, st.just("no port is free")),
    st.builds(CheckpointHeld, st.just(NEWEST), st.none()),
)


@given(st.lists(EVENTS, max_size=40))
def test_whatever_is_ordered_no_two_processes_live_at_once(events: list[SlotEvent]) -> None:
    slot = Slot(SlotStatus("worker-1", 1, 2223), work=Work(restored=True))
    alive, highest = 0, 0
    for event in events:
        if isinstance(event, Closed) and event.attempt == alive:
            alive = 0
        elif isinstance(event, Closed):
            continue  # of a process that never was
        slot, actions = reconciler.step(slot, event)
        for action in actions:
            if isinstance(action, Spawn):
                assert alive == 0
                assert action.attempt > highest
                alive = highest = action.attempt
            if isinstance(action, OpenGate):
                assert action.attempt == alive
            if isinstance(action, Finish):
                assert alive == 0


def test_a_queued_slot_locks_its_host_only_when_the_leader_says_so() -> None:
    slot = reconciler.queued(Slot(SlotStatus("worker-1", 1, 2223), work=Work(restored=True)))
    slot, actions = play(slot, order(Stage.QUEUE), Unqueued(), order(Stage.QUEUE))
    assert (actions, slot.status.queued, slot.status.port) == ([], False, 0)
    slot, actions = play(slot, order(Stage.RESERVE), order(Stage.RESERVE))
    assert actions == [Claim(1)]
    slot, actions = play(slot, Claimed(1, 2223), order(Stage.LAUNCH))
    assert slot.status.port == 2223
    assert actions == [Spawn(1, "worker-1", tuple(MEMBERS))]
    # A spare locks its host late, when the next attempt has begun: its first port is not valid any more.
    slot = reconciler.queued(Slot(SlotStatus("spare", 1, 2223)))
    slot, actions = play(slot, order(Stage.GO), order(Stage.RESERVE, 2), Claimed(1, 2223), order(Stage.RESERVE, 2))
    assert (actions, slot.status.port) == ([Claim(1)], 0)


def test_the_start_is_delayed_by_half_of_the_check_within_limits() -> None:
    assert start_delay_s(1, 0.02) == 0.0
    assert start_delay_s(8, 0.02) == start_delay_s(64, 0.02) == 0.01
    assert start_delay_s(8, 2.0) < start_delay_s(64, 2.0) < start_delay_s(10_000, 2.0) == 1.0


@pytest.mark.parametrize(
    ("now", "left_s"),
    [
        (100.0, 0.25),
        (100.125, 0.125),
        (100.25, 0.0),
        (107.0, 0.0),  # the clock is ahead of the leader's, or the message was late
        (93.0, 0.25),  # the clock is behind the leader's
    ],
)
def test_clocks_that_differ_change_the_start_by_at_most_its_delay(now: float, left_s: float) -> None:
    assert order(Stage.GO, start_at=100.25, start_delay_s=0.25).time_to_start_s(now) == left_s


def test_the_start_without_a_common_time_is_at_once() -> None:
    assert order(Stage.GO).time_to_start_s(100.0) == 0.0
