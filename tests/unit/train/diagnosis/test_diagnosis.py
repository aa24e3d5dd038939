# ruff: noqa: E501 - one row a line
"""Diagnoses that the corpus of recorded logs lacks: GPUs, older versions, launchers, agents' reasons, odd exits."""

from __future__ import annotations

import random
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Kind, TaskEvidence, Verdict

FAILED, KILLED, DONE = Exit(1), Exit(None, 9), Exit(0)
ERRORS = "tensorflow.python.framework.errors_impl."
LOST = ERRORS + "UnavailableError: Collective ops is aborted by: Socket closed"


def raised(exception: str, *calls: str) -> str:
    """Return a traceback as CPython prints it."""
    frames = "".join(
        f'  File "/job/{call.split(":")[0]}", line {call.split(":")[1]}, in main\n    go()\n' for call in calls
    )
    return f"Traceback (most recent call last):\n{frames}{exception}\n"


def task(number: int, ended: Exit | None, log: str = "", **more: object) -> TaskEvidence:
    fields: dict[str, object] = {"exited_at": 100.0 + number, "log_tail": log.encode(), **more}
    return TaskEvidence(f"worker-{number}", f"10.0.0.{number + 2}", ended, **fields)  # type: ignore[arg-type]


def diagnosed(
    *evidence: TaskEvidence, first: str = "", outcome: Outcome = Outcome.FAILED, reason: Reason = NO_REASON
) -> Verdict:
    verdict = diagnose(evidence, outcome, first, reason)
    assert verdict is not None
    return verdict


def of_exception(exception: str) -> Verdict:
    return diagnosed(
        task(1, FAILED, raised(exception, "task.py:12")), task(0, FAILED, raised(LOST, "task.py:3"), exited_at=109.0)
    )


# --- exceptions -----------------------------------------------------------------------------------------------------

EXCEPTIONS = [
    (Kind.GPU_OUT_OF_MEMORY, ERRORS + "ResourceExhaustedError: OOM when allocating tensor with shape[64,512] and type float on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]"),
    (Kind.GPU_OUT_OF_MEMORY, ERRORS + "InternalError: Failed to initialize CUDA: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (Kind.GPU_OUT_OF_MEMORY, ERRORS + "ResourceExhaustedError: Graph execution error:\n\nDetected at node 'dense/MatMul' defined at (most recent call last):\n    File \"/job/task.py\", line 9, in <module>\n      model.fit(x)\nNode: 'dense/MatMul'\nOOM when allocating tensor with shape[9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node dense/MatMul}}]]\nHint: If you want to see a list"),
    (Kind.HOST_OUT_OF_MEMORY, ERRORS + "ResourceExhaustedError: OOM when allocating tensor with shape[9] and type float on /job:worker/replica:0/task:1/device:CPU:0 by allocator cpu"),
    (Kind.HOST_OUT_OF_MEMORY, "OSError: [Errno 12] Cannot allocate memory"),
    (Kind.DISK_FULL, "OSError: [Errno 122] Disk quota exceeded: 'ckpt'"),
    (Kind.SCRIPT_EXCEPTION, "OSError: [Errno 28] No space left on device: inotify watch limit reached"),
    (Kind.NCCL, ERRORS + "UnknownError: Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce}}]]"),
    (Kind.NCCL, ERRORS + "InternalError: NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail."),
    (Kind.NAME_RESOLUTION, ERRORS + "UnavailableError: failed to connect to all addresses; last error: DNS resolution failed for host-1:2222: C-ares status is not ARES_SUCCESS"),
    (Kind.NAME_RESOLUTION, "socket.gaierror: [Errno -2] Name or service not known"),
    (Kind.PORT_IN_USE, "OSError: [Errno 98] Address already in use"),
    (Kind.WRONG_TF_CONFIG, ERRORS + "AbortedError: /job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted."),
    (Kind.DATA_RAN_OUT, ERRORS + "CancelledError: 2 root error(s) found.\n  (0) CANCELLED:  Operation was cancelled\n\t [[{{node IteratorGetNext}}]]\n  (1) OUT_OF_RANGE:  End of sequence\n\t [[{{node IteratorGetNext}}]]\n0 successful operations."),
    (Kind.FILE_NOT_FOUND, ERRORS + "NotFoundError: /data/labels.txt; No such file or directory [Op:ReadFile]"),
    (Kind.SCRIPT_EXCEPTION, ERRORS + "NotFoundError: Key layer_with_weights-0/bias not found in checkpoint"),
    (Kind.GPU_FAILED, "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory"),
    (Kind.SCRIPT_EXCEPTION, ERRORS + "UnavailableError: Error executing an HTTP request: libcurl code 56 meaning 'Failure when receiving data from the peer', error details: Recv failure: Connection reset by peer"),
    (Kind.KERAS_3, "ImportError: Keras cannot be imported. Check that it is installed."),
    (Kind.SCRIPT_EXCEPTION, "ConnectionRefusedError: [Errno 111] Connection refused"),
    (Kind.SCRIPT_EXCEPTION, "RuntimeError: the OOM score of a killed NCCL port was lost"),
    (Kind.SCRIPT_EXCEPTION, "queue.Empty"),
    (Kind.SCRIPT_EXCEPTION, "Diverged: loss is nan"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "exception"), EXCEPTIONS)
