"""Test where a new job is in the queue of a fleet."""

from __future__ import annotations

import pytest

from fleet.events import Note
from fleet.jobs.queue import announce_next, choose_place
from tests.unit.fleet.clouds import Kept
from train.agent.protocol.records import JobReport, JobResult, Outcome, Phase

ENDED = JobResult("", 1, Outcome.FAILED, 2.0)


def report(job: str, at: float, after: str = "", *, ended: bool = False) -> JobReport:
    result = ENDED._replace(job=job) if ended else None
    started = JobReport(job, "demo", "worker-0", "worker-0", 1, Phase.WAITING, not ended, at, [], [], 0)
    return started._replace(result=result, queued_after=after)


def on_two_hosts(*reports: JobReport) -> list[tuple[str, JobReport]]:
    return [(host, item) for host in ("worker-0", "worker-1") for item in reports]


OLD = report("20261121-090000-aaaa", 1.0, ended=True)
RUNNING = report("20261121-100000-aaaa", 20.0)
# The clock of the computer that queued it was behind.
FIRST = report("20261121-080000-bbbb", 30.0, RUNNING.job)._replace(job_name="first")
SECOND = report("20261121-103000-cccc", 40.0, FIRST.job)


@pytest.mark.parametrize(
    ("reference", "place"),
    [
        ("-1", (SECOND.job, "")),
        ("first", (SECOND.job, f"other jobs are queued after job {FIRST.job} already")),
        (SECOND.job, (SECOND.job, "")),
        (OLD.job, (SECOND.job, f"job {OLD.job} has already ended")),
    ],
)
def test_a_named_job_is_waited_for_behind_all_queued_ones(reference: str, place: tuple[str, str]) -> None:
    assert choose_place(reference, on_two_hosts(OLD, RUNNING, FIRST, SECOND), "demo") == place


def test_the_job_that_starts_after_a_stop_is_named() -> None:
    sink = Kept()
    reports = on_two_hosts(RUNNING, FIRST, SECOND)
    announce_next(reports, SECOND.job, "default", sink)
    assert not sink.events
    announce_next(reports, RUNNING.job, "default", sink)
    (note,) = sink.events
    assert isinstance(note, Note)
    assert note.text == f"job {FIRST.job} was queued and starts now; `fleet stop {FIRST.job}` stops it"
