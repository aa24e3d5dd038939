"""The rule of the gang: attempts begin together, end together, and begin again as the policy requires."""

from __future__ import annotations

from typing import Any

import pytest

from train.agent.checkpoints.snapshot import Snapshot
from train.agent.gang import scheduling
from train.agent.gang.attempt import JobTerms
from train.agent.gang.readiness import ReadinessFacts
from train.agent.gang.states import DesiredState, SlotStatus, Source, Stage
from train.agent.protocol.records import NO_REASON, Exit, JobResult, Member, Outcome, Policy, Reason, RestartPolicy
from train.defaults import KILL_AFTER_FAILURE_S

DONE = Exit(code=0)
KILLED = Exit(signal=9)
HEALTHY = ReadinessFacts({"python": "3.11.7", "tensorflow": "2.21.0"}, [], 1 << 40)
OLD = HEALTHY._replace(versions={"python": "3.11.7", "tensorflow": "2.19.1"})
ONCE = Policy()
AGAIN = Policy(restarts=2, backoff_s=1.0, host_timeout_s=30.0)


def names(count: int) -> list[str]:
    return [f"worker-{n}" for n in range(count)]


class Play:
    """A gang and the statuses of its slots, with a clock that only `wait` advances."""

    def __init__(
        self, count: int, policy: Policy = ONCE, spares: int = 0, tasks: tuple[str, ...] = (), **terms: Any
    ) -> None:
        self.names = names(count)
        tasks = tasks or (*self.names[: count - spares], *[""] * spares)
        members = tuple(
            Member(name, task, f"10.0.0.{n + 2}", 2222, 4000)
            for n, (name, task) in enumerate(zip(self.names, tasks, strict=True))
        )
        self.terms = JobTerms("job", members, policy, **{"join_timeout_s": 60.0, **terms})
        self.now = 100.0
        self.gang = scheduling.form_gang(self.terms, "worker-0", self.now)
        self.statuses = {name: SlotStatus(name, 1, facts=HEALTHY, port=2222) for name in self.names}

    def at(self, stage: Stage) -> bool:
        return self.gang.stage is stage

    @property
    def playing(self) -> list[str]:
        return [member.slot for member in self.gang.members]

    @property
    def order(self) -> DesiredState:
        return scheduling.desired_state(self.gang)

    def send_record(self, name: str, **changes: object) -> None:
        self.statuses[name] = self.statuses[name]._replace(**changes)  # type: ignore[arg-type]
        self.gang = scheduling.receive_status(self.gang, self.statuses[name], self.now)

    def report_all(self, **changes: object) -> None:
        for name in self.playing:
            self.send_record(name, **changes)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.gang = scheduling.advance(self.gang, self.now)

    def lose(self, name: str, reason: str = "its agent was silent for 10 s") -> None:
        self.gang = scheduling.mark_lost(self.gang, name, reason, self.now)

    def start(self) -> Play:
        """Bring the gang to the stage `GO`."""
        for name in self.names:
            self.send_record(name)
        if self.gang.stage is Stage.RESERVE:
            fresh = {"exit": None, "reason": NO_REASON, "held": False, "probe_results": None, "port": 2300}
            for name in self.names:
                self.send_record(name, attempt=self.gang.attempt, **fresh)
        assert self.at(Stage.LAUNCH)
        self.report_all(held=True, closed=False)
        assert self.at(Stage.CHECK)
        for name in self.playing:
            self.send_record(name, probe_results={other: "" for other in self.playing if other != name})
        assert self.at(Stage.GO)
        return self

    def exit(self, name: str, ended: Exit, reason: Reason = NO_REASON) -> None:
        self.send_record(name, exit=ended, reason=reason)

    def close(self, *but: str) -> None:
        """End all running tasks except those in `but`."""
        for name in self.playing:
            if name not in but:
                self.send_record(name, exit=self.statuses[name].exit or KILLED, closed=True)

    @property
    def result(self) -> JobResult:
        assert self.at(Stage.RESULT)
        assert self.gang.result is not None
        return self.gang.result