def test_each_exception_has_its_kind(kind: Kind, exception: str) -> None:
    verdict = of_exception(exception)
    assert verdict.kind is kind, verdict.message
    assert verdict.task == ("" if "incarnation" in exception else "worker-1")
    assert verdict.traceback == "task.py:12 in main"
    assert verdict.consequences == ("worker-0",)


def test_the_message_of_a_graph_error_is_found() -> None:
    verdict = of_exception(EXCEPTIONS[2][1])
    assert "ResourceExhaustedError: OOM when allocating tensor with shape[9]" in verdict.message


def test_direct_cause_gives_the_kind() -> None:
    log = (
        raised("FileNotFoundError: [Errno 2] No such file or directory: 'a.csv'", "data.py:3")
        + "\nThe above exception was the direct cause of the following exception:\n\n"
        + raised("DataError: cannot load", "task.py:9")
    )
    verdict = diagnosed(task(1, FAILED, log))
    assert (verdict.kind, verdict.traceback) == (Kind.FILE_NOT_FOUND, "task.py:9 in main")


def test_a_handled_exception_does_not_give_the_kind() -> None:
    log = (
        raised("FileNotFoundError: [Errno 2] No such file or directory: 'cache'", "data.py:3")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("TypeError: bad operand", "task.py:9")
    )
    assert diagnosed(task(1, FAILED, log)).kind is Kind.SCRIPT_EXCEPTION


def test_failure_while_cleaning_up_after_a_peer_is_collateral() -> None:
    log = (
        raised(LOST, "task.py:3")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + raised("RuntimeError: cannot save", "task.py:9")
    )
    verdict = diagnosed(task(0, FAILED, log), task(1, KILLED))
    assert (verdict.task, verdict.kind, verdict.consequences) == ("worker-1", Kind.KILLED, ("worker-0",))


def test_the_same_failure_on_all_tasks_names_all() -> None:
    log = raised("ValueError: no such model", "task.py:4")
    verdict = diagnosed(task(0, FAILED, log), task(1, FAILED, log), task(2, FAILED, log), first="worker-0")
    assert verdict.message.endswith("; so did worker-1 and worker-2")
    assert verdict.consequences == ()


# --- how tracebacks look elsewhere ----------------------------------------------------------------------------------


def test_tracebacks_without_indentation_are_found() -> None:
    log = raised("ValueError: x", "task.py:4", "model.py:7")
    log = "".join(f"|   | 2021-11-17 12:30:{i:02} | {line.strip()}\n" for i, line in enumerate(log.splitlines()))
    verdict = diagnosed(task(0, FAILED, log))
    assert (verdict.kind, verdict.traceback) == (Kind.SCRIPT_EXCEPTION, "model.py:7 in main")


def test_a_notebook_command_is_reported() -> None:
    log = (
        "---------------------------------------------------------------------------\n"
        "UnknownError                              Traceback (most recent call last)\n"
        "Cell In[14], line 18\n     16 n = 0\n---> 18   total += step(x)\n\n"
        "UnknownError: Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce}}]]\n"
    )
    verdict = diagnosed(task(0, FAILED, log))
    assert (verdict.kind, verdict.traceback) == (Kind.NCCL, "In[14]:18")


