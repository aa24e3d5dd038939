"""Who follows whom when a leader is lost, step by step."""

from __future__ import annotations

from train.agent import node as minds
from train.agent.gang import Terms
from train.agent.node import Heard, LinkDown, LinkUp, Mode, NodeAction, Tell
from train.agent.orders import Leads, Order, Part, Report, Stage
from train.agent.records import Member, Policy
from train.agent.seat import Seat

SEATS = tuple(Member(f"worker-{index}", f"10.0.0.{index + 2}", 2222, 4000) for index in range(3))
TERMS = Terms("job", SEATS, ("worker-2",), Policy(restarts=3))
CAST = [Part("worker-0", "worker-0"), Part("worker-1", "worker-1")]


def order(term: int, leader: str, stage: Stage) -> Order:
    return Order(term=term, leader=leader, attempt=1, stage=stage, cast=CAST, members=list(SEATS[:2]), started=True)


def reports(actions: list[NodeAction], to: str) -> list[Report]:
    return [
        one.message for one in actions if isinstance(one, Tell) and one.seat == to and isinstance(one.message, Report)
    ]


def test_a_seat_tells_a_new_leader_anew_what_it_told_before_that_one_led() -> None:
    """The others notice the loss of a leader at different times, and who does not lead yet does not listen."""
    node, _ = minds.begin(TERMS, "worker-2", Seat("worker-2"), 0.0)
    for event in (LinkUp("worker-0"), Heard("worker-0", order(1, "worker-0", Stage.GO))):
        node, _ = minds.step(node, event, 1.0)
    node, _ = minds.step(node, LinkDown("worker-0", "silent"), 2.0)
    node, actions = minds.step(node, LinkUp("worker-1"), 2.1)
    assert node.mode is Mode.SEEKING
    assert reports(actions, "worker-1")
    node, _ = minds.step(node, Heard("worker-1", Leads(1, "worker-0", True)), 2.2)
    node, actions = minds.step(node, Heard("worker-1", order(2, "worker-1", Stage.WAIT)), 3.0)
    assert (node.mode, node.leader) == (Mode.FOLLOWING, "worker-1")
    assert reports(actions, "worker-1")