def test_who_does_not_join_in_time_is_named() -> None:
    play = Play(3)
    for name in ("worker-0", "worker-2"):
        play.send_record(name, held=True, closed=False)
    play.wait(59.9)
    assert play.at(Stage.LAUNCH)
    play.wait(0.1)
    play.close("worker-1")
    reason = "worker-1 (10.0.0.3) did not join within 60 s; nothing was started"
    assert (play.result.first_failed_task, play.result.reason, play.result.started) == ("worker-1", reason, False)


def test_the_first_failure_is_the_cause_and_our_own_kills_are_not() -> None:
    play = Play(3).start()
    play.exit("worker-1", Exit(code=1))
    order = play.order
    reason = Reason("worker-1 exited with code 1")
    assert (order.stage, order.reason, order.grace_s) == (Stage.STOP, reason, KILL_AFTER_FAILURE_S)
    play.close()
    assert (play.result.first_failed_task, play.result.reason) == ("worker-1", "worker-1 exited with code 1")
    assert play.result.exits["worker-0"] == KILLED


def test_peers_of_a_host_that_is_gone_only_follow_from_it() -> None:
    """Check an exit that precedes the loss of the host: TensorFlow notices after eight seconds."""
    play = Play(2, Policy()).start()
    play.exit("worker-0", Exit(code=1))
    play.send_record("worker-0", closed=True)
    play.lose("worker-1")
    assert (play.result.first_failed_task, play.result.reason) == (
        "worker-1",
        "worker-1 (10.0.0.3) was lost: its agent was silent for 10 s",
    )


# --- another attempt ------------------------------------------------------------------------------------------------


def test_the_wait_is_twice_as_long_each_time_and_restarts_are_counted() -> None:
    play = Play(1, AGAIN).start()
    for wait_s in (1.0, 2.0):
        play.exit("worker-0", KILLED)
        play.close()
        ended = play.order.ended
        assert ended is not None
        assert (play.gang.stage, ended.retry_s) == (Stage.WAIT, wait_s)
        play.wait(wait_s)
        play.start()
    play.exit("worker-0", KILLED)
    play.close()
    assert (play.result.outcome, play.result.attempt) == (Outcome.FAILED, 3)


@pytest.mark.parametrize(
    ("policy", "ended", "again"),
    [
        (RestartPolicy.ON_FAILURE, Exit(code=1), True),
        (RestartPolicy.EXIT_CODE, Exit(code=127), False),
        (RestartPolicy.EXIT_CODE, Exit(code=128), True),
        (RestartPolicy.EXIT_CODE, Exit(code=42), True),
        (RestartPolicy.EXIT_CODE, KILLED, True),
        (RestartPolicy.NEVER, KILLED, False),
    ],
)
def test_policies(policy: RestartPolicy, ended: Exit, again: bool) -> None:
    play = Play(1, AGAIN._replace(restart=policy)).start()
    play.exit("worker-0", ended)
    play.close()
    assert (play.gang.stage is Stage.WAIT) == again


@pytest.mark.parametrize(
    ("spares", "policy", "notice"),
    [
        (1, AGAIN, "attempt 2: without slot worker-1, worker-1 runs in slot worker-2"),
        (0, AGAIN._replace(min_workers=2), "attempt 2: without slot worker-1, worker-1 runs in slot worker-2"),
    ],
)
def test_a_spare_or_the_last_worker_takes_over_after_the_lost_one_has_noticed(
    spares: int, policy: Policy, notice: str
) -> None:
    play = Play(3, policy, spares=spares).start()
    play.lose("worker-1")
    play.close("worker-1")
    play.wait(1.0)
    assert play.at(Stage.WAIT)  # what it ran may still be alive
    play.wait(3.5 if spares else 29.0)  # without a spare it may come back
    assert [(member.slot, member.task) for member in play.order.members] == [
        ("worker-0", "worker-0"),
        ("worker-2", "worker-1"),
    ]
    assert play.order.notices == [notice]


def test_when_the_time_is_up_the_job_ends_whatever_the_policy() -> None:
    play = Play(2, AGAIN._replace(timeout_s=60.0)).start()
    play.wait(59.0)
    assert play.at(Stage.GO)
    play.wait(1.0)
    assert play.order.grace_s == 10.0
    play.close()
    assert (play.result.outcome, play.result.reason) == (Outcome.FAILED, "the job ran longer than 60 s (--timeout)")