def test_log_lines_inside_a_traceback_are_skipped() -> None:
    log = (
        'Traceback (most recent call last):\n  File "/job/task.py", line 4, in main\n'
        "I0000 00:00:1795232285.946913   18438 coordination_service.cc:221] Initializing CoordinationService\n"
        "    go()\n2026-11-21 03:35:01.000001: W tensorflow/core/x.cc:1] something\nValueError: x\n"
    )
    assert diagnosed(task(0, FAILED, log)).traceback == "task.py:4 in main"


def test_a_log_cut_in_the_middle_has_a_verdict() -> None:
    whole = raised("ValueError: x", "task.py:4", "model.py:7")
    for cut in range(len(whole) - 2):
        assert diagnosed(task(0, FAILED, whole[:cut])).kind in (Kind.UNKNOWN, Kind.SCRIPT_EXCEPTION)
    assert diagnosed(task(0, FAILED, whole[10:])).kind is Kind.UNKNOWN


def test_output_after_the_last_exception_is_not_a_cause() -> None:
    log = (
        raised("ValueError: x", "task.py:4")
        + "Exception ignored in: <function Server.__del__ at 0x7f>\n"
        + raised("TypeError: 'NoneType' object is not callable", "lib.py:1")
        + "Exception ignored in atexit callback: <function close at 0x7f>\n"
        + raised("OSError: [Errno 28] No space left on device", "lib.py:2")
        + "wandb: run finished, Connection refused, OOM, killed\n"
    )
    verdict = diagnosed(task(0, FAILED, log))
    assert (verdict.kind, verdict.traceback) == (Kind.SCRIPT_EXCEPTION, "task.py:4 in main")


def test_native_crash_while_going_down_with_an_exception() -> None:
    log = raised("ValueError: x", "task.py:4") + "terminate called without an active exception\n"
    assert diagnosed(task(0, Exit(None, 6), log)).kind is Kind.SCRIPT_EXCEPTION


@pytest.mark.parametrize("ended", [KILLED, Exit(3), Exit(1), Exit(None, 15), Exit(137)])
def test_a_handled_exception_is_not_a_cause(ended: Exit) -> None:
    steps = "".join(f"step {i} loss 0.5\n" for i in range(20))
    log = steps + raised("FileNotFoundError: [Errno 2] No such file or directory: 'cache'", "task.py:4") + steps
    verdict = diagnosed(task(1, ended, log))
    assert verdict.kind in (Kind.KILLED, Kind.UNKNOWN)
    assert verdict.traceback == ""


@pytest.mark.parametrize("words", ["OOM killer is fine", "Connection refused, retrying", "Killed 3 stale readers", "port in use?", "NCCL INFO ok", "no space left on device? no"])  # fmt: skip
@pytest.mark.parametrize("ended", [KILLED, Exit(None, 11), Exit(3), Exit(None, 15)])
def test_harmless_words_are_not_a_cause(words: str, ended: Exit) -> None:
    assert diagnosed(task(0, ended, f"{words}\nstep 1 loss 2\n{words}\n")).kind in (Kind.KILLED, Kind.UNKNOWN)


# --- ends without an exception --------------------------------------------------------------------------------------


def test_kernel_out_of_memory_requires_evidence() -> None:
    assert diagnosed(task(1, KILLED, "step 1\n")).kind is Kind.KILLED
    reason = Reason("killed by the kernel's OOM killer", ReasonKind.OUT_OF_MEMORY)
    assert diagnosed(task(1, KILLED, "step 1\n", reason=reason)).kind is Kind.HOST_OUT_OF_MEMORY
    slurm = (
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0. Some of your processes may have been killed\n"
    )
    assert diagnosed(task(1, Exit(137), slurm)).kind is Kind.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize(
    "reason",
    [
        "killed by the kernel's OOM killer (it used 11.8 GiB of 12.0 GiB, the limit of its cgroup)",
        "killed by the kernel's OOM killer according to the counter of its cgroup (limit 12.0 GiB)",
        "most likely killed by the kernel's OOM killer, which killed 1 of this host's processes since the task began",
    ],
)
def test_an_out_of_memory_kill_that_the_agent_reports_is_the_cause(reason: str) -> None:
    reported = Reason(f"worker-1 was {reason}", ReasonKind.OUT_OF_MEMORY)
    verdict = diagnosed(task(1, KILLED, "step 1\n", reason=reported), task(0, FAILED, raised(LOST, "t.py:3")))
    assert (verdict.kind, verdict.task) == (Kind.HOST_OUT_OF_MEMORY, "worker-1")


