"""Verdicts of the benchmarks, and the document that is made of their results."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.document import BEGIN, END, write_document
from benchmarks.harness.model import Goal, GroupResult, Scene, from_json, judge, to_json
from benchmarks.harness.text import number, scene_lines

SCENE = Scene(
    "`true` on 2 hosts",
    "wall",
    {
        "fleet exec": [{"wall": 0.5, "client_cpu": 0.1}, {"wall": 0.7, "client_cpu": 0.3}, {"wall": 0.6}],
        "pdsh": [{"wall": 1.2}],
        "clush": [],
    },
    (
        Goal("wall", "fleet exec", "pdsh", 0.5),
        Goal("wall", "fleet exec", "clush", 0.5),
        Goal("wall", "fleet exec", "", 0.5),
        Goal("wall", "fleet exec", "pdsh", 0.6, at_least=True),
        Goal("client_cpu", "fleet exec"),
    ),
    {"clush": "clush is not installed"},
)
FAILED = Scene("`true` on 256 hosts", "wall", {}, problems={"all": "a local fleet has at most 64 workers"})


def result() -> dict[str, GroupResult]:
    return {
        "exec": GroupResult(
            "exec", "2026-11-23 04:00", "2 cores", "abc", "default", "control group", 9.0, (SCENE, FAILED)
        )
    }


def test_verdicts_compare_medians() -> None:
    judged = [judge(SCENE, goal) for goal in SCENE.goals]
    assert [verdict.value for verdict in judged] == pytest.approx([0.5, None, 0.6, 0.5, 0.2])
    assert [verdict.reached for verdict in judged] == [True, None, False, False, None]


def test_the_median_of_pairs_has_a_range() -> None:
    runs = {"ours": [{"steps": 9.0}, {"steps": 30.0}, {"steps": 10.0}], "theirs": [{"steps": 10.0}] * 3}
    goal = Goal("steps", "ours", "theirs", 0.99, at_least=True, paired=True)
    line = "ours / theirs, steps per second, median of the pairs: 1.00 \N{MULTIPLICATION SIGN} (0.90 to 3.00)"
    assert line in "\n".join(scene_lines(Scene("steps", "steps", runs, (goal,))))


@pytest.mark.parametrize(
    ("value", "text"), [(12345.6, "12,346"), (99.97, "100"), (9.996, "10.0"), (0.5, "0.50"), (0.0123, "0.012")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_lines_name_every_program_goal_and_problem() -> None:
    lines = "\n".join(scene_lines(SCENE))
    assert "fleet exec: n=3; wall time 0.60 s (0.50 to 0.70)" in lines
    assert "fleet exec / pdsh, wall time: 0.50 \N{MULTIPLICATION SIGN}; goal: at most 0.5: reached (n = 1)" in lines
    assert "fleet exec, wall time: 0.60 s; goal: at most 0.5 s: MISSED\n" in lines
    assert "! clush: clush is not installed" in lines


def test_results_survive_json() -> None:
    document = json.loads(json.dumps(to_json(result())))
    assert to_json(from_json(document)) == document


def test_only_the_generated_part_of_the_document_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(f"# Performance\n{BEGIN}\nold\n{END}\n## What made it faster\n")
    write_document(result(), tmp_path)
    written = write_document(result(), tmp_path)
    text = page.read_text()
    assert text.startswith("# Performance\n")
    assert text.endswith("\n## What made it faster\n")
    assert "old" not in text
    row = "| `true` on 2 hosts | fleet exec / pdsh, wall time | 0.50 \N{MULTIPLICATION SIGN} | at most 0.5 | reached"
    assert f"{row} (n = 1) |" in text
    assert "a local fleet has at most 64 workers" in text
    assert "(performance/exec.svg)" in text
    bars = ET.parse(written[1]).findall("{http://www.w3.org/2000/svg}rect")
    assert [bar.get("class") for bar in bars] == ["fleet", "bar"]
