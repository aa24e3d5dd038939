# ruff: noqa: E501 - one row a line
"""The task that failed first, reports of agents, odd ends, and any input: what the recorded logs lack."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.train.diagnosis.evidence import DONE, FAILED, KILLED, LOST, STARTED, E, diagnosed, raised, task
from train.agent.protocol.records import Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Cause, TaskEvidence

MISTAKE = raised("ValueError: x", "task.py:4")
VICTIM = raised(LOST, "task.py:3")
HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSED = "\nThe above exception was the direct cause of the following exception:\n\n"
STEPS = "".join(f"step {i} loss 0.5\n" for i in range(20))

# --- one task: its exit, its log, the cause, the place of the exception, part of the message ----------------------------

ENDS_AND_LOGS = [
    (FAILED, raised("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'", "data.py:3") + CAUSED + raised("DataError: cannot load", "task.py:9"), Cause.FILE_NOT_FOUND, "task.py:9 in main", ""),
    (FAILED, raised("FileNotFoundError: [Errno 2] No such file or directory: 'cache'", "data.py:3") + HANDLED + raised("TypeError: bad operand", "task.py:9"), Cause.SCRIPT_EXCEPTION, "task.py:9 in main", ""),
    (FAILED, raised(E + "OutOfRangeError: End of sequence [Op:IteratorGetNext]") + HANDLED + raised("StopIteration"), Cause.DATA_RAN_OUT, "task.py:7 in main", ""),
    (FAILED, raised("StopIteration"), Cause.SCRIPT_EXCEPTION, "task.py:7 in main", ""),
    # Lines of libraries within a traceback, and output after it.
    (FAILED, 'Traceback (most recent call last):\n  File "/job/task.py", line 4, in main\nI0000 00:00:1795232285.946913   18438 coordination_service.cc:221] Initializing CoordinationService\n    go()\n2026-11-21 03:35:01.000001: W tensorflow/core/x.cc:1] something\nValueError: x\n', Cause.SCRIPT_EXCEPTION, "task.py:4 in main", ""),
    (FAILED, MISTAKE + "Exception ignored in: <function Server.__del__ at 0x7f>\n" + raised("TypeError: 'NoneType' object is not callable", "lib.py:1") + "Exception ignored in atexit callback: <function close at 0x7f>\n" + raised("OSError: [Errno 28] No space left on device", "lib.py:2") + "wandb: run finished, Connection refused, OOM, killed\n", Cause.SCRIPT_EXCEPTION, "task.py:4 in main", ""),
    (Exit(None, 6), MISTAKE + "terminate called without an active exception\n", Cause.SCRIPT_EXCEPTION, "task.py:4 in main", ""),
    (FAILED, MISTAKE[10:], Cause.UNKNOWN, "", ""),
    # Memory, only with evidence.
    (KILLED, "step 1\n", Cause.KILLED, "", "SIGKILL"),
    (Exit(137), "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed\n", Cause.HOST_OUT_OF_MEMORY, "", ""),
    (Exit(None, 6), "F0000 00:00:1795232285.946913 1 gpu.cc:1] Non-OK-status: x status: INTERNAL: failed: out of memory\n", Cause.GPU_OUT_OF_MEMORY, "", ""),
    (Exit(None, 6), "W0000 00:00:1795232285.946913 1 bfc.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB. The caller indicates that this is not a failure\n", Cause.KILLED, "", ""),
    # Signals in every form.
    (Exit(137), "step 1\n", Cause.KILLED, "", "SIGKILL"),
    (Exit(-9), "step 1\n", Cause.KILLED, "", "SIGKILL"),
    (Exit(None, 15), "step 1\n", Cause.KILLED, "", "SIGTERM"),
    (Exit(139), "step 1\n", Cause.KILLED, "", "SIGSEGV"),
    (Exit(None, 4), "step 1\n", Cause.KILLED, "", "CPU"),
    # The last output: a sentence of a program that exits with code 1, or the last error of a library.
    (Exit(2), "python3: can't open file '/job/train.py': [Errno 2] No such file or directory\n", Cause.FILE_NOT_FOUND, "", ""),
    (FAILED, "Epoch 1/2\nthis worker has no data\n", Cause.SCRIPT_EXCEPTION, "", "exited with code 1: this worker has no data"),
    (FAILED, "Epoch 1/2\nneed at least 4 workers\n", Cause.SCRIPT_EXCEPTION, "", "exited with code 1: need at least 4 workers"),
    (FAILED, "Epoch 1/2\nlearning_rate must be positive\n", Cause.SCRIPT_EXCEPTION, "", "exited with code 1: learning_rate"),
    (FAILED, "Epoch 1/2\nmodel saved to /data/model\n", Cause.UNKNOWN, "", "model saved to"),
    (FAILED, "Epoch 1/2\nstep 10 loss 1.6963\n", Cause.UNKNOWN, "", ""),
    (Exit(3), "Epoch 1/2\nthis worker has no data\n", Cause.UNKNOWN, "", "this worker has no data"),
    (Exit(3), "step 1\nE0000 00:00:1795232285.946913 77 loader.cc:12] decoder table is empty\n" + "-" * 40, Cause.UNKNOWN, "", "decoder table is empty"),
    (Exit(None, 6), "step 1\nF0000 00:00:1795232285.946913 77 loader.cc:12] Check failed: n > 0\n" + "-" * 40, Cause.KILLED, "", "Check failed: n > 0"),
    (Exit(None, 6), "step 1\nnode-a:293:765 [0] NCCL WARN Cuda failure 'invalid argument'\n" + "-" * 40, Cause.KILLED, "", "NCCL WARN Cuda failure"),
    # Requests that were cancelled because of an earlier error.
    (FAILED, "E1127 10:00:01.250000 140 cluster_coordinator.py:899] Start cancelling closures due to error ValueError('no rows'): no rows\n" + raised(f"{E}CancelledError: RemoteExecuteNode::RunAsync"), Cause.SCRIPT_EXCEPTION, "task.py:7 in main", "raised ValueError: no rows"),
    (FAILED, "ERROR:tensorflow: /job:worker/task:0 encountered the following error when processing closure: ValueError():no rows\n" + raised(f"{E}CancelledError: RemoteExecuteNode::RunAsync"), Cause.SCRIPT_EXCEPTION, "task.py:7 in main", "raised ValueError: no rows"),
    (FAILED, raised("ValueError: no rows") + "cleaning up\n" + raised(f"{E}CancelledError: RemoteExecuteNode::RunAsync"), Cause.SCRIPT_EXCEPTION, "task.py:7 in main", "raised ValueError: no rows"),
    (FAILED, raised("asyncio.CancelledError: stopped"), Cause.SCRIPT_EXCEPTION, "task.py:7 in main", "raised CancelledError: stopped"),
]  # fmt: skip


@pytest.mark.parametrize(("ended", "log", "cause", "place", "text"), ENDS_AND_LOGS)
def test_one_task_with_this_end_and_log(ended: Exit, log: str, cause: Cause, place: str, text: str) -> None:
    verdict = diagnosed(task(0, ended, log))
    assert (verdict.kind, verdict.traceback) == (cause, place), verdict.message
    assert text in verdict.message


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


# --- which task was first: evidence of tasks, the task that the agents saw first, task, cause, consequences --------------

TIMED_OUT = raised(
    E
    + "UnavailableError: Collective ops is aborted by: recvmsg:Connection timed out\nAdditional GRPC error information from remote target /job:worker/replica:0/task:%d while calling /tensorflow.WorkerService/RecvBuf:"
)
HEARTBEAT = raised(E + "UnavailableError: Task /job:worker/replica:0/task:2 heartbeat timeout. This indicates")
REGISTRATION = (
    "Stopping the service: cluster registration failed, some tasks were never scheduled. DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. "
    "# of tasks that reached the barrier: 1/2.\nThe first task at the barrier: /job:worker/replica:0/task:0. Some timed out task names:\n/job:worker/replica:0/task:1\n"
)
LOST_CHIEF = (  # TensorFlow 2.11
    "2023-05-25 11:10:57.934361: E tensorflow/core/x.cc:2] BaseCollectiveExecutor::StartAbort DEADLINE_EXCEEDED: Deadline Exceeded\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0:\n"
    ':{"created":"@1685013057.9","description":"Deadline Exceeded","grpc_status":4}\n2023-05-25 11:10:57.934547: F tensorflow/core/y.cc:3] Non-OK-status: Stop() status: UNIMPLEMENTED: Clean '
    "shutdown is not currently implemented\nFatal Python error: Aborted\n\nCurrent thread 0x00007f2947732740 (most recent call first):\n"
    + '  File "a.py", line 3 in f\n'
    * 30
)
DISK = Reason("log cannot be written on worker-10: No space left on device", ReasonKind.DISK_FULL)
FIRST = {
    "the earliest failure": ([task(0, FAILED, MISTAKE, exited_at=150.0), task(1, FAILED, MISTAKE, exited_at=120.0)], "worker-0", "worker-1", Cause.SCRIPT_EXCEPTION, ""),
    "the agents, if clocks cannot decide": ([task(0, FAILED, MISTAKE, exited_at=120.0), task(1, FAILED, MISTAKE, exited_at=120.4)], "worker-1", "worker-1", Cause.SCRIPT_EXCEPTION, ""),
    "the first, if agents report none": ([task(0, FAILED, MISTAKE, exited_at=120.0), task(1, FAILED, MISTAKE, exited_at=120.4)], "", "worker-0", Cause.SCRIPT_EXCEPTION, ""),
    "collateral that ended first": ([task(0, FAILED, VICTIM), task(1, FAILED, MISTAKE, exited_at=110.0)], "worker-0", "worker-1", Cause.SCRIPT_EXCEPTION, "worker-0"),
    "stopped by fleet": ([task(0, KILLED, "step 1\n", exited_at=1.0, stopped_by_us=True), task(1, Exit(3), "bye\n")], "", "worker-1", Cause.UNKNOWN, ""),
    "failed while it cleaned up after a peer": ([task(0, FAILED, VICTIM + HANDLED + raised("RuntimeError: cannot save", "task.py:9")), task(1, KILLED)], "", "worker-1", Cause.KILLED, "worker-0"),
    "native crash of a waiter": ([task(0, Exit(None, 11), "E0000 00:00:1795232285.946913 1 ring.cc:2] Aborting RingReduce with DEADLINE_EXCEEDED: Collective ops is aborted by: Collective has timed out during execution.\n"), task(1, KILLED, exited_at=105.0)], "", "worker-1", Cause.KILLED, "worker-0"),
    "early exit without data": ([task(0, DONE, "WARNING:tensorflow:Your input ran out of data; interrupting training. Make sure that your dataset\n"), task(1, FAILED, VICTIM)], "", "worker-0", Cause.DATA_RAN_OUT, "worker-1"),
    "lost its chief": ([task(1, Exit(None, 6), LOST_CHIEF)], "", "worker-0", Cause.PEER_UNREACHABLE, "worker-1"),
    "the first remote target": ([task(0, FAILED, TIMED_OUT % 2), task(1, FAILED, TIMED_OUT % 2), task(2, FAILED, TIMED_OUT % 1)], "", "worker-2", Cause.PEER_UNREACHABLE, "worker-0 worker-1"),
    "heartbeat of TensorFlow 2.15": ([task(0, FAILED, HEARTBEAT), task(1, FAILED, HEARTBEAT), task(2, KILLED, stopped_by_us=True, exited_at=130.0)], "", "worker-2", Cause.PEER_UNREACHABLE, "worker-0 worker-1"),
    "two that lost each other": ([task(0, FAILED, raised(E + "UnavailableError: Collective ops is aborted by: The following tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed.")), task(1, FAILED, raised(E + "DeadlineExceededError: Collective ops is aborted by: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"))], "", "", Cause.PEER_UNREACHABLE, "worker-0 worker-1"),
    "a chief that never joined": ([task(1, FAILED, raised(E + "DeadlineExceededError: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/RegisterTask"))], "", "worker-0", Cause.PEER_NEVER_STARTED, "worker-1"),
    "a peer that never registered": ([task(0, FAILED, STARTED + REGISTRATION), task(1, None, stopped_by_us=True)], "", "worker-1", Cause.PEER_NEVER_STARTED, "worker-0"),
    "a peer that never registered, in a log line": ([task(0, Exit(None, 6), STARTED + "E0000 00:00:1795232285.946913 1 coordination_service.cc:900] " + REGISTRATION), task(1, None, stopped_by_us=True)], "", "worker-1", Cause.PEER_NEVER_STARTED, "worker-0"),
    "a waiting session of TensorFlow 1": ([task(0, KILLED, "2019-01-01 00:00:01.000000: I tensorflow/core/x.cc:2] CreateSession still waiting for response from worker: /job:worker/replica:0/task:1\n" * 5, stopped_by_us=True)], "", "worker-1", Cause.PEER_NEVER_STARTED, ""),
    "an unknown reason of all": ([task(0, FAILED, raised(E + "InternalError: Collective ops is aborted by: the moon is full")), task(1, KILLED, "step 1\n", stopped_by_us=True)], "", "worker-0", Cause.UNKNOWN, ""),
    # Reports of agents.
    "a full disk": ([task(10, KILLED, "step 1\n", stopped_by_us=True, reason=DISK), task(1, KILLED, stopped_by_us=True)], "", "worker-10", Cause.DISK_FULL, ""),
    "a full disk, and exit code 0": ([task(10, DONE, "step 1\n", reason=DISK)], "", "worker-10", Cause.DISK_FULL, ""),
    "killed by the kernel": ([task(1, KILLED, "step 1\n", reason=Reason("worker-1 was killed by the kernel's OOM killer", ReasonKind.OUT_OF_MEMORY)), task(0, FAILED, VICTIM)], "", "worker-1", Cause.HOST_OUT_OF_MEMORY, "worker-0"),
    "preempted": ([task(1, Exit(None, 15), "step 1\n", reason=Reason("worker-1 (10.0.0.3) was preempted", ReasonKind.PREEMPTED))], "", "worker-1", Cause.PREEMPTED, ""),
    "a lost host": ([task(0, FAILED, VICTIM), task(1, None, reason=Reason("the agent of worker-1 broke off"))], "worker-1", "worker-1", Cause.UNKNOWN, "worker-0"),
    "a text decides nothing": ([task(0, FAILED, MISTAKE), task(1, KILLED, reason=Reason("worker-0 (10.0.0.2) was lost: out of memory"))], "", "worker-0", Cause.SCRIPT_EXCEPTION, ""),
    "nothing is known": ([task(0, None)], "worker-0", "worker-0", Cause.UNKNOWN, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRST)
def test_the_task_that_failed_first(name: str) -> None:
    tasks, first, blamed, cause, consequences = FIRST[name]
    verdict = diagnosed(*tasks, first=first)
    assert (verdict.task, verdict.kind) == (blamed, cause), verdict.message
    assert verdict.consequences == tuple(consequences.split())
    assert diagnose(tasks, Outcome.SUCCEEDED, first) is None
    assert diagnose(tasks, Outcome.CANCELLED, first) is None


def test_the_same_failure_on_all_tasks_names_all() -> None:
    verdict = diagnosed(
        task(0, FAILED, MISTAKE), task(1, FAILED, MISTAKE), task(2, FAILED, MISTAKE), first="worker-0"
    )
    assert verdict.message.endswith("; so did worker-1 and worker-2")


# The gang's report at the end of an attempt: reason and its kind, first task, cause, the task to blame.
DECISIONS = [
    ("no progress for 60 s: worker-0 waits for worker-1, which is in read at data.py:31", ReasonKind.HANG, "", Cause.HANG, ""),
    ("no progress for 0.5 s: ?", ReasonKind.HANG, "worker-1", Cause.HANG, "worker-1"),
    ("no first step within 600 s: worker-0 and worker-2 wait for worker-1 at the start", ReasonKind.HANG, "", Cause.HANG, ""),
    ("the job ran longer than 60 s (--timeout)", ReasonKind.TIMEOUT, "", Cause.DEADLINE, ""),
    ("the job ran longer than 86400 s (--timeout)", ReasonKind.TIMEOUT, "worker-0", Cause.DEADLINE, ""),
    ("worker-2 (10.0.0.4) was lost: its agent was silent for 10 s", ReasonKind.HOST_LOST, "worker-2", Cause.PEER_UNREACHABLE, "worker-2"),
    ("worker-2 (10.0.0.4) was lost: its agent closed the connection", ReasonKind.HOST_LOST, "worker-2", Cause.PEER_UNREACHABLE, "worker-2"),
    ("worker-2 (10.0.0.4) did not answer", ReasonKind.HOST_LOST, "worker-2", Cause.PEER_UNREACHABLE, "worker-2"),
    ("the agent of worker-1 was killed", ReasonKind.AGENT_KILLED, "worker-1", Cause.KILLED, "worker-1"),
    ("the agent of worker-1 broke off", ReasonKind.OTHER, "worker-1", Cause.UNKNOWN, "worker-1"),
    ("worker-1 (10.0.0.3) did not join attempt 2 within 60 s", ReasonKind.NOT_JOINED, "worker-1", Cause.PEER_NEVER_STARTED, "worker-1"),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; open TCP port 2222 between the hosts (all TCP among the hosts of the fleet)", ReasonKind.UNREACHABLE, "worker-0", Cause.PEER_UNREACHABLE, "worker-0"),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; open TCP port 2222\nworker-2 (10.0.0.4) cannot reach worker-0 at 10.0.0.2:2222: timed out", ReasonKind.UNREACHABLE, "", Cause.PEER_UNREACHABLE, ""),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at worker-0:2222: its name cannot be resolved there; give worker-0 an address that all hosts can resolve", ReasonKind.NAME_RESOLUTION, "worker-0", Cause.NAME_RESOLUTION, "worker-0"),
    ("worker-2 (10.0.0.4) has 12.0 MiB of disk left for the job, less than 64.0 MiB; free some space on the host", ReasonKind.DISK_FULL, "worker-2", Cause.DISK_FULL, "worker-2"),
    ("TensorFlow differs: 2.21 on worker-0 (10.0.0.2), 2.19 on worker-1 (10.0.0.3); install the same release on all hosts", ReasonKind.VERSIONS, "worker-1", Cause.VERSION_MISMATCH, "worker-1"),
    ("GPUs differ: 1 x T4 on worker-0 (10.0.0.2), none on worker-1 (10.0.0.3); TensorFlow requires the same number on each worker", ReasonKind.OTHER, "worker-1", Cause.UNKNOWN, "worker-1"),
    ("worker-1 ended before the start", ReasonKind.OTHER, "worker-1", Cause.UNKNOWN, "worker-1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason_kind", "first", "kind", "blamed"), DECISIONS)
@pytest.mark.parametrize("log", ["", "TensorFlow: /job:worker/replica:0/task:1 was killed, OOM\n"])
def test_a_decision_of_the_gang_is_the_cause(
    text: str, reason_kind: ReasonKind, first: str, kind: Cause, blamed: str, log: str
) -> None:
    reason = Reason(text, reason_kind)
    slots = [task(i, KILLED, log, stopped_by_us=True) for i in (0, 1)] + [task(2, None, log, exited_at=None)]
    verdict = diagnosed(*slots, first=first, reason=reason)
    assert (verdict.kind, verdict.task) == (kind, blamed), verdict.message
    assert "\n" not in verdict.message
    assert text.partition("\n")[0].partition(":")[0] in verdict.message
    assert diagnose(slots, Outcome.SUCCEEDED, first, reason) is None


@pytest.mark.parametrize(
    ("reason", "kind"), [(ReasonKind.HOST_LOST, Cause.PEER_UNREACHABLE), (ReasonKind.AGENT_KILLED, Cause.KILLED)]
)
def test_a_lost_host_takes_precedence_over_failures_of_its_peers(reason: ReasonKind, kind: Cause) -> None:
    lost = Reason("worker-2 (10.0.0.4) was lost: its agent was silent for 10 s", reason)
    peers = [task(i, FAILED, VICTIM) for i in (0, 1)]
    verdict = diagnosed(*peers, task(2, None, "step 1\n", exited_at=None), first="worker-2", reason=lost)
    assert (verdict.task, verdict.kind, verdict.consequences) == ("worker-2", kind, ("worker-0", "worker-1"))
    assert verdict.message == lost.text


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
TEXTS = [reason for reason, *_ in DECISIONS] + ["", "\n", "worker-1 exited with code 1", "x\ny"]


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


def test_a_long_random_log_has_a_verdict() -> None:
    log = random.Random(7).randbytes(400_000)
    assert diagnosed(TaskEvidence("worker-0", exit=FAILED, log_tail=log)).kind is Cause.UNKNOWN