@pytest.mark.parametrize(("ended", "text"), [(Exit(137), "SIGKILL"), (Exit(-9), "SIGKILL"), (Exit(None, 15), "SIGTERM"), (Exit(139), "SIGSEGV")])  # fmt: skip
def test_signals_are_recognized_in_every_form(ended: Exit, text: str) -> None:
    verdict = diagnosed(task(1, ended, "step 1\n"))
    assert verdict.kind is Kind.KILLED
    assert text in verdict.message


def test_gpu_out_of_memory_in_native_code() -> None:
    log = "F0000 00:00:1795232285.946913 1 gpu.cc:1] Non-OK-status: x status: INTERNAL: failed: out of memory\n"
    assert diagnosed(task(1, Exit(None, 6), log)).kind is Kind.GPU_OUT_OF_MEMORY
    harmless = "W0000 00:00:1795232285.946913 1 bfc.cc:1] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2GiB. The caller indicates that this is not a failure\n"
    assert diagnosed(task(1, Exit(None, 6), harmless)).kind is Kind.KILLED


def test_a_preemption_is_the_cause() -> None:
    reason = Reason("worker-1 (10.0.0.3) was preempted", ReasonKind.PREEMPTED)
    for stopped in (False, True):
        lost = task(1, Exit(None, 15), "step 1\n", stopped_by_us=stopped, reason=reason)
        assert diagnosed(lost).kind is Kind.PREEMPTED


@pytest.mark.parametrize("rest", ["", ", and it was not replaced within 1800 s", ", and no other host is left"])
def test_a_preemption_that_the_agent_noticed_is_the_cause(rest: str) -> None:
    reason = f"worker-1 (10.0.0.3) was preempted{rest}"
    evidence = [task(number, Exit(42), LOST, stopped_by_us=True) for number in range(2)]
    verdict = diagnosed(*evidence, first="worker-1", reason=Reason(reason, ReasonKind.PREEMPTED))
    assert (verdict.kind, verdict.task, verdict.message) == (Kind.PREEMPTED, "worker-1", reason)


def test_a_missing_script_is_an_error() -> None:
    log = "python3: can't open file '/job/train.py': [Errno 2] No such file or directory\n"
    assert diagnosed(task(0, Exit(2), log)).kind is Kind.FILE_NOT_FOUND


def test_an_early_exit_without_data_means_that_data_ran_out() -> None:
    log = "WARNING:tensorflow:Your input ran out of data; interrupting training. Make sure that your dataset\n"
    verdict = diagnosed(task(0, DONE, log), task(1, FAILED, raised(LOST, "task.py:3")))
    assert (verdict.task, verdict.kind, verdict.consequences) == ("worker-0", Kind.DATA_RAN_OUT, ("worker-1",))


# --- who was first --------------------------------------------------------------------------------------------------

MISTAKE = raised("ValueError: x", "task.py:4")


def test_the_earliest_independent_failure_is_the_cause() -> None:
    verdict = diagnosed(
        task(0, FAILED, MISTAKE, exited_at=150.0), task(1, FAILED, MISTAKE, exited_at=120.0), first="worker-0"
    )
    assert verdict.task == "worker-1"


def test_agents_decide_the_order_if_clocks_cannot() -> None:
    item, other = task(0, FAILED, MISTAKE, exited_at=120.0), task(1, FAILED, "bye", exited_at=120.4)
    assert diagnosed(item, other).task == "worker-0"
    assert diagnosed(item, other, first="worker-1").task == "worker-1"


def test_collateral_is_not_first_even_when_it_ended_first() -> None:
    log = raised(LOST, "task.py:3")
    verdict = diagnosed(
        task(0, FAILED, log, exited_at=100.0), task(1, FAILED, MISTAKE, exited_at=110.0), first="worker-0"
    )
    assert (verdict.task, verdict.consequences) == ("worker-1", ("worker-0",))


def test_a_task_that_fleet_stopped_is_not_first() -> None:
    verdict = diagnosed(task(0, KILLED, "step 1\n", exited_at=1.0, stopped_by_us=True), task(1, Exit(3), "bye\n"))
    assert verdict.task == "worker-1"


