"""Tests of the thread that waits for all connections."""

from __future__ import annotations

import threading

import pytest

from fleet.remote.ssh.loop import Loop


def test_a_loop_whose_thread_could_not_start_starts_it_with_the_next_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    loop = Loop()
    called = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="new thread"):
            loop.call_soon(called.set)
        assert not called.is_set()
    loop.call_soon(called.set)
    assert called.wait(90)


def test_a_function_that_fails_does_not_end_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    called = threading.Event()
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(called.set)
    assert called.wait(90)
    assert "ZeroDivisionError" in caplog.text
