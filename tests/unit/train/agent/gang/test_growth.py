"""New hosts join a running job at its next complete checkpoint, and never harm it."""

from __future__ import annotations

from tests.unit.train.agent.gang.test_gang import HEALTHY, OLD, Play
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import scheduling
from train.agent.gang.states import SlotStatus, Stage
from train.agent.protocol.records import Member, Policy


class GrowingPlay(Play):
    """A gang of two workers without restarts, which worker-2 and worker-3 may join."""

    def __init__(self, max_workers: int = 4, **policy: object) -> None:
        super().__init__(2, Policy(max_workers=max_workers, **policy))  # type: ignore[arg-type]
        later = ("worker-2", "worker-3")
        slots = (*self.terms.slots, *(Member(name, "", "", 0, 0) for name in later))
        self.terms = self.terms._replace(slots=slots, joinable=later)
        self.gang = scheduling.form_gang(self.terms, "worker-0", self.now)

    def close(self, *but: str) -> None:
        super().close(*but)
        self.wait(0.3)

    def join(self, name: str, **status: object) -> None:
        self.statuses[name] = SlotStatus(name, facts=HEALTHY, address="10.0.1.2", link_port=4001)
        self.send_record(name, **status)

    def save(self, number: int) -> None:
        self.send_record("worker-0", snapshot=Snapshot(self.gang.attempt, number, str(number)))


def test_a_host_joins_at_the_next_checkpoint_of_the_attempt_without_using_a_restart() -> None:
    play = GrowingPlay()
    play.start()
    play.save(1)
    play.join("worker-2")
    assert play.at(Stage.GO)
    assert play.gang.notices == ("worker-2 (10.0.1.2) joins at the next complete checkpoint",)
    play.save(2)
    assert play.at(Stage.STOP)
    assert play.gang.grace_s == play.terms.grace_s
    play.close()
    assert play.at(Stage.RESERVE)
    assert play.playing == ["worker-0", "worker-1", "worker-2"]
    assert (play.gang.attempt, play.gang.restarts) == (2, 0)


def test_a_host_that_does_not_fit_is_left_out_before_the_job_is_interrupted() -> None:
    play = GrowingPlay()
    play.start()
    play.join("worker-2", facts=OLD)
    assert "worker-2 (10.0.1.2) does not join: TensorFlow differs" in play.gang.notices[0]
    play.save(1)
    assert play.at(Stage.GO)
