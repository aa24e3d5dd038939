"""Rounds and parts of a run of the benchmarks."""

from __future__ import annotations

from functools import partial
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


def test_pairs_are_made_in_alternating_order_and_only_whole_ones_are_kept(tmp_path: Path) -> None:
    session, calls = Session(tmp_path, "default"), []

    def case(name: str) -> Sample:
        calls.append(name)
        if len(calls) == 3:
            raise TimeoutError("late")
        return {"wall": float(len(calls))}

    goal = Goal("wall", "ours", "theirs", paired=True)
    cases = {name: partial(case, name) for name in ("ours", "theirs")}
    session.measure("pairs", cases, [goal], runs=4, warmups=0, least=4)
    assert calls == ["theirs", "ours", "ours", "theirs"] * 2
    [scene] = session.scenes
    assert [[run["wall"] for run in runs] for runs in scene.series.values()] == [[2.0, 6.0, 7.0], [1.0, 5.0, 8.0]]


def test_only_selected_parts_and_measurements_are_made(tmp_path: Path) -> None:
    session = Session(tmp_path, "quick", "same")
    for title in ("the same files", "new files"):
        session.attempt(title, lambda: session.measure("8 hosts", {"ours": lambda: ONE}, runs=1))
    session.measure("alone, the same", {"ours": lambda: ONE}, runs=1)
    session.measure("alone, new", {"ours": lambda: ONE}, runs=1)
    session.keep_scene("kept, new", {"ours": [ONE]}, [Goal("wall", "ours")])
    assert [scene.title for scene in session.scenes] == ["8 hosts", "alone, the same"]
