"""Rounds and parts of a run of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness import session as module
from benchmarks.harness.model import Goal, Sample
from benchmarks.harness.session import Session

ONE: Sample = {"wall": 1.0}


def test_a_slow_measurement_has_the_rounds_of_a_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module._SHARE_S, "default", -1.0)
    session = Session(tmp_path, "default")
    session.measure("slow", {"ours": lambda: ONE, "theirs": lambda: ONE}, runs=7)
    [scene] = session.scenes
    assert [len(runs) for runs in scene.series.values()] == [3, 3]
    assert scene.problems["all"] == "4 of 7 rounds, because they take too long"


def test_a_fast_measurement_has_all_rounds(tmp_path: Path) -> None:
    session = Session(tmp_path, "default")
    session.measure("fast", {"ours": lambda: ONE}, runs=7)
    assert len(session.scenes[0].series["ours"]) == 7


def test_only_selected_parts_and_measurements_are_made(tmp_path: Path) -> None:
    session = Session(tmp_path, "quick", "same")
    for title in ("the same files", "new files"):
        session.attempt(title, lambda: session.measure("8 hosts", {"ours": lambda: ONE}, runs=1))
    session.measure("alone, the same", {"ours": lambda: ONE}, runs=1)
    session.measure("alone, new", {"ours": lambda: ONE}, runs=1)
    session.keep_scene("kept, new", {"ours": [ONE]}, [Goal("wall", "ours")])
    assert [scene.title for scene in session.scenes] == ["8 hosts", "alone, the same"]