def test_native_crash_of_a_waiter_is_collateral() -> None:
    log = (
        "E0000 00:00:1795232285.946913 1 ring.cc:2] Aborting RingReduce with DEADLINE_EXCEEDED: "
        "Collective ops is aborted by: Collective has timed out during execution.\n"
    )
    verdict = diagnosed(task(0, Exit(None, 11), log), task(1, KILLED, exited_at=105.0))
    assert (verdict.task, verdict.consequences) == ("worker-1", ("worker-0",))


def test_abort_of_2_11_after_it_lost_its_chief() -> None:
    log = (
        "2023-05-25 11:10:57.934361: E tensorflow/core/x.cc:2] BaseCollectiveExecutor::StartAbort DEADLINE_EXCEEDED: "
        "Deadline Exceeded\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0:\n"
        ':{"created":"@1685013057.9","description":"Deadline Exceeded","grpc_status":4}\n'
        "2023-05-25 11:10:57.934547: F tensorflow/core/y.cc:3] Non-OK-status: Stop() status: UNIMPLEMENTED: Clean "
        "shutdown is not currently implemented\nFatal Python error: Aborted\n\n"
        "Current thread 0x00007f2947732740 (most recent call first):\n" + '  File "a.py", line 3 in f\n' * 30
    )
    verdict = diagnosed(task(1, Exit(None, 6), log))
    assert (verdict.task, verdict.kind) == ("worker-0", Kind.PEER_UNREACHABLE)
    assert verdict.consequences == ("worker-1",)


def test_first_remote_target_is_named() -> None:
    def timed_out(peer: int) -> str:
        return raised(
            ERRORS + "UnavailableError: Collective ops is aborted by: recvmsg:Connection timed out\n"
            f"Additional GRPC error information from remote target /job:worker/replica:0/task:{peer} while calling "
            "/tensorflow.WorkerService/RecvBuf:",
            "task.py:3",
        )

    verdict = diagnosed(task(0, FAILED, timed_out(2)), task(1, FAILED, timed_out(2)), task(2, FAILED, timed_out(1)))
    assert (verdict.task, verdict.kind) == ("worker-2", Kind.PEER_UNREACHABLE)
    assert "worker-0 lost its connection to worker-2 (10.0.0.4)" in verdict.message


def test_heartbeat_of_2_15() -> None:
    log = raised(
        ERRORS + "UnavailableError: Task /job:worker/replica:0/task:2 heartbeat timeout. This indicates", "t.py:1"
    )
    verdict = diagnosed(
        task(0, FAILED, log), task(1, FAILED, log), task(2, KILLED, stopped_by_us=True, exited_at=130.0)
    )
    assert (verdict.task, verdict.kind) == ("worker-2", Kind.PEER_UNREACHABLE)


def test_two_tasks_that_lost_each_other_are_both_named() -> None:
    leader = raised(
        ERRORS + "UnavailableError: Collective ops is aborted by: The following tasks are unhealthy "
        "(stopped sending heartbeats):\n/job:worker/replica:0/task:1\nThe tasks have crashed.",
        "task.py:3",
    )
    other = raised(
        ERRORS + "DeadlineExceededError: Collective ops is aborted by: Deadline Exceeded\n\n"
        "RPC: /tensorflow.CoordinationService/Heartbeat",
        "task.py:3",
    )
    verdict = diagnosed(task(0, FAILED, leader), task(1, FAILED, other))
    assert (verdict.task, verdict.kind) == ("", Kind.PEER_UNREACHABLE)


def test_a_chief_that_never_joined_is_named() -> None:
    log = raised(
        ERRORS + "DeadlineExceededError: Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/RegisterTask",
        "task.py:3",
    )
    verdict = diagnosed(task(1, FAILED, log))
    assert (verdict.task, verdict.kind) == ("worker-0", Kind.PEER_NEVER_STARTED)


def test_a_waiting_session_of_tensorflow_1_names_its_peer() -> None:
    line = "I tensorflow/core/x.cc:2] CreateSession still waiting for response from worker: /job:worker/replica:0/task:1\n"
    log = "".join(f"2019-01-01 00:00:{i:02}.000000: {line}" for i in range(5))
    verdict = diagnosed(task(0, KILLED, log, stopped_by_us=True))
    assert (verdict.task, verdict.kind) == ("worker-1", Kind.PEER_NEVER_STARTED)


