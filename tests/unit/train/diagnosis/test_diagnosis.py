# ruff: noqa: E501 - one row a line
"""Real logs of failed jobs; the task that failed first, reports of agents, odd ends, and any input."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.storage import hint
from train.diagnosis.verdict import Cause, TaskEvidence, Verdict

FAILED, KILLED = Exit(1), Exit(None, 9)
LOST = "tensorflow.python.framework.errors_impl.UnavailableError: Collective ops is aborted by: Socket closed"


def raised(exception: str, *calls: str) -> str:
    """Return a traceback as CPython prints it; `calls` are files with lines, ``task.py:3``."""
    places = (call.split(":") for call in calls)
    frames = "".join(f'  File "/job/{file}", line {line}, in main\n    go()\n' for file, line in places)
    return f"Traceback (most recent call last):\n{frames}{exception}\n"


def task(number: int, ended: Exit | None, log: str = "", **more: Any) -> TaskEvidence:
    """Return the evidence of a worker."""
    fields = {"exited_at": 100.0 + number, "log_tail": log.encode(), **more}
    return TaskEvidence(f"worker-{number}", f"10.0.0.{number + 2}", ended, **fields)


def diagnosed(*evidence: TaskEvidence, first: str = "", reason: Reason = NO_REASON) -> Verdict:
    """Return the verdict on a job that failed."""
    verdict = diagnose(evidence, Outcome.FAILED, first, reason)
    assert verdict is not None
    return verdict


MISTAKE = raised("ValueError: x", "task.py:4")
STEPS = "".join(f"step {i} loss 0.5\n" for i in range(20))


@dataclass
class Case:
    """A job of jobs.txt: its verdict with parts of the texts, the evidence, and the task that the agents saw fail first."""

    verdict: dict[str, Any]
    tasks: list[TaskEvidence]


def read_cases() -> Iterator[Case]:
    """Read jobs.txt.

    A line ``=== {"kind": …}`` begins a job, ``--- {"task": …}`` a task with its log. A line ``### title`` is for readers.
    """
    text = Path(__file__).with_name("jobs.txt").read_bytes().decode()
    for job in re.split(r"^=== ", re.sub(r"^### .*\n", "", text, flags=re.MULTILINE), flags=re.MULTILINE)[1:]:
        verdict, *tasks = re.split(r"^--- (?={)", job, flags=re.MULTILINE)
        yield Case(json.loads(verdict), [_evidence(*task.split("\n", 1)) for task in tasks])


def _evidence(head: str, log: str) -> TaskEvidence:
    fields = json.loads(head)
    number = int(fields["task"].rpartition("-")[2])
    ended = None if "exit" in fields else Exit(fields.get("code"), fields.get("signal"))
    more = {"stopped_by_us": fields.get("ours", False), "port": fields.get("port", 0), "reason": _reason(fields)}
    made = task(number, ended, log, exited_at=fields.get("at", 100.0 + number), **more)
    return replace(made, address=fields.get("address", made.address))


def _reason(fields: dict[str, Any]) -> Reason:
    text, kind = fields.get("reason", NO_REASON)
    return Reason(text, ReasonKind(kind))


@pytest.mark.parametrize("case", [*read_cases()], ids=lambda case: case.verdict.get("title"))
def test_each_job_has_its_verdict(case: Case) -> None:
    expected = case.verdict
    first, reason = expected.get("first", ""), _reason(expected)
    result = diagnosed(*case.tasks, first=first, reason=reason)
    assert result.kind.value == expected["kind"], result.message
    assert result.task == expected.get("task", result.task)
    assert expected.get("message", "") in result.message
    assert "\n" not in result.message
    assert expected.get("hint", "") in result.hint
    assert result.traceback == expected.get("traceback", result.traceback)
    assert list(result.downloads) == expected.get("downloads", [*result.downloads])
    assert list(result.consequences) == expected.get("consequences", [*result.consequences])
    assert diagnose(case.tasks, Outcome.SUCCEEDED, first, reason) is None
    assert diagnose(case.tasks, Outcome.CANCELLED, first, reason) is None


def test_a_log_cut_in_the_middle_has_a_verdict() -> None:
    whole = raised("ValueError: x", "task.py:4", "model.py:7")
    for cut in range(len(whole) - 2):
        assert diagnosed(task(0, FAILED, whole[:cut])).kind in (Cause.UNKNOWN, Cause.SCRIPT_EXCEPTION)


HARMLESS = [
    *(f"{words}\nstep 1 loss 2\n{words}\n" for words in ("OOM killer is fine", "Connection refused, retrying", "Killed 3 stale readers", "port in use?", "NCCL INFO ok", "no space left on device? no")),
    STEPS + raised("FileNotFoundError: [Errno 2] No such file or directory: 'cache'", "task.py:4") + STEPS,
]  # fmt: skip


@pytest.mark.parametrize("log", HARMLESS)
@pytest.mark.parametrize("ended", [KILLED, Exit(None, 11), Exit(3), Exit(None, 15), Exit(137)])
def test_harmless_words_and_handled_exceptions_are_not_a_cause(log: str, ended: Exit) -> None:
    verdict = diagnosed(task(0, ended, log))
    assert verdict.kind in (Cause.KILLED, Cause.UNKNOWN)
    assert verdict.traceback == ""


BARS = [
    "\x08\x08\x08\r {n}/44 [===>......] - ETA: {n}s - loss: 0.{n}",
    "\r\x1b[1m{n}/44\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m1s\x1b[0m 15ms/step - loss: 0.{n}",
    "\r {n}%|███▌      | {n}/44 [00:0{n}<00:10,  2.42it/s]",
    "\rLoading {n} of 44",
]  # fmt: skip


@pytest.mark.parametrize("bar", BARS)
def test_a_redrawn_progress_bar_is_one_line(bar: str) -> None:
    drawn = "".join(bar.replace("{n}", str(number)) for number in range(1, 38))
    lines = diagnosed(task(1, KILLED, "loading the data\n" + drawn)).lines
    assert (len(lines), lines[0], "37" in lines[1]) == (2, "loading the data", True)


def test_the_same_failure_on_all_tasks_names_all() -> None:
    verdict = diagnosed(*(task(number, FAILED, MISTAKE) for number in range(3)), first="worker-0")
    assert verdict.message.endswith("; so did worker-1 and worker-2")


# --- real logs ------------------------------------------------------------------------------------------------------
# Each is from a run of two or three workers with a deliberate failure. Paths and addresses in them were replaced and
# startup lines of TensorFlow were removed; every other byte is original. Logs in `v215-*` are from TensorFlow 2.15.1,
# all others from 2.21.0; in `mixed` worker 0 has the older version, worker 1 the newer. A directory has the ends of
# the tasks, their logs, and the verdict: task, kind, and parts of its texts. Directories with a `job.json` are complete
# jobs of `fleet train`.

RECORDED = Path(__file__).with_name("logs")
CASES = sorted(directory.name for directory in RECORDED.iterdir())


def recorded(case: str) -> list[TaskEvidence]:
    ends = json.loads((RECORDED / case / "ends.json").read_text())
    result = []
    for task, end in ends.items():
        log = (RECORDED / case / f"{task}.log").read_bytes()
        ended = Exit(end["code"], end["signal"]) if end["at"] else None
        hang = HangInspection(**{"slot": task, **end["inspection"]}) if "inspection" in end else None
        item = TaskEvidence(task, end.get("address", ""), ended, 1.7e9 + end["at"], port=end.get("port", 0))
        result.append(replace(item, stopped_by_us=end["ours"], log_tail=log, log_head=log[:16384], inspection=hang))
    return result


def how_it_ended(case: str) -> tuple[str, Reason]:
    """Return the task that failed first and the reason, as the agents reported them."""
    file = RECORDED / case / "job.json"
    if not file.exists():
        return "", NO_REASON
    job = json.loads(file.read_text())
    return job["first_failed_task"], Reason(job["reason"], ReasonKind(job["reason_kind"]))


@pytest.mark.parametrize("case", CASES)
def test_each_log_has_its_verdict(case: str) -> None:
    expected = json.loads((RECORDED / case / "verdict.json").read_text())
    tasks, ended = recorded(case), how_it_ended(case)
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


# --- hangs ---------------------------------------------------------------------------------------------------------------


def hung(number: int, stack: str, log: str = "step 1\n") -> TaskEvidence:
    inspection = HangInspection(f"worker-{number}", f"worker-{number}", 1, 9.0, "S", stack, [])
    return task(number, KILLED, log, stopped_by_us=True, inspection=inspection)


def test_hang_shows_where_the_task_was() -> None:
    waits = 'File "/usr/lib/python3/dist-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute'
    stacks = [
        f'Main thread (most recent call first):\n  {waits}\n  File "/job/task.py", line 4 in <module>\n',
        'Main thread (most recent call first):\n  File "/usr/lib/python3.11/ssl.py", line 9 in read\n'
        '  File "/job/data.py", line 31 in fetch\n  File "/job/task.py", line 4 in <module>\n',
    ]
    text = "no progress for 60 s: worker-1 is in user code (data.py:31 in fetch), and worker-0 waits for it"
    reason = Reason(text, ReasonKind.HANG)
    slots = [hung(number, stack) for number, stack in enumerate(stacks)]
    verdict = diagnosed(*slots, reason=reason)
    assert (verdict.kind, verdict.task, verdict.traceback) == (Cause.HANG, "worker-1", "data.py:31 in fetch")
    assert verdict.message == text
    assert verdict.lines[-1].endswith("line 4 in <module>")
    assert diagnosed(*slots[:1], reason=reason).task == ""


def test_an_exception_whose_process_did_not_end_is_the_cause_of_a_hang() -> None:
    reason = Reason("no progress for 600 s", ReasonKind.HANG)
    verdict = diagnosed(hung(0, ""), hung(1, "", MISTAKE), reason=reason)
    assert (verdict.task, verdict.kind, verdict.traceback) == ("worker-1", Cause.HANG, "task.py:4 in main")


def test_servers_without_a_chief_are_reported() -> None:
    library = "/usr/lib/python3/dist-packages/tensorflow/python/training/server_lib.py"
    stack = f'Main thread (most recent call first):\n  File "{library}", line 185 in join\n  File "/job/task.py", line 9 in f\n'
    reason = Reason("no first step within 60 s: no task waits for another", ReasonKind.HANG)
    verdict = diagnosed(hung(0, stack), hung(1, stack), reason=reason)
    assert "Server.join" in verdict.message
    assert "--chief" in verdict.hint


# --- any input ------------------------------------------------------------------------------------------------------

PIECES = [
    "Traceback (most recent call last):\n", '  File "/job/task.py", line 4, in main\n', "    go()\n", "ValueError: x\n",
    LOST + "\n", "\nDuring handling of the above exception, another exception occurred:\n\n", "step 3 loss 0.1\n",
    "\nThe above exception was the direct cause of the following exception:\n\n", "Exception ignored in: f\n", "\r", "\x08",
    "/job:worker/replica:0/task:1\n", "unhealthy (stopped sending heartbeats):\n", "Example stragglers:\n", "\x1b[1m", "\n",
    "I0000 00:00:1795232287.090624 1 c.cc:2] Waiting for 1/2 tasks to connect.\n", "worker-0 | ", " ", "x", "Epoch 1/3\n",
    "remote target /job:worker/replica:0/task:0 while calling\n", "ValueError    Traceback (most recent call last)\n",
    "OOM when allocating ", "SyntaxError: y\n", "Started server with target\n", "\xff", "é",
]  # fmt: skip
LOGS = st.one_of(
    st.binary(max_size=2000),
    st.lists(st.sampled_from(PIECES), max_size=60).map(lambda pieces: "".join(pieces).encode("utf-8", "replace")),
)
ENDS = st.one_of(
    st.none(), st.builds(Exit, st.integers(-70, 300)), st.builds(Exit, st.none(), st.integers(1, 64)), st.just(Exit())
)
STACK = 'Main thread (most recent call first):\n  File "/job/task.py", line 7 in f'
EVIDENCE = st.lists(
    st.builds(
        TaskEvidence,
        st.sampled_from(["worker-0", "worker-1", "worker-2", "chief-0", "ps-0"]),
        exit=ENDS,
        exited_at=st.one_of(st.none(), st.floats(0, 2e9)),
        reason=st.builds(
            Reason, st.sampled_from(["", "no space left", "worker-1 was lost", "x"]), st.sampled_from(ReasonKind)
        ),
        stopped_by_us=st.booleans(),
        log_tail=LOGS,
        log_head=LOGS,
        inspection=st.sampled_from([None, hung(0, "").inspection, hung(1, STACK).inspection]),
    ),
    max_size=4,
)
TEXTS = ["no progress for 60 s: worker-0 waits for worker-1", "worker-2 (10.0.0.4) did not answer", "", "\n", "x\ny"]


@given(
    EVIDENCE,
    st.sampled_from(Outcome),
    st.sampled_from(["", "worker-0", "worker-9"]),
    st.builds(Reason, st.sampled_from(TEXTS), st.sampled_from(ReasonKind)),
)
def test_any_evidence_gives_a_verdict(
    evidence: list[TaskEvidence], outcome: Outcome, first: str, reason: Reason
) -> None:
    verdict = diagnose(evidence, outcome, first, reason)
    assert (verdict is None) == (outcome in (Outcome.SUCCEEDED, Outcome.CANCELLED))
    if verdict:
        assert verdict.message
        assert "\n" not in verdict.message
        assert len(verdict.lines) <= 12
        assert verdict.task not in verdict.consequences
        assert all(len(line) <= 300 for line in verdict.lines)


STUTTERS = (
    *PIECES, 'File "', "1", "\x1b]", "{{function_node ", "CoordinationService/", "coordination service ",
    "Traceback (most recent call last):\nMemoryError: x\n",
    'Traceback (most recent call last):\nResourceExhaustedError: OOM when allocating\n  File "',
)  # fmt: skip


@pytest.mark.parametrize("piece", STUTTERS)
def test_a_long_log_is_parsed_in_linear_time(piece: str) -> None:
    text = piece.encode("utf-8", "replace")
    log = b"Traceback (most recent call last):\n" + text * (65536 // len(text))
    began = time.process_time()
    for ended in (FAILED, KILLED, Exit(None, 6)):
        diagnosed(TaskEvidence("worker-0", exit=ended, log_tail=log, log_head=log))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        "HTTP response code 403 with body ''",
        "me@example.com does not have storage.objects.get access to the Google Cloud Storage object.",
        "the specified key does not exist: s3://bkt/a",
        "No such object: bkt/data/a.npz when reading gs://bkt/data/a.npz",
    ],
)
def test_other_errors_have_no_hint_of_cloud_storage(text: str) -> None:
    assert hint(text, ["gs://bkt/run1"]) == ""