# --- the watches ----------------------------------------------------------------------------------------------------


def test_a_hang_is_inspected_and_reported_once() -> None:
    play = Play(2, Policy(hang_timeout_s=30.0)).start()
    play.send_record("worker-0", quiet_s=31.0, idle_s=31.0, stepped=True)
    assert play.order.inspection == 0
    play.send_record("worker-1", quiet_s=31.0, idle_s=0.0, stepped=True)
    assert play.order.inspection == 1
    play.report_all(inspected=1)
    (notice,) = play.order.notices
    assert notice.startswith("no progress for 30 s: ")
    play.send_record("worker-1", quiet_s=36.0)
    assert play.order.inspection == 1
    play.send_record("worker-1", quiet_s=0.0)
    play.report_all(quiet_s=31.0, idle_s=31.0)
    assert play.order.inspection == 2


def test_a_start_without_a_step_ends_only_if_all_tasks_are_idle() -> None:
    play = Play(2, Policy(start_timeout_s=600.0)).start()
    play.wait(601.0)
    play.report_all(quiet_s=601.0, idle_s=0.0)  # compiling, perhaps
    assert play.order.inspection == 0
    play.send_record("worker-0", idle_s=60.0)
    assert play.order.inspection == 1
    play.report_all(inspected=1)
    play.close()
    assert play.result.reason.startswith("no first step within 600 s: ")


def test_a_job_that_is_given_up_names_the_host_that_is_missing() -> None:
    play = Play(3, AGAIN._replace(backoff_s=60.0, host_timeout_s=60.0)).start()
    play.lose("worker-1")
    play.close("worker-1")
    play.send_record("worker-1", exit=KILLED, closed=True)
    play.wait(30.0)
    play.lose("worker-2")
    play.wait(59.0)
    assert play.at(Stage.WAIT)
    play.wait(1.0)
    first = "worker-1 (10.0.0.3) was lost: its agent was silent for 10 s"
    then = "worker-2 (10.0.0.4) was lost after that, and it was not replaced within 60 s"
    assert play.result.reason == f"{first}; {then}"


# --- a job that continues from the checkpoint of another one ---


def test_a_resumed_job_waits_for_a_host_that_holds_the_checkpoint() -> None:
    play = Play(2, resume=(3, 5))
    older = Snapshot(3, 4, "a")
    play.send_record("worker-0", snapshot=older)
    play.send_record("worker-1")
    assert play.at(Stage.RESERVE)
    wanted = Snapshot(3, 5, "b")
    play.send_record("worker-1", snapshot=wanted, source=Source("10.0.0.3", 7000))
    assert play.at(Stage.LAUNCH)
    desired = play.order
    assert (desired.attempt, desired.snapshot, desired.sources) == (1, wanted, [Source("10.0.0.3", 7000)])


def queued(count: int = 2, **terms: Any) -> Play:
    """Return a gang whose slots are held by an earlier job, and have all reported that."""
    play = Play(count, queued=True, **terms)
    for name in play.names:
        play.send_record(name, queued=True, port=0)
    return play


def test_a_queued_job_waits_for_a_lost_slot_until_its_turn_and_then_for_the_join_timeout() -> None:
    play = queued()
    play.lose("worker-1")
    play.wait(100_000.0)
    assert play.at(Stage.QUEUE)
    play.send_record("worker-0", queued=False)
    assert scheduling.deadline(play.gang, play.now) == play.now + 60.0
    play.wait(60.0)
    play.close()
    assert play.result.reason == "worker-1 (10.0.0.3) did not join within 60 s; nothing was started"
    assert not play.result.started


def test_the_timeout_of_a_queued_job_counts_from_its_start() -> None:
    play = queued(policy=Policy(timeout_s=100.0))
    play.wait(1000.0)
    play.report_all(queued=False, port=2223)
    play.report_all(held=True, closed=False)
    for name in play.names:
        play.send_record(name, probe_results={other: "" for other in play.names if other != name})
    assert play.at(Stage.GO)
    assert play.gang.job_deadline == play.now + 100.0