# --- reports of agents ------------------------------------------------------------------------------------------------


def test_a_full_disk_that_the_agent_reports_is_the_cause() -> None:
    reason = Reason("log cannot be written: No space left on device", ReasonKind.DISK_FULL)
    verdict = diagnosed(
        task(1, KILLED, "step 1\n", stopped_by_us=True, reason=reason), task(0, KILLED, stopped_by_us=True)
    )
    assert (verdict.task, verdict.kind) == ("worker-1", Kind.DISK_FULL)
    assert diagnosed(task(1, DONE, "step 1\n", reason=reason)).kind is Kind.DISK_FULL


def test_a_lost_host_is_named() -> None:
    reason = Reason("the agent of worker-1 broke off")
    verdict = diagnosed(task(0, FAILED, raised(LOST, "task.py:3")), task(1, None, reason=reason), first="worker-1")
    assert (verdict.task, verdict.kind, verdict.consequences) == ("worker-1", Kind.UNKNOWN, ("worker-0",))
    assert verdict.message == "worker-1 (10.0.0.3) was lost: the agent of worker-1 broke off"


def test_the_text_of_a_reason_decides_nothing() -> None:
    for text in ("no space left on device", "worker-0 (10.0.0.2) was lost: out of memory", "no progress for 9 s"):
        verdict = diagnosed(task(0, FAILED, MISTAKE), task(1, KILLED, reason=Reason(text)), reason=Reason(text))
        assert (verdict.task, verdict.kind) == ("worker-0", Kind.SCRIPT_EXCEPTION)


def test_a_hang_names_the_task() -> None:
    reason = Reason("no progress for 600 s", ReasonKind.HANG)
    quiet = [task(i, KILLED, "step 1\n", stopped_by_us=True, reason=reason) for i in range(2)]
    assert diagnosed(*quiet, first="worker-1").kind is Kind.HANG
    stuck = task(1, KILLED, MISTAKE, stopped_by_us=True, reason=reason)
    verdict = diagnosed(quiet[0], stuck)
    assert (verdict.task, verdict.kind, verdict.traceback) == ("worker-1", Kind.HANG, "task.py:4 in main")


