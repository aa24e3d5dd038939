"""New hosts join a running job at its next complete checkpoint, and never harm it."""

from __future__ import annotations

from tests.unit.train.agent.gang.test_gang import HEALTHY, KILLED, OLD, Play
from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import scheduling
from train.agent.gang.readiness import TIMED_OUT
from train.agent.gang.states import SlotStatus, Stage
from train.agent.protocol.records import Member, Policy, ReasonKind


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

    def grow(self) -> None:
        """Reach the stage `CHECK` of the attempt with worker-2."""
        self.join("worker-2")
        self.save(1)
        self.close()
        for name in self.playing:
            changes = {"exit": None, "held": False, "probe_results": None, "port": 2300}
            self.send_record(name, attempt=self.gang.attempt, **changes)
        self.report_all(held=True, closed=False)
        assert self.at(Stage.CHECK)

    def probe(self, **errors: str) -> None:
        for name in self.playing:
            results = {other: "" for other in self.playing if other != name}
            self.send_record(name, probe_results=results if name != "worker-2" else {**results, **errors})


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


def test_a_host_that_is_stopped_for_maintenance_soon_does_not_join() -> None:
    play = GrowingPlay()
    play.start()
    play.join("worker-2", leaving=True)
    play.save(1)
    assert play.at(Stage.GO)
    play.send_record("worker-2", leaving=False)
    play.save(2)
    assert play.at(Stage.STOP)


def test_the_end_of_the_attempt_is_reported_as_growth() -> None:
    play = GrowingPlay(backoff_s=1.0)
    play.start()
    play.join("worker-2")
    assert "has saved none yet" in play.gang.notices[0]
    play.save(1)
    play.send_record("worker-1", exit=KILLED)  # its network is slower
    ended = scheduling.desired_state(play.gang._replace(stage=Stage.WAIT)).ended
    assert ended is not None
    assert (ended.reason_kind, ended.joining, ended.retry_s) == (ReasonKind.GROWTH, ["worker-2"], 0.2)
    assert "which makes 3 workers" in ended.reason


def test_a_job_never_grows_beyond_its_limit_or_without_one() -> None:
    for limit, workers in ((3, 3), (2, 2), (0, 2)):
        play = GrowingPlay(limit)
        play.start()
        play.join("worker-2")
        play.join("worker-3")
        play.save(1)
        assert play.at(Stage.STOP) is (workers > 2)
        play.close()
        assert len(play.playing) == workers


def test_a_host_that_does_not_fit_is_left_out_before_the_job_is_interrupted() -> None:
    play = GrowingPlay()
    play.start()
    play.join("worker-2", facts=OLD)
    assert "worker-2 (10.0.1.2) does not join: TensorFlow differs" in play.gang.notices[0]
    play.save(1)
    assert play.at(Stage.GO)


def test_a_host_that_cannot_be_reached_is_left_out_of_the_following_attempt() -> None:
    play = GrowingPlay()
    play.start()
    play.grow()
    play.probe(**{"worker-1": TIMED_OUT})
    assert play.at(Stage.STOP)
    assert "continues without worker-2" in play.order.reason.text
    play.close()
    assert play.at(Stage.RESERVE)
    assert play.playing == ["worker-0", "worker-1"]
    assert (play.gang.attempt, play.gang.restarts) == (3, 0)
