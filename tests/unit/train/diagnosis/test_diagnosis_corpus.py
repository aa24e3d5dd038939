"""Real logs, each from a run of two or three workers with a deliberate failure.

Paths and addresses in them were replaced and startup lines of TensorFlow were removed; every other byte is original.
Logs in `v215-*` are from TensorFlow 2.15.1, all others from 2.21.0; in `mixed` worker 0 has the older version, worker
1 the newer. A directory has the ends of the tasks, their logs, and the verdict: task, kind, and parts of its texts.
Directories with a `job.json` are complete jobs of `fleet train`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Cause, TaskEvidence, Verdict

LOGS = Path(__file__).with_name("logs")
CASES = sorted(directory.name for directory in LOGS.iterdir())


def evidence(case: str) -> list[TaskEvidence]:
    ends = json.loads((LOGS / case / "ends.json").read_text())
    result = []
    for task, end in ends.items():
        log = (LOGS / case / f"{task}.log").read_bytes()
        item = TaskEvidence(
            task,
            end.get("address", ""),
            Exit(end["code"], end["signal"]) if end["at"] else None,
            1.7e9 + end["at"],
            stopped_by_us=end["ours"],
            log_tail=log,
            log_head=log[:16384],
            inspection=HangInspection(**{"slot": task, **end["inspection"]}) if "inspection" in end else None,
            port=end.get("port", 0),
        )
        result.append(item)
    return result


def how_it_ended(case: str) -> tuple[str, Reason]:
    """Return the task that failed first and the reason, as the agents reported them."""
    file = LOGS / case / "job.json"
    if not file.exists():
        return "", NO_REASON
    job = json.loads(file.read_text())
    return job["first_failed_task"], Reason(job["reason"], ReasonKind(job["reason_kind"]))


@pytest.mark.parametrize("case", CASES)
def test_each_log_has_its_verdict(case: str) -> None:
    expected = json.loads((LOGS / case / "verdict.json").read_text())
    tasks, ended = evidence(case), how_it_ended(case)
    result = diagnose(tasks, Outcome.FAILED, *ended)
    assert isinstance(result, Verdict)
    assert result.kind.value == expected["kind"], result.message
    assert diagnose(tasks, Outcome.SUCCEEDED, "worker-1") is None
    if "task" not in expected:  # all tasks exited with code 0
        return
    assert result.task == expected["task"], result.message
    assert expected["message"] in result.message
    assert result.traceback == expected["traceback"]
    assert expected.get("hint", "") in result.hint
    assert bool(result.hint) == (result.kind is not Cause.UNKNOWN)
    assert not re.search(r"[\x00-\x08\x0a-\x1f]", "".join((result.message, *result.lines)))
    if "consequences" in expected:
        assert result.consequences == tuple(expected["consequences"])
        assert 0 < len(result.lines) <= 12
    windows = [replace(item, log_tail=item.log_tail.replace(b"\n", b"\r\n")) for item in tasks]
    changed = diagnose(windows, Outcome.FAILED, *ended)
    assert changed is not None
    assert (changed.kind, changed.task) == (result.kind, result.task)
