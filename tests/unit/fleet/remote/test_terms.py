"""The state that the threads of a follower share."""

from __future__ import annotations

from fleet.remote.follower import GIVE_UP_S, Queue, Terms
from train.agent.protocol.records import JobResult, Outcome


def test_the_report_of_one_host_does_not_end_the_patience_with_the_others() -> None:
    terms = Terms({"a", "b", "c"}, lambda _: None, Queue("abc"), GIVE_UP_S, 1.0, False, lambda: None)  # type: ignore[arg-type,return-value]
    result = JobResult("j", 1, Outcome.SUCCEEDED, 1.0)
    for _ in range(2):
        terms.add_result("a", result)
        assert terms.ended.is_set()
        assert not terms.over.is_set()
    terms.add_result("b", result)
    assert terms.over.is_set()
