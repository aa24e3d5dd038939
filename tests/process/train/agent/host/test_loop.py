"""Test the timers of the event loop."""

from __future__ import annotations

import os

from train.agent.host.loop import READ, Loop

LONG_S = 3600.0


def test_a_timer_with_slack_waits_for_another_timer() -> None:
    loop, calls = Loop(), list[str]()
    loop.after("late", 0.0, lambda: calls.append("late"), slack_s=LONG_S)
    loop.after("other", 0.0, lambda: calls.append("other"))
    loop.turn()
    assert calls == ["late", "other"]


def test_a_timer_with_slack_that_is_due_is_called_after_an_event() -> None:
    loop, calls = Loop(), list[str]()
    reads, writes = os.pipe()
    loop.watch(reads, READ, lambda _: calls.append("event"))
    loop.after("due", 0.0, lambda: calls.append("due"), slack_s=LONG_S)
    loop.after("not due", LONG_S, lambda: calls.append("not due"), slack_s=LONG_S)
    os.write(writes, b"x")
    loop.turn()
    assert calls == ["event", "due"]
    loop.close()
    os.close(reads)
    os.close(writes)


def test_a_timer_with_slack_is_called_at_the_end_of_its_slack() -> None:
    loop, calls = Loop(), list[str]()
    loop.after("alone", 0.0, lambda: calls.append("alone"), slack_s=0.01)
    while not calls:
        loop.turn()
    assert not loop.waits_for("alone")
