from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleet.results.runs import Runs, run_of, scalars_of


@pytest.mark.parametrize(
    ("path", "run"),
    [
        ("tensorboard/worker-1/events.out.tfevents.150.host.1.0", "worker-1"),
        ("files/worker-1/logs/fit/events.out.tfevents.200.host", "worker-1/logs/fit"),
        ("checkpoints/eval/events.out.tfevents.50.host", "chief-0/eval"),
        ("others/worker-1/model/x/events.out.tfevents.250", "worker-1/x"),
    ],
)
def test_the_run_of_an_event_file_names_task_and_subdirectories(path: str, run: str) -> None:
    assert run_of(path, "chief-0") == run


def test_unknown_values_and_values_of_a_wrong_type_are_left_out() -> None:
    sample = {
        "at": 1.0, "cpu_percent": 50.0, "memory_bytes": 1 << 20, "epoch": None, "step": True, "steps_per_s": "fast",
        "gpus": [{"number": 1, "percent": 3.0, "memory_mib": None}, 7], "metrics": {"loss": 0.5, "bad": []},
    }  # fmt: skip
    assert scalars_of(sample) == {
        "fleet/cpu_percent": 50.0, "fleet/memory_mib": 1.0, "fleet/gpu-1/percent": 3.0, "fleet/metrics/loss": 0.5
    }  # fmt: skip
    assert scalars_of({"gpus": 3, "metrics": "x"}) == {}


def scalars(directory: Path) -> list[tuple[int, str, float]]:
    from tensorboard.compat.proto.event_pb2 import Event

    (file,) = directory.glob("*tfevents*")
    data, events = file.read_bytes(), []
    while data:  # TFRecord: length, its checksum, the record, its checksum
        size = int.from_bytes(data[:8], "little")
        events.append(Event.FromString(data[12 : 12 + size]))
        data = data[16 + size :]
    return [(event.step, value.tag, value.simple_value) for event in events for value in event.summary.value]


def test_what_was_added_is_appended_and_links_are_not_followed(tmp_path: Path) -> None:
    results, runs = tmp_path / "results", tmp_path / "runs"
    log = results / "logs/worker-0/attempt-2.telemetry.jsonl"
    events = results / "tensorboard/worker-0/train/events.out.tfevents.150.host"
    for path in (log, events):
        path.parent.mkdir(parents=True)
    log.write_text(json.dumps({"at": 100.0, "cpu_percent": 5.0}) + "\n")
    events.write_bytes(b"first")
    events.with_name("events.out.tfevents.1.link").symlink_to("/etc/passwd")
    (results / "big.bin").write_bytes(b"x")
    made = Runs(results, runs)
    assert made.refresh() == 1
    copy = runs / "worker-0/train" / events.name
    number = copy.stat().st_ino
    assert scalars(runs / "worker-0/fleet") == [(0, "fleet/cpu_percent", 5.0)]

    events.unlink()
    events.write_bytes(b"first, second")
    log.write_text(log.read_text() + json.dumps({"at": 104.5, "step": 7}) + "\n{")
    assert made.refresh() == 1
    assert (copy.read_bytes(), copy.stat().st_ino) == (b"first, second", number)
    assert scalars(runs / "worker-0/fleet")[1:] == [(4, "fleet/step", 7.0)]
    events.write_bytes(b"new")
    made.refresh()
    assert copy.read_bytes() == b"new"
    assert sorted(path.name for path in runs.rglob("*") if path.is_file()) == sorted(
        [events.name, "events.out.tfevents.100.fleet"]
    )
