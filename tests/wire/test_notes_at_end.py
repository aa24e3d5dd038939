"""Reports at the end of a job that succeeded: a loss that is not a number, and a script that does nothing."""

from __future__ import annotations

import pytest

from tests.program import Program

pytestmark = pytest.mark.wire

DIVERGES = """
for epoch in range(1, 4):
    print(f"Epoch {epoch}/3", flush=True)
    print(f"8/8 - 1s - loss: {'0.5' if epoch == 1 else 'nan'} - 1s/epoch", flush=True)
"""
UNCALLED = """
def main():
    print("training")
"""


def test_a_loss_that_is_not_a_number_is_a_warning_at_once_and_at_the_end(two: Program) -> None:
    two.script("task.py", DIVERGES)
    ran = two.run("train", "task.py")
    at_once, _, at_end = ran.err.partition("succeeded")
    assert at_once.count("warning: loss is nan since epoch 2") == 1
    assert at_end.count("warning: loss is nan since epoch 2") == 1
    assert "warning: loss is nan since epoch 2" in two.run("logs").err


def test_a_script_that_never_calls_main_is_reported(two: Program) -> None:
    two.script("idle.py", UNCALLED)
    ran = two.run("train", "idle.py")
    assert "idle.py:2: the script defines functions, but calls none of them" in ran.err
    assert "s and printed nothing: check that the script calls its main function" in ran.err
    assert "printed nothing" not in two.run("train", "--", "echo", "done").err
