"""The rule of the gang where tasks have roles: whose end counts, whose failure does, and under which names."""

from __future__ import annotations

import pytest

from tests.unit.train.agent.gang.test_gang import AGAIN, DONE, KILLED, ONCE, Play
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import scheduling
from train.agent.gang.attempt import Ending
from train.agent.gang.states import Source, Stage, from_line, to_line
from train.agent.gang.watch import EVALUATION_IDLE_S
from train.agent.protocol.records import (
    Exit,
    HangInspection,
    OnHang,
    Outcome,
    Policy,
    Reason,
    ReasonKind,
    SuccessPolicy,
)

COORDINATED = ("chief-0", "worker-0", "worker-1", "ps-0")
EVALUATED = ("chief-0", "worker-0", "evaluator-0")
CHIEF = Policy(success=SuccessPolicy.CHIEF)
LAST = Snapshot(1, 7, "g")


def coordinated(policy: Policy = CHIEF) -> Play:
    return Play(4, policy, tasks=COORDINATED).start()


def evaluated(policy: Policy = ONCE) -> Play:
    return Play(3, policy, tasks=EVALUATED).start()


@pytest.mark.parametrize(("slot", "task"), [("worker-3", "ps-0"), ("worker-2", "worker-1")])
def test_a_failed_server_or_worker_ends_the_attempt_under_the_name_of_its_role(slot: str, task: str) -> None:
    """Check that the attempt ends: the coordinator continues, but does not exit while a worker is missing."""
    play = coordinated(AGAIN._replace(success=SuccessPolicy.CHIEF))
    play.exit(slot, KILLED)
    assert play.order.reason == (f"{task} was killed by SIGKILL", ReasonKind.KILLED)
    play.close()
    assert play.at(Stage.WAIT)
    order = play.order
    assert (order.first_failed_slot, order.display_name(order.first_failed_slot)) == (slot, task)
    play = coordinated()
    play.lose(slot)
    play.close(slot)
    assert play.result.reason == f"{task} ({play.terms.slots[int(slot[-1])].address}) was lost: " + (
        "its agent was silent for 10 s"
    )
    assert play.result.first_failed_task == task


# --- evaluators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["code", "lost", "preempted"])
def test_training_goes_on_without_an_evaluator(how: str) -> None:
    play = evaluated()
    if how == "code":
        play.exit("worker-2", Exit(code=1))
    elif how == "lost":
        play.lose("worker-2")
    else:
        play.send_record("worker-2", preempted=True)
        play.exit("worker-2", KILLED)
    assert play.at(Stage.GO)
    notice = play.order.notices[-1]
    assert notice.startswith("evaluator-0 ")
    assert notice.endswith("training continues without it")
    play.wait(1.0)
    assert play.order.notices[-1] == notice
    play.exit("worker-0", DONE)
    play.exit("worker-1", DONE)
    play.close("worker-2" if how == "lost" else "")
    assert play.result.outcome is Outcome.SUCCEEDED


def trained() -> Play:
    """Return a gang at the end of the training, before its last checkpoint arrives."""
    play = evaluated()
    play.send_record("worker-0", snapshot=LAST, source=Source("10.0.0.2", 5000))
    for slot in ("worker-0", "worker-1"):
        play.exit(slot, DONE)
        play.send_record(slot, closed=True)
    assert play.at(Stage.GO)
    assert play.order.trained
    return play


def test_after_the_training_an_evaluator_has_time_for_the_last_checkpoint() -> None:
    play = trained()
    play.send_record("worker-2", quiet_s=60.0, idle_s=60.0)  # it waits for what is still to come
    play.wait(EVALUATION_IDLE_S + 1.0)
    assert play.at(Stage.GO)
    play.send_record("worker-2", snapshot=LAST, quiet_s=70.0, idle_s=70.0)
    due = scheduling.deadline(play.gang, play.now)
    assert due == play.now + EVALUATION_IDLE_S
    play.send_record("worker-2", quiet_s=0.0, idle_s=0.0)
    play.wait(EVALUATION_IDLE_S)
    assert play.at(Stage.GO)
    play.send_record("worker-2", quiet_s=4.0, idle_s=EVALUATION_IDLE_S)
    assert play.at(Stage.GO)
    play.send_record("worker-2", quiet_s=EVALUATION_IDLE_S, idle_s=EVALUATION_IDLE_S)
    assert play.at(Stage.STOP)
    play.close()
    assert (play.result.outcome, play.result.exits["evaluator-0"]) == (Outcome.SUCCEEDED, KILLED)


def test_what_fails_after_the_training_fails_nothing() -> None:
    play = trained()
    play.lose("worker-1")
    play.exit("worker-2", Exit(code=1))
    play.close()
    assert play.result.outcome is Outcome.SUCCEEDED
    play = trained()
    last = from_line(to_line(play.order))
    text = "worker-0 (10.0.0.2) was lost: its agent was silent for 10 s"
    end = Ending(Outcome.FAILED, "worker-0", Reason(text, ReasonKind.HOST_LOST))
    taken = scheduling.take_over(play.terms, last, "worker-1", play.now, end=end, lost={"worker-0": text}, term=2)
    assert scheduling.desired_state(taken).stage is Stage.STOP
    assert taken.end == Ending(Outcome.SUCCEEDED)


# --- hangs ----------------------------------------------------------------------------------------------------------

WATCHED = Policy(success=SuccessPolicy.CHIEF, hang_timeout_s=60.0, on_hang=OnHang.REPORT, start_timeout_s=0.0)


def test_idle_servers_and_evaluators_are_no_hang() -> None:
    play = coordinated(WATCHED)
    for slot in ("worker-1", "worker-2", "worker-3"):
        play.send_record(slot, quiet_s=90.0, idle_s=90.0)
    assert play.order.inspection == 0
    play.send_record("worker-0", quiet_s=90.0, idle_s=0.0)  # a coordinator that computes
    assert play.order.inspection == 0
    play.send_record("worker-1", quiet_s=90.0, idle_s=0.0)  # a worker that computes for one that has nothing to say
    play.send_record("worker-0", quiet_s=90.0, idle_s=90.0)
    assert play.order.inspection == 0
    play.send_record("worker-1", quiet_s=90.0, idle_s=90.0)
    assert play.order.inspection == 1
    play = evaluated(WATCHED)
    play.send_record("worker-2", quiet_s=90.0, idle_s=90.0)
    assert play.order.inspection == 0


def test_a_hang_is_reported_by_task_and_evaluators_are_not_inspected() -> None:
    play = evaluated(WATCHED)
    for slot in ("worker-0", "worker-1"):
        play.send_record(slot, quiet_s=90.0, idle_s=90.0)
    stopped = HangInspection("worker-1", "worker-1", 1, 0.0, "T", "", [])
    waits = HangInspection("worker-0", "worker-0", 1, 0.0, "T", "", [])
    play.send_record("worker-0", inspected=1, hang=waits)
    play.send_record("worker-1", inspected=1, hang=stopped)
    assert play.order.notices == [
        "no progress for 60 s: chief-0 and worker-0 are stopped (by SIGSTOP or a debugger); no task waits for another"
    ]
