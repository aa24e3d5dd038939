"""Real TensorFlow on a local fleet: the demo."""

from __future__ import annotations

import pytest

from tests.e2e.tutorials import losses
from tests.program import Program

pytestmark = pytest.mark.e2e


def test_the_demo_trains_and_deletes_its_fleet(program: Program) -> None:
    ran = program.run("demo", timeout=180)
    for task in ("worker-0", "worker-1"):
        values = losses(ran, task)
        assert len(values) == 3
        assert values[-1] < 0.5 * values[0]
    assert "legacy Keras" in ran.err
    assert "0 left" in ran.err
    assert not program.processes()
    assert not list((program.state / "local").glob("*"))
