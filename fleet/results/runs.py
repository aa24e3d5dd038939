"""Arrange pulled event files and telemetry as TensorBoard's runs: TASK/…, the telemetry in TASK/fleet.

Names and contents come from hosts: only regular files are read, and all paths that are written are inside the
directory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

EVENT_FILE = ".tfevents."
"""Part of the names of event files."""

NAMES = (EVENT_FILE, ".telemetry.jsonl")
"""Parts of the names of all files that a directory of runs is made of."""

_TELEMETRY = re.compile(r"attempt-([0-9]{1,9})\.telemetry\.jsonl")
_MOST_BYTES = 16 << 20  # of telemetry that is read
_MIB = 1 << 20
_STEP_TIMES = ("step_s", "input_s", "python_s")


def run_of(path: str, chief: str) -> str:
    """Return the run of an event file.

    Args:
        path: Path of the file in the directory of results, see fleet.results.layout.
        chief: The task that has the model and the checkpoints.
    """
    kind, *parts = path.split("/")[:-1]
    if kind == "others":
        parts = parts[:1] + parts[2:]
    elif kind in ("model", "checkpoints"):
        parts = [chief, *parts]
    return "/".join(parts or [chief])


def scalars_of(sample: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of a sample of telemetry by tag; values that are unknown or of a wrong type are left out."""
    memory: Any = sample.get("memory_bytes")
    values: dict[str, Any] = {name: sample.get(name) for name in ("cpu_percent", "epoch", "step", "steps_per_s")}
    values |= {name.replace("_s", "_ms"): 1000 * sample[name] for name in _STEP_TIMES if _is_number(sample.get(name))}
    values["memory_mib"] = memory / _MIB if _is_number(memory) else None
    gpus, metrics = sample.get("gpus"), sample.get("metrics")
    for gpu in gpus if isinstance(gpus, list) else []:
        if isinstance(gpu, dict) and isinstance(gpu.get("number"), int):
            values |= {f"gpu-{gpu['number']}/{name}": gpu.get(name) for name in ("percent", "memory_mib")}
    if isinstance(metrics, dict):
        values |= {f"metrics/{name}": value for name, value in metrics.items()}
    return {f"fleet/{name}": float(value) for name, value in values.items() if _is_number(value)}


def samples_in(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the samples of a telemetry file; damaged lines are left out."""
    for line in data.splitlines():
        try:
            sample = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(sample, dict) and _is_number(sample.get("at")):
            yield sample


def read_telemetry(results: Path) -> Iterator[tuple[str, int, list[dict[str, Any]]]]:
    """Yield task, attempt, and samples of each telemetry file in a directory of results, by task and attempt."""
    files = []
    for path in _regular_files(results):
        kind, task, name = [*path.split("/", 2), "", ""][:3]
        if kind == "logs" and (match := _TELEMETRY.fullmatch(name)):
            files.append((task, int(match[1]), results / path))
    for task, attempt, file in sorted(files):
        with file.open("rb") as telemetry:
            yield task, attempt, list(samples_in(telemetry.read(_MOST_BYTES)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300


class Runs:
    """A directory for TensorBoard, made of a directory of results.

    TensorBoard keeps event files open, and a pull replaces them; so they are copied, and what was added is appended.

    Args:
        results: The directory of results.
        directory: The directory for TensorBoard.
    """

    def __init__(self, results: Path, directory: Path) -> None:
        self._results = results
        self._directory = directory
        self._times: dict[str, tuple[float, float]] = {}  # of the first and the last sample that was written, by run

    def refresh(self) -> int:
        """Bring the directory up to date; return the number of event files of the script."""
        files = list(_regular_files(self._results))
        tasks = [path.split("/")[1] for path in files if path.count("/") > 1]
        chief = next((task for task in tasks if task.startswith(("chief", "master"))), "worker-0")
        events = [path for path in files if EVENT_FILE in path.rpartition("/")[2]]
        for event_file in events:
            target = self._directory / run_of(event_file, chief) / event_file.rpartition("/")[2]
            _append_new(self._results / event_file, target)
        for task, _, samples in read_telemetry(self._results):
            self._write_telemetry(f"{task}/fleet", samples)
        return len(events)

    def _write_telemetry(self, run: str, samples: Sequence[Mapping[str, Any]]) -> None:
        first, last = self._times.get(run, (0.0, 0.0))
        new = [sample for sample in samples if sample["at"] > last]
        if new:
            first = first or new[0]["at"]
            self._times[run] = first, new[-1]["at"]
            rows = [(sample["at"], int(sample["at"] - first), scalars_of(sample)) for sample in new]
            write_scalars(self._directory / run / f"events.out{EVENT_FILE}{int(first)}.fleet", rows)


def write_scalars(path: Path, rows: Sequence[tuple[float, int, Mapping[str, float]]]) -> None:
    """Append scalars to an event file: time, step, and values by tag."""
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import RecordWriter

    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("ab") as file:
        writer = RecordWriter(file)
        if is_new:
            writer.write(event_pb2.Event(wall_time=rows[0][0], file_version="brain.Event:2").SerializeToString())
        for at, step, values in rows:
            summary = summary_pb2.Summary(
                value=[summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
            )
            writer.write(event_pb2.Event(wall_time=at, step=step, summary=summary).SerializeToString())


def _append_new(source: Path, target: Path) -> None:
    """Append what was added to an event file; one that became shorter is copied again."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reader, target.open("ab") as writer:
        size = writer.seek(0, os.SEEK_END)
        if os.fstat(reader.fileno()).st_size < size:
            writer.truncate(0)
            size = 0
        reader.seek(size)
        shutil.copyfileobj(reader, writer)


def _regular_files(directory: Path) -> Iterator[str]:
    """Yield the files that runs are made of, relative to the directory, in order; links are not followed."""
    for root, directories, names in os.walk(directory):
        directories[:] = sorted(name for name in directories if not name.startswith(".fleet-results"))
        for name in sorted(names):
            path = Path(root) / name
            if any(part in name for part in NAMES) and stat.S_ISREG(path.lstat().st_mode):
                yield path.relative_to(directory).as_posix()
