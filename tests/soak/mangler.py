"""Create valid records and almost valid bytes for the campaign `fuzz`."""

from __future__ import annotations

import contextlib
import json
import random
from typing import Any

from train.agent.protocol import records
from train.agent.protocol.records import Entry, EntryKind, Exit, Member

_ODD: list[Any] = [
    None, True, False, 0, -1, 1 << 62, 1 << 63, 10**30, 1e308, float("inf"), float("nan"), "", "\ud800", "\udc80",
    "\0", "é", "../..", "/etc/passwd", "x" * 5000, "\x1b[2J\nnext: x", [], {}, [[]], {"a": {"b": []}}, ["x"] * 50,
]  # fmt: skip


class Mangler:
    """Create bytes that are almost valid, and bytes that are not.

    Args:
        seed: Seed; the same seed creates the same bytes.
    """

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def anything(self) -> bytes:
        """Return bytes of any kind."""
        make = self.random.choice([self._noise, self._nested, self._numbers, self._text])
        return make()

    def _noise(self) -> bytes:
        return self.random.randbytes(self.random.choice([0, 1, 7, 100, 5000, 70_000]))

    def _nested(self) -> bytes:
        count = self.random.choice([10, 1000, 4000, 60_000])
        return self.random.choice([b"[", b'{"a":', b"[{", b'[["']) * count + b"\n"

    def _numbers(self) -> bytes:
        return b'{"hello":%s}\n' % self.random.choice([b"9" * 4000, b"1e999", b"NaN", b"-0", b"1" + b"0" * 3000])

    def _text(self) -> bytes:
        return json.dumps(self.random.choice(_ODD)).encode() + b"\n"

    def damage(self, line: bytes) -> bytes:
        """Return a valid line of JSON with a change to its bytes or to its values."""
        if self.random.random() < 0.6:
            with contextlib.suppress(ValueError):
                return json.dumps(self.change(json.loads(line))).encode() + b"\n"
        data = bytearray(line)
        for _ in range(self.random.randint(1, 4)):
            at = self.random.randrange(len(data) + 1)
            data[at : at + self.random.randint(0, 3)] = self.random.randbytes(self.random.randint(0, 3))
        return bytes(data)

    def change(self, value: Any) -> Any:
        """Return a JSON value with one part replaced."""
        if isinstance(value, (dict, list)) and value and self.random.random() < 0.8:
            keys = list(value) if isinstance(value, dict) else list(range(len(value)))
            key = self.random.choice(keys)
            copy = dict(value) if isinstance(value, dict) else list(value)
            copy[key] = self.change(value[key])
            return copy
        return self.random.choice(_ODD)


def sample_records() -> list[records.Record]:
    """Return a valid record of most kinds."""
    member = Member("worker-1", "worker-1", "10.0.0.2", 2222, 4000)
    done = Exit(code=1)
    result = records.JobResult("j", 1, records.Outcome.FAILED, 1.0, "worker-1", "x", {"worker-1": done})
    progress = records.Progress("worker-1", "worker-1", 1, 1.0, 1, 2, 3, 4, {"loss": 0.5}, 2.0)
    usage = records.Usage("worker-1", "worker-1", 1.0, 50.0, 1 << 20, [records.GpuUse(0, 1.0, 2)])
    return [
        records.Hello("a", "3.11", 1, "127.0.0.1"),
        records.NeedContents(["0" * 64], 5),
        records.Prepared(member, "p", {"python": "3"}, [records.Gpu(0, "T4", 1, "5")], 1, 1, "h", "w"),
        records.Refused(records.Refusal.BUSY, "busy", job="j"),
        records.BootstrapStep("downloading", "x", 1, 2),
        records.SmokeTestResult(1.0, True, done, ["x"]),
        records.JoinInfo("f", [Entry("a", EntryKind.FILE)], _commit(member)),
        records.Stopped(True, True),
        records.JobReport("j", "f", "worker-1", "worker-1", 1, records.Phase.EXITED, True, 1.0, ["x"], [member], 5,
                          done, result, progress, usage),
        records.TaskState("worker-1", "worker-1", 1, records.Phase.EXITED, 1.0, 5, done),
        records.AttemptEnded("worker-1", 1, 1.0, "worker-1", "x", {"worker-1": done}, 1.0),
        records.HangInspection("worker-1", "worker-1", 1, 1.0, "S", "stack", ["socket"]),
        records.Notice("worker-1", 1, 1.0, "text"),
        progress, usage, result,
        records.Log("worker-1", "worker-1", 1, 0, 5, 1795228844.7, [2, 15_000]),
        records.Beat(1.0),
        records.End(),
    ]  # fmt: skip


def _commit(member: Member) -> records.Commit:
    return records.Commit("j", "worker-1", [member], "00", ["x"], {"A": "b"}, {})
