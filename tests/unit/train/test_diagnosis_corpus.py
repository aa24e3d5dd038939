# ruff: noqa: E501 - one row a line
"""Real logs, each from a run of two or three workers that failed in a way that was made on purpose.

Paths in them were made neutral and lines of TensorFlow's start-up were taken out; every other byte is as it was.
Those in `v215-*` are of TensorFlow 2.15.1, all others of 2.21.0; in `mixed` worker 0 has the one, worker 1 the other.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from train.agent.records import Exit, Outcome
from train.diagnosis import Kind, TaskEvidence, diagnose

LOGS = Path(__file__).with_name("logs")

# Case: task, kind, what the sentence says, where it was raised, whose errors only follow.
EXPECTED: dict[str, tuple[str, Kind, str, str, str]] = {
    "bad-alloc": ("worker-1", Kind.HOST_OUT_OF_MEMORY, "std::bad_alloc", "", "worker-0"),
    "chain": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised ConfigurationError: no learning rate for step 10 at task.py:59 in inner", "task.py:59 in inner", "worker-0"),
    "chain-from": ("worker-1", Kind.SCRIPT_EXCEPTION, "ConfigurationError: labels.json is broken", "task.py:90 in fault", "worker-0"),
    "ckpt-disk": ("worker-1", Kind.DISK_FULL, "No space left on device", "task.py:94 in fault", "worker-0"),
    "ckpt-missing": ("worker-1", Kind.CHECKPOINT_NOT_SHARED, "/data/ckpt-3", "task.py:95 in fault", "worker-0"),
    "ctl-handled": ("worker-1", Kind.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "duplicate": ("worker-0", Kind.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "endless": ("worker-0", Kind.DATA_RAN_OUT, "End of sequence; so did worker-1", "task.py:107 in <module>", ""),
    "exception": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number: nan at step 10", "task.py:67 in fault", "worker-0"),
    "exception0": ("worker-0", Kind.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-1"),
    "exit-text": ("worker-1", Kind.UNKNOWN, "its last words: no GPU on this host, giving up", "", "worker-0"),
    "exit0": ("worker-1", Kind.STOPPED_EARLY, "exited with code 0 while the others were still training", "", "worker-0"),
    "exit3": ("worker-1", Kind.UNKNOWN, "exited with code 3", "", "worker-0"),
    "faulthandler": ("worker-1", Kind.KILLED, "crashed in native code (SIGSEGV)", "", "worker-0"),
    "flag": ("", Kind.VERSION_MISMATCH, "different versions of TensorFlow or Keras", "keras_task.py:21 in <module>", ""),
    "g-exception": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-0"),
    "g-sigkill": ("worker-1", Kind.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "gen": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised KeyError: 'picture_13.png'", "task.py:32 in g", "worker-0"),
    "group": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised ValueError: invalid literal for int()", "task.py:103 in fault", "worker-0"),
    "import": ("worker-1", Kind.SCRIPT_EXCEPTION, "ModuleNotFoundError: No module named 'tensorflow_addons_x'", "task.py:10 in early", ""),
    "index-big": ("worker-1", Kind.WRONG_TF_CONFIG, "`task_id` 5 exceeds the maximum id", "task.py:17 in <module>", ""),
    "k-callback": ("worker-1", Kind.SCRIPT_EXCEPTION, "FloatingPointError: loss went up", "keras_task.py:27 in on_epoch_end", "worker-0"),
    "k-die": ("worker-0", Kind.UNKNOWN, "exited with code 7", "", "worker-1"),
    "k-dist": ("worker-0", Kind.SCRIPT_EXCEPTION, "you must specify the number of steps to run", "keras_task.py:35 in <module>", ""),
    "k-file": ("worker-0", Kind.DATA_CANNOT_BE_SHARDED, "the dataset only has 1 file(s)", "keras_task.py:36 in <module>", "worker-1"),
    "k-names": ("worker-0", Kind.KERAS_3, "has no attribute 'reset_states'", "keras_task.py:32 in <module>", ""),
    "k-unshared": ("", Kind.CHECKPOINT_NOT_SHARED, "resumed from different checkpoints", "keras_task.py:36 in <module>", "worker-0"),
    "k3": ("worker-1", Kind.KERAS_3, "Attempt to convert a value (PerReplica:", "keras_task.py:36 in <module>", ""),
    "label": ("worker-1", Kind.SCRIPT_EXCEPTION, "InvalidArgumentError: Received a label value of 7", "task.py:107 in <module>", "worker-0"),
    "length": ("", Kind.WRONG_TF_CONFIG, "do not agree on the cluster", "task.py:20 in <module>", "worker-2"),
    "memory": ("worker-1", Kind.HOST_OUT_OF_MEMORY, "Unable to allocate 32.0 GiB", "task.py:82 in fault", "worker-0"),
    "multiline": ("worker-1", Kind.SCRIPT_EXCEPTION, "RuntimeError: bad batch: shape (4, 8)", "task.py:68 in fault", "worker-0"),
    "name": ("worker-0", Kind.NAME_RESOLUTION, "worker-b.internal.invalid", "task.py:107 in <module>", "worker-1"),
    "net-cut0": ("worker-0", Kind.PEER_UNREACHABLE, "stopped answering worker-1 and worker-2", "", "worker-1 worker-2"),
    "net-cut2": ("worker-2", Kind.PEER_UNREACHABLE, "worker-0 lost worker-2", "", "worker-0 worker-1"),
    "net-swapped": ("worker-0", Kind.PEER_UNREACHABLE, "could not reach its own server", "", ""),
    "net-swapped3": ("", Kind.WRONG_TF_CONFIG, "unknown device", "task.py:107 in <module>", "worker-1"),
    "never": ("worker-1", Kind.PEER_NEVER_STARTED, "worker-0 waited for worker-1, which never joined", "", ""),
    "never0": ("worker-0", Kind.PEER_NEVER_STARTED, "worker-1 waited for worker-0, which never joined", "", ""),
    "npfile": ("worker-1", Kind.FILE_NOT_FOUND, "No such file or directory: 'data/train.npz'", "task.py:79 in fault", "worker-0"),
    "port-busy": ("worker-1", Kind.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "segv": ("worker-1", Kind.KILLED, "crashed in native code (SIGSEGV)", "", "worker-0"),
    "sigkill": ("worker-1", Kind.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "sigkill0": ("worker-0", Kind.KILLED, "was killed by SIGKILL", "", "worker-1"),
    "sigstop": ("worker-1", Kind.PEER_UNREACHABLE, "worker-0 lost worker-1", "", "worker-0"),
    "sigstop0": ("worker-0", Kind.PEER_UNREACHABLE, "stopped answering worker-1", "", "worker-1"),
    "sigterm-default": ("worker-1", Kind.KILLED, "was killed by SIGTERM", "", "worker-0"),
    "syntax": ("worker-1", Kind.SCRIPT_EXCEPTION, "SyntaxError: invalid syntax", "model.py:1", ""),
    "tf-oom": ("worker-1", Kind.HOST_OUT_OF_MEMORY, "OOM when allocating tensor", "task.py:84 in fault", "worker-0"),
    "usage": ("worker-1", Kind.UNKNOWN, "argument --epochs: invalid int value: 'ten'", "", ""),
    "mixed": ("", Kind.VERSION_MISMATCH, "Collective instance 101 expected type 1 and data_type 9", "keras_task.py:22 in <module>", "worker-0"),
    "v215-exception": ("worker-1", Kind.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-0"),
    "v215-exit0": ("worker-1", Kind.STOPPED_EARLY, "exited with code 0", "", "worker-0"),
    "v215-k-file": ("worker-0", Kind.DATA_CANNOT_BE_SHARDED, "FILE based sharding", "keras_task.py:36 in <module>", "worker-1"),
    "v215-never": ("worker-1", Kind.PEER_NEVER_STARTED, "worker-0 waited for worker-1, which never joined", "", ""),
    "v215-port": ("worker-1", Kind.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "v215-sigkill": ("worker-1", Kind.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "v215-sigstop": ("worker-1", Kind.PEER_UNREACHABLE, "worker-0 lost worker-1", "", "worker-0"),
    "v215-sigstop0": ("worker-0", Kind.PEER_UNREACHABLE, "stopped answering worker-1", "", "worker-1"),
}  # fmt: skip
# Those in which all tasks exited with code 0, whatever their logs say.
SUCCEEDED = ("k-ranout", "stagger", "thread")


def evidence(case: str) -> list[TaskEvidence]:
    ends = json.loads((LOGS / case / "ends.json").read_text())
    found = []
    for task, end in ends.items():
        log = (LOGS / case / f"{task}.log").read_bytes()
        ended = Exit(end["code"], end["signal"]) if end["at"] else None
        found.append(TaskEvidence(task, "", task, ended, 1.7e9 + end["at"], "", end["ours"], log, log[:16384]))
    return found


def test_every_log_has_its_verdict() -> None:
    assert {*EXPECTED, *SUCCEEDED} == {folder.name for folder in LOGS.iterdir()}


@pytest.mark.parametrize("case", EXPECTED)
def test_verdict(case: str) -> None:
    task, kind, says, place, consequences = EXPECTED[case]
    verdict = diagnose(evidence(case), Outcome.FAILED, "")
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (kind, task), verdict.sentence
    assert says in verdict.sentence
    assert verdict.traceback == place
    assert verdict.consequences == tuple(consequences.split())
    assert 0 < len(verdict.lines) <= 12
    assert bool(verdict.hint) == (kind is not Kind.UNKNOWN)
    assert not re.search(r"[\x00-\x08\x0a-\x1f]", "".join((verdict.sentence, *verdict.lines)))


@pytest.mark.parametrize("case", [*EXPECTED, *SUCCEEDED])
def test_success_has_no_cause(case: str) -> None:
    assert diagnose(evidence(case), Outcome.SUCCEEDED, "worker-1") is None


@pytest.mark.parametrize("case", SUCCEEDED)
def test_success_that_is_taken_for_a_failure_is_not_explained(case: str) -> None:
    verdict = diagnose(evidence(case), Outcome.FAILED, "")
    assert verdict is not None
    assert verdict.kind is Kind.UNKNOWN


PREFIXES = (
    "2026-11-21 03:35:%02d.%06d ",
    "worker-0 | ",
    "[1,%d]<stderr>:",
    "  |   | 2021-11-17 12:30:%02d | ",
    "%d: ",
)


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("case", EXPECTED)
def test_prefixes_change_nothing(case: str, prefix: str) -> None:
    prefixed = [replace(one, log_tail=with_prefix(one.log_tail, prefix)) for one in evidence(case)]
    verdict = diagnose(prefixed, Outcome.FAILED, "")
    assert verdict is not None
    task, kind, _, place, _ = EXPECTED[case]
    assert (verdict.kind, verdict.task, verdict.traceback) == (kind, task, place), verdict.sentence


def with_prefix(log: bytes, prefix: str) -> bytes:
    count = prefix.count("%")
    lines = log.split(b"\n")
    return b"\n".join(
        (prefix % ((i % 60, i)[:count] if count else ())).encode() + line for i, line in enumerate(lines)
    )


@pytest.mark.parametrize("case", EXPECTED)
def test_windows_line_ends_change_nothing(case: str) -> None:
    changed = [replace(one, log_tail=one.log_tail.replace(b"\n", b"\r\n")) for one in evidence(case)]
    verdict = diagnose(changed, Outcome.FAILED, "")
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (EXPECTED[case][1], EXPECTED[case][0])
