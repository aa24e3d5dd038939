from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from train.agent.files.telemetry import LONGEST_LINE, TelemetryWriter, format_sample
from train.agent.protocol.records import GpuUse, Progress, Usage

USAGE = Usage("worker-1", "worker-1", 5.0, 93.5, 1 << 30, [GpuUse(0, 71.0, 900)])
PROGRESS = Progress(
    "worker-1", "worker-1", 1, 5.0, 2, 10, 7, -1, {"loss": 0.5, "nan": float("nan")}, 3.5, input_s=0.2
)


def test_a_sample_has_usage_and_progress_and_null_for_unknown_values() -> None:
    sample = json.loads(format_sample("worker-1", 5.0004, USAGE, PROGRESS))
    assert sample == {
        "at": 5.0, "task": "worker-1", "cpu_percent": 93.5, "memory_bytes": 1 << 30,
        "gpus": [{"number": 0, "percent": 71.0, "memory_mib": 900}],
        "epoch": 2, "epochs": 10, "step": 7, "steps": None, "steps_per_s": 3.5, "step_s": None,
        "input_s": 0.2, "python_s": None, "metrics": {"loss": 0.5, "nan": None},
    }  # fmt: skip
    unknown = json.loads(format_sample("worker-1", 5.0, None, None))
    assert {name for name, value in unknown.items() if value not in (None, [], {})} == {"at", "task"}


def test_the_length_of_a_line_is_bounded() -> None:
    many = PROGRESS._replace(metrics={f"{number:0300d}": 1.0 for number in range(24)})
    line = format_sample("worker-1", 5.0, USAGE, many)
    assert len(line) <= LONGEST_LINE
    assert json.loads(line)["epoch"] == 2


def test_the_file_stays_small_readable_and_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train.agent.files.telemetry.MOST_SAMPLES", 64)
    path = tmp_path / "telemetry.jsonl"
    writer = TelemetryWriter(str(path))
    assert not path.exists()
    for number in range(300):
        writer.add(format_sample("worker-0", 5.0 * number, USAGE, PROGRESS))
    times = [json.loads(line)["at"] for line in path.read_text().splitlines()]
    assert len(times) <= 64
    assert times == sorted(times)
    assert (times[0], times[-1]) == (0.0, 1495.0)
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert gaps == sorted(gaps, reverse=True)  # the older the fewer
    assert gaps[-1] == 5.0


def test_a_line_that_a_crash_cut_off_does_not_damage_the_next(tmp_path: Path) -> None:
    path = tmp_path / "telemetry.jsonl"
    line = format_sample("worker-0", 1.0, None, None)
    path.write_bytes(line + line[:20])
    writer = TelemetryWriter(str(path))
    writer.add(line)
    assert path.read_bytes() == line + line[:20] + b"\n" + line


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    TelemetryWriter(str(tmp_path / "missing" / "telemetry.jsonl")).add(b"{}\n")
