"""A slot pursues what is ordered, whatever it missed, and never runs two attempts at once."""

from __future__ import annotations

import pytest

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import reconciler
from train.agent.gang.reconciler import (
    CheckpointRestored,
    Closed,
    EndTask,
    Exited,
    HeldAtGate,
    OpenGate,
    Reserve,
    Reserved,
    RestoreCheckpoint,
    Slot,
    SlotAction,
    SlotEvent,
    Spawn,
    Work,
)
from train.agent.gang.states import DesiredState, SlotStatus, Source, Stage
from train.agent.protocol.records import Exit, Member

MEMBERS = [
    Member("worker-0", "worker-0", "10.0.0.2", 2222, 4000),
    Member("worker-1", "worker-1", "10.0.0.3", 2223, 4000),
]
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
