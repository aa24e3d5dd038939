"""Test the timers of the event loop."""

from __future__ import annotations

import os

from train.agent.host.loop import READ, Loop

LONG_S = 3600.0


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