# The gang's report at the end of an attempt: reason and its kind, first task, cause, the task to blame.
DECISIONS = [
    ("no progress for 60 s: worker-0 waits for worker-1, which is in read at data.py:31", ReasonKind.HANG, "", Kind.HANG, ""),
    ("no progress for 0.5 s: ?", ReasonKind.HANG, "worker-1", Kind.HANG, "worker-1"),
    ("no first step within 600 s: worker-0 and worker-2 wait for worker-1 at the start", ReasonKind.HANG, "", Kind.HANG, ""),
    ("the job ran longer than 60 s (--timeout)", ReasonKind.TIMEOUT, "", Kind.DEADLINE, ""),
    ("the job ran longer than 86400 s (--timeout)", ReasonKind.TIMEOUT, "worker-0", Kind.DEADLINE, ""),
    ("worker-2 (10.0.0.4) was lost: its agent was silent for 10 s", ReasonKind.HOST_LOST, "worker-2", Kind.PEER_UNREACHABLE, "worker-2"),
    ("worker-2 (10.0.0.4) was lost: its agent closed the connection", ReasonKind.HOST_LOST, "worker-2", Kind.PEER_UNREACHABLE, "worker-2"),
    ("worker-2 (10.0.0.4) did not answer", ReasonKind.HOST_LOST, "worker-2", Kind.PEER_UNREACHABLE, "worker-2"),
    ("the agent of worker-1 was killed", ReasonKind.AGENT_KILLED, "worker-1", Kind.KILLED, "worker-1"),
    ("the agent of worker-1 broke off", ReasonKind.OTHER, "worker-1", Kind.UNKNOWN, "worker-1"),
    ("worker-1 (10.0.0.3) did not join attempt 2 within 60 s", ReasonKind.NOT_JOINED, "worker-1", Kind.PEER_NEVER_STARTED, "worker-1"),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; open TCP port 2222 between the hosts (all TCP among the hosts of the fleet)", ReasonKind.UNREACHABLE, "worker-0", Kind.PEER_UNREACHABLE, "worker-0"),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at 10.0.0.2:2222: timed out; open TCP port 2222\nworker-2 (10.0.0.4) cannot reach worker-0 at 10.0.0.2:2222: timed out", ReasonKind.UNREACHABLE, "", Kind.PEER_UNREACHABLE, ""),
    ("worker-1 (10.0.0.3) cannot reach worker-0 at worker-0:2222: its name cannot be resolved there; give worker-0 an address that all hosts can resolve", ReasonKind.NAME_RESOLUTION, "worker-0", Kind.NAME_RESOLUTION, "worker-0"),
    ("worker-2 (10.0.0.4) has 12.0 MiB of disk left for the job, less than 64.0 MiB; free some space on the host", ReasonKind.DISK_FULL, "worker-2", Kind.DISK_FULL, "worker-2"),
    ("TensorFlow differs: 2.21 on worker-0 (10.0.0.2), 2.19 on worker-1 (10.0.0.3); install the same release on all hosts", ReasonKind.VERSIONS, "worker-1", Kind.VERSION_MISMATCH, "worker-1"),
    ("GPUs differ: 1 x T4 on worker-0 (10.0.0.2), none on worker-1 (10.0.0.3); TensorFlow requires the same number on each worker", ReasonKind.OTHER, "worker-1", Kind.UNKNOWN, "worker-1"),
    ("worker-1 ended before the start", ReasonKind.OTHER, "worker-1", Kind.UNKNOWN, "worker-1"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason_kind", "first", "kind", "blamed"), DECISIONS)
@pytest.mark.parametrize("log", ["", "step 1\n", "TensorFlow: /job:worker/replica:0/task:1 was killed, OOM\n"])
def test_a_decision_of_the_gang_is_the_cause(
    text: str, reason_kind: ReasonKind, first: str, kind: Kind, blamed: str, log: str
) -> None:
    reason = Reason(text, reason_kind)
    slots = [task(i, KILLED, log, stopped_by_us=True) for i in (0, 1)] + [task(2, None, log, exited_at=None)]
    verdict = diagnosed(*slots, first=first, reason=reason)
    assert (verdict.kind, verdict.task) == (kind, blamed), verdict.message
    assert "\n" not in verdict.message
    assert text.partition("\n")[0].partition(":")[0] in verdict.message
    assert diagnose(slots, Outcome.SUCCEEDED, first, reason) is None
    assert diagnose(slots, Outcome.CANCELLED, first, reason) is None


def test_a_lost_host_takes_precedence_over_failures_of_its_peers() -> None:
    reason = Reason("worker-2 (10.0.0.4) was lost: its agent was silent for 10 s", ReasonKind.HOST_LOST)
    peers = [task(i, FAILED, raised(LOST, "task.py:3")) for i in (0, 1)]
    verdict = diagnosed(*peers, task(2, None, "step 1\n", exited_at=None), first="worker-2", reason=reason)
    assert (verdict.task, verdict.kind, verdict.consequences) == (
        "worker-2", Kind.PEER_UNREACHABLE, ("worker-0", "worker-1"),
    )  # fmt: skip
    assert verdict.message == reason.text


def test_a_killed_agent_takes_precedence_over_failures_of_its_peers() -> None:
    reason = Reason("the agent of worker-1 was killed", ReasonKind.AGENT_KILLED)
    peer = task(0, FAILED, raised(LOST, "task.py:3"))
    gone = task(1, None, "step 1\n", reason=reason)
    assert diagnosed(peer, gone, first="worker-0", reason=Reason("worker-0 exited with code 1")).kind is Kind.KILLED
    assert diagnosed(peer, gone, first="worker-1", reason=reason).task == "worker-1"


def test_hang_shows_where_the_task_was() -> None:
    waits = 'File "/usr/lib/python3/dist-packages/tensorflow/python/eager/execute.py", line 53 in quick_execute'
    stacks = [
        f'Main thread (most recent call first):\n  {waits}\n  File "/job/task.py", line 4 in <module>\n',
        'Main thread (most recent call first):\n  File "/usr/lib/python3.11/ssl.py", line 9 in read\n'
        '  File "/job/data.py", line 31 in fetch\n  File "/job/task.py", line 4 in <module>\n',
    ]
    text = "no progress for 60 s: worker-1 is in user code (data.py:31 in fetch), and worker-0 waits for it"
    reason = Reason(text, ReasonKind.HANG)
    slots = [
        task(
            i,
            KILLED,
            "step 1\n",
            stopped_by_us=True,
            inspection=HangInspection(f"worker-{i}", f"worker-{i}", 1, 9.0, "S", stack, []),
        )
        for i, stack in enumerate(stacks)
    ]
    verdict = diagnosed(*slots, reason=reason)
    assert (verdict.kind, verdict.task, verdict.traceback) == (Kind.HANG, "worker-1", "data.py:31 in fetch")
    assert verdict.message == text
    assert verdict.lines[-1].endswith("line 4 in <module>")
    assert diagnosed(*slots[:1], reason=reason).task == ""


def test_a_task_name_with_the_same_prefix_is_different() -> None:
    reason = Reason("log cannot be written on worker-10: No space left on device", ReasonKind.DISK_FULL)
    verdict = diagnosed(
        TaskEvidence("worker-10", "10.0.0.12", KILLED, 1.0, reason, True), task(1, KILLED, stopped_by_us=True)
    )
    assert (verdict.task, verdict.kind) == ("worker-10", Kind.DISK_FULL)


def test_unknown_values_give_no_finding() -> None:
    assert diagnosed().kind is Kind.UNKNOWN
    verdict = diagnosed(task(0, None), outcome=Outcome.LOST, first="worker-0")
    assert (verdict.task, verdict.kind, verdict.hint) == ("worker-0", Kind.UNKNOWN, "")


def test_no_cause_without_a_failure() -> None:
    evidence = [task(0, FAILED, MISTAKE), task(1, KILLED)]
    assert diagnose(evidence, Outcome.SUCCEEDED, "worker-0") is None
    assert diagnose(evidence, Outcome.CANCELLED, "") is None


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
KINDS = st.sampled_from(ReasonKind)
EVIDENCE = st.lists(
    st.builds(
        TaskEvidence,
        st.sampled_from(["worker-0", "worker-1", "worker-2", "chief-0", "ps-0"]),
        exit=ENDS,
        exited_at=st.one_of(st.none(), st.floats(0, 2e9)),
        reason=st.builds(Reason, st.sampled_from(["", "no space left", "worker-1 was lost", "x"]), KINDS),
        stopped_by_us=st.booleans(),
        log_tail=LOGS,
        log_head=LOGS,
        inspection=st.sampled_from(
            [
                None,
                HangInspection("worker-0", "worker-0", 1, 1.0, "T", "", [], "x"),
                HangInspection(
                    "worker-1",
                    "worker-1",
                    1,
                    1.0,
                    "S",
                    'Main thread (most recent call first):\n  File "/job/task.py", line 7 in f',
                    [],
                ),
            ]
        ),
    ),
    max_size=4,
)
TEXTS = [reason for reason, *_ in DECISIONS] + ["", "\n", "worker-1 exited with code 1", "x\ny"]
REASONS = st.builds(Reason, st.sampled_from(TEXTS), KINDS)


@given(EVIDENCE, st.sampled_from(Outcome), st.sampled_from(["", "worker-0", "worker-9"]), REASONS)
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


STUTTERS = [
    piece.encode("utf-8", "replace")
    for piece in (
        *PIECES,
        'File "',
        "1",
        "\x1b]",
        "{{function_node ",
        "CoordinationService/",
        "coordination service ",
        "Traceback (most recent call last):\nMemoryError: x\n",
        'Traceback (most recent call last):\nResourceExhaustedError: OOM when allocating\n  File "',
    )
]


@pytest.mark.parametrize("piece", STUTTERS)
def test_a_long_log_is_parsed_in_linear_time(piece: bytes) -> None:
    log = b"Traceback (most recent call last):\n" + piece * (65536 // len(piece))
    began = time.process_time()
    for ended in (FAILED, KILLED, Exit(None, 6)):
        diagnosed(TaskEvidence("worker-0", exit=ended, log_tail=log, log_head=log))
    assert time.process_time() - began < 5


def test_a_long_random_log_has_a_verdict() -> None:
    log = random.Random(7).randbytes(400_000)
    assert diagnosed(TaskEvidence("worker-0", exit=FAILED, log_tail=log)).kind is Kind.UNKNOWN
