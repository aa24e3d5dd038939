"""Test the election of a new leader when the leader is lost, step by step."""

from __future__ import annotations

from train.agent.gang import election
from train.agent.gang.attempt import JobTerms
from train.agent.gang.election import (
    DeadlineReached,
    MessageReceived,
    Mode,
    PeerAction,
    PeerConnected,
    PeerEvent,
    PeerLost,
    SendMessage,
)
from train.agent.gang.reconciler import Finish, Slot
from train.agent.gang.states import DesiredState, LeaderClaim, Message, SlotStatus, Stage
from train.agent.protocol.records import Member, Outcome, Policy

SLOTS = tuple(Member(f"worker-{index}", f"worker-{index}", f"10.0.0.{index + 2}", 2222, 4000) for index in range(3))
TERMS = JobTerms("job", (*SLOTS[:2], SLOTS[2]._replace(task="")), Policy(restarts=3))


def order(term: int, leader: str, stage: Stage) -> DesiredState:
    return DesiredState(term=term, leader=leader, attempt=1, stage=stage, members=list(SLOTS[:2]), started=True)


def reports(actions: list[PeerAction], to: str) -> list[SlotStatus]:
    return [
        action.message
        for action in actions
        if isinstance(action, SendMessage) and action.slot == to and isinstance(action.message, SlotStatus)
    ]


def test_a_slot_reports_to_a_new_leader_what_it_reported_before_the_election() -> None:
    """Peers notice the loss of a leader at different times, and a peer that does not lead yet ignores reports."""
    node, _ = election.begin(TERMS, "worker-2", Slot(SlotStatus("worker-2")), 0.0)
    for event in (PeerConnected("worker-0"), MessageReceived("worker-0", order(1, "worker-0", Stage.GO))):
        node, _ = election.step(node, event, 1.0)
    node, _ = election.step(node, PeerLost("worker-0", "silent"), 2.0)
    node, actions = election.step(node, PeerConnected("worker-1"), 2.1)
    assert node.mode is Mode.SEEKING
    assert reports(actions, "worker-1")
    node, _ = election.step(node, MessageReceived("worker-1", LeaderClaim(1, "worker-0", True)), 2.2)
    node, actions = election.step(node, MessageReceived("worker-1", order(2, "worker-1", Stage.WAIT)), 3.0)
    assert (node.mode, node.leader) == (Mode.FOLLOWING, "worker-1")
    assert reports(actions, "worker-1")


def test_what_a_leader_reported_before_it_led_does_not_count_against_it() -> None:
    """Both may connect to each other at once: messages on two connections may be read in a different order."""
    other, _ = election.begin(TERMS, "worker-1", Slot(SlotStatus("worker-1")), 0.0)
    for event in (
        PeerConnected("worker-0"),
        MessageReceived("worker-0", order(1, "worker-0", Stage.GO)),
        PeerConnected("worker-0"),
    ):
        other, actions = election.step(other, event, 1.0)
    other, leads = election.step(other, MessageReceived("worker-0", LeaderClaim(0, "")), 2.0)
    orders = [
        action.message
        for action in leads
        if isinstance(action, SendMessage) and isinstance(action.message, DesiredState)
    ]
    assert (other.mode, len(reports(actions, "worker-0")), len(orders)) == (Mode.LEADING, 1, 1)
    joined, _ = election.join(TERMS, "worker-0", Slot(SlotStatus("worker-0")), 1.0)
    joined, _ = election.step(joined, PeerConnected("worker-1"), 1.0)
    late: list[Message] = [*orders, *reports(actions, "worker-0")]
    for message in late:
        joined, _ = election.step(joined, MessageReceived("worker-1", message), 3.0)
    assert (joined.mode, joined.leader, joined.joined) == (Mode.FOLLOWING, "worker-1", True)


def test_a_peer_leads_if_its_leader_follows_it() -> None:
    nodes = {}
    for me, leader, term in (("worker-0", "worker-1", 2), ("worker-1", "worker-0", 3)):
        node, _ = election.join(TERMS, me, Slot(SlotStatus(me)), 0.0)
        for event in (PeerConnected(leader), MessageReceived(leader, order(term, leader, Stage.WAIT))):
            node, actions = election.step(node, event, 1.0)
        nodes[me] = node, reports(actions, leader)[-1]
    heard, _ = election.step(nodes["worker-0"][0], MessageReceived("worker-1", nodes["worker-1"][1]), 2.0)
    assert heard.mode is Mode.LEADING
    kept, _ = election.step(nodes["worker-1"][0], MessageReceived("worker-0", nodes["worker-0"][1]), 2.0)
    assert kept.mode is Mode.FOLLOWING


def test_a_new_peer_without_connections_does_not_report_how_the_job_ended() -> None:
    """Its host replaced a lost one, and the others ended without it: only they can report the outcome."""
    node, _ = election.join(TERMS, "worker-0", Slot(SlotStatus("worker-0")), 0.0)
    results = []
    events: tuple[PeerEvent, ...] = (
        PeerLost("worker-1", "refused"),
        PeerLost("worker-2", "refused"),
        DeadlineReached(),
    )
    for at, event in enumerate(events):
        node, actions = election.step(node, event, float(at))
        results += [action.result for action in actions if isinstance(action, Finish)]
    assert [result.outcome for result in results] == [Outcome.LOST]
