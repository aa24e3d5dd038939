"""The state that the threads of a follower share."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from fleet.remote.follower import GIVE_UP_S, _Queue, _Terms
from train.agent.protocol.records import JobResult, Outcome


def test_results_that_arrive_together_are_acted_on_once() -> None:
    """Check that each callback runs once: it starts a thread, which is an error the second time."""
    terms = _Terms(["a", "b"], lambda _: None, _Queue(2), GIVE_UP_S, 1.0, replaced=False, check=lambda: None)  # type: ignore[arg-type,return-value]
    calls: list[str] = []
    both = threading.Barrier(2)

    def on_known() -> None:
        calls.append("known")
        both.wait(10)

    terms.on_known = on_known
    terms.on_confirmed = lambda: calls.append("reported")
    result = JobResult("j", 1, Outcome.SUCCEEDED, 1.0)
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(terms.learn, "a", result)
        while not terms.known.is_set():
            pass
        terms.learn("b", result)
        both.wait(10)
        first.result(10)
    assert sorted(calls) == ["known", "reported"]


def test_the_report_of_one_host_does_not_end_the_patience_with_the_others() -> None:
    terms = _Terms(["a", "b", "c"], lambda _: None, _Queue(3), GIVE_UP_S, 1.0, replaced=False, check=lambda: None)  # type: ignore[arg-type,return-value]
    result = JobResult("j", 1, Outcome.SUCCEEDED, 1.0)
    for _ in range(2):
        terms.learn("a", result)
        assert not terms.confirmed.is_set()
        assert not terms.over.is_set()
    terms.learn("b", result)
    assert terms.confirmed.is_set()
