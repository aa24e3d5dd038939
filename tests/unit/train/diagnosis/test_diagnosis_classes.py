# ruff: noqa: E501 - one row a line
"""Classes of failures by their texts, statuses of peers, ports and addresses, and last output."""

from __future__ import annotations

import pytest

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Kind, TaskEvidence, Verdict

FAILED, ABORTED = Exit(1), Exit(None, 6)
E = "tensorflow.python.framework.errors_impl."
STARTED = "I0000 00:00:1795232285.946913 1 grpc_server_lib.cc:467] Started server with target: grpc://10.0.0.2:2222\n"


def trace(exception: str, *, source: str = "train()") -> str:
    return f'Traceback (most recent call last):\n  File "/home/ubuntu/job/task.py", line 7, in <module>\n    {source}\n{exception}\n'


def task(number: int, ended: Exit | None, log: str, *, stopped: bool = False, port: int = 2222) -> TaskEvidence:
    return TaskEvidence(
        f"worker-{number}",
        f"10.0.0.{number + 2}",
        exit=ended,
        exited_at=100.0 + number,
        stopped_by_us=stopped,
        log_tail=log.encode(),
        port=port,
    )


def diagnosed(*evidence: TaskEvidence, reason: Reason = NO_REASON, first: str = "") -> Verdict:
    verdict = diagnose(evidence, Outcome.FAILED, first, reason)
    assert verdict is not None
    return verdict


# --- a peer that answered is there ------------------------------------------------------------------------------------


def answered(
    status: int, words: str, *, wrapper: str = "Collective ops is aborted by: ", name: str = "Internal"
) -> str:
    return trace(
        f"{E}{name}Error: Graph execution error:\n\n{wrapper}{words}\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:\n"
        f':UNKNOWN:Error received from peer  {{grpc_status:{status}, grpc_message:"{words}"}}\n'
        "\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_31]"
    )


ANSWERS = [
    (3, "Shape mismatch in the collective instance 7. Op at device /job:worker/replica:0/task:0/device:CPU:0 expected shape [3] but another member in the group expected shape [5].", Kind.MODELS_DIFFER),
    (8, "OOM when allocating tensor with shape[9,9] and type float on /job:worker/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc", Kind.GPU_OUT_OF_MEMORY),
    (11, "End of sequence", Kind.DATA_RAN_OUT),
    (13, "NCCL: unhandled system error", Kind.NCCL),
    (3, "assertion failed: [bad label] [Condition x < y did not hold]", Kind.UNKNOWN),
    (5, "/data/part-3.tfrecord; No such file or directory", Kind.FILE_NOT_FOUND),
]  # fmt: skip


@pytest.mark.parametrize(("status", "words", "kind"), ANSWERS)
def test_a_peer_that_answered_with_an_error_is_not_reported_as_lost(status: int, words: str, kind: Kind) -> None:
    verdict = diagnosed(task(1, FAILED, answered(status, words)), task(0, Exit(None, 9), STARTED, stopped=True))
    assert verdict.kind is kind, verdict.message
    assert not any(word in verdict.message for word in ("lost", "frozen", "cut off", "stopped answering"))
    assert words[:20] in verdict.message
    assert "firewall" not in verdict.hint
    if kind is not Kind.MODELS_DIFFER:
        assert verdict.task == "worker-0"
        assert verdict.message.startswith("worker-0 (10.0.0.2) reported: ")


@pytest.mark.parametrize(("status", "name"), [(14, "Unavailable"), (4, "DeadlineExceeded")])
def test_a_peer_that_did_not_answer_is_reported_as_lost(status: int, name: str) -> None:
    log = answered(status, "Socket closed", name=name)
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 9), STARTED, stopped=True))
    assert (verdict.kind, verdict.task) == (Kind.PEER_UNREACHABLE, "worker-0")


@pytest.mark.parametrize("order", ["{grpc_status:%s, grpc_message:%s}", "{grpc_message:%s, grpc_status:%s}"])
def test_the_status_of_the_peer_counts_not_one_that_it_quotes(order: str) -> None:
    quoted = '"out of bounds\\n:UNKNOWN:Error received from peer  {grpc_message:\\"Socket closed\\", grpc_status:14}"'
    outer = order % (("3", quoted) if order.startswith("{grpc_status") else (quoted, "3"))
    log = trace(
        E + "InvalidArgumentError: Collective ops is aborted by: out of bounds\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:\n"
        f":UNKNOWN:Error received from peer  {outer}"
    )
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 9), STARTED, stopped=True))
    assert verdict.message.startswith("worker-0 (10.0.0.2) reported: "), verdict.message


def test_an_error_that_a_worker_returned_to_the_chief_is_the_scripts() -> None:
    log = answered(3, "assertion failed: [bad label]", wrapper="", name="InvalidArgument")
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 15), STARTED, stopped=True))
    assert (verdict.kind, verdict.task) == (Kind.SCRIPT_EXCEPTION, "worker-1")
    assert verdict.message.endswith("at task.py:7 in <module>, as worker-0 reported")


# --- classes ----------------------------------------------------------------------------------------------------------

CLASSES = [
    (Kind.PACKAGES, "ImportError: numpy.core.multiarray failed to import"),
    (Kind.PACKAGES, "AttributeError: _ARRAY_API not found"),
    (Kind.PACKAGES, "TypeError: Descriptors cannot not be created directly."),
    (Kind.PACKAGES, "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /opt/v/_ext.so)"),
    (Kind.PACKAGES, "ImportError: /lib64/libm.so.6: version `GLIBC_2.35' not found (required by /opt/v/_ext.so)"),
    (Kind.PACKAGES, "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"),
    (Kind.PACKAGES, E + "NotFoundError: /opt/v/_custom_ops.so: undefined symbol: _ZN10tensorflow8OpKernel11TraceStringE"),
    (Kind.PACKAGES, "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"),
    (Kind.GPU_FAILED, E + "FailedPreconditionError: DNN library is not found.\n\t [[{{node conv/Conv2D}}]]"),
    (Kind.GPU_FAILED, E + "InternalError: libdevice not found at ./libdevice.10.bc"),
    (Kind.GPU_FAILED, E + "InternalError: cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime version"),
    (Kind.GPU_FAILED, E + "InternalError: Failed to load in-memory CUBIN: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
    (Kind.GPU_FAILED, E + "InternalError: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
    (Kind.GPU_FAILED, E + "InvalidArgumentError: Could not satisfy device specification '/job:worker/replica:0/task:1/device:GPU:0'. All available devices [/job:worker/replica:0/task:1/device:CPU:0]."),
    (Kind.GPU_FAILED, "RuntimeError: No CUDA GPUs are available"),
    (Kind.GPU_OUT_OF_MEMORY, E + "InternalError: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (Kind.PERMISSION, "PermissionError: [Errno 13] Permission denied: '/mnt/out'"),
    (Kind.PERMISSION, E + "PermissionDeniedError: /mnt/out; Permission denied"),
    (Kind.PERMISSION, "OSError: [Errno 30] Read-only file system: '/data/out'"),
    (Kind.PERMISSION, E + "UnauthenticatedError: Error executing an HTTP request: HTTP response code 401 with body '{'"),
    (Kind.WRONG_TF_CONFIG, "ValueError: 'trainer' is not a valid task_type in this cluster"),
    (Kind.WRONG_TF_CONFIG, "ValueError: No such job in cluster: 'worker'"),
    (Kind.DATA_RAN_OUT, "ValueError: Unexpected result of `train_function` (Empty Logs). Please use"),
    (Kind.DATA_RAN_OUT, "ValueError: Unexpected result of `train_function` (Empty logs). This could be due to"),
    (Kind.SAVE_CONFLICT, E + "NotFoundError: /m/variables/variables_temp_0aa1/part-00000-of-00001.index; No such file or directory [Op:MergeV2Checkpoints]"),
    (Kind.SCRIPT_EXCEPTION, "ModuleNotFoundError: No module named 'tensorflow.contrib'"),
    (Kind.SCRIPT_EXCEPTION, "EOFError: EOF when reading a line"),
    (Kind.SCRIPT_EXCEPTION, "RuntimeError: can't start new thread"),
    (Kind.WRONG_TF_CONFIG, E + 'InvalidArgumentError: Task 7 was not defined in job "worker"'),
    (Kind.PACKAGES, "TypeError: Unable to convert function return value to a Python type! The signature was\n\t() -> handle"),
    (Kind.CHECKPOINT_NOT_SHARED, E + "NotFoundError: /t/model.ckpt-0_temp_5f/part-00001-of-00002.index [Op:MergeV2Checkpoints]"),
    (Kind.SAVE_CONFLICT, "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)"),
    (Kind.SERVICE_UNREACHABLE, E + "UnavailableError: Failed to register dataset: failed to connect to all addresses"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "exception"), CLASSES)
def test_class_of_an_exception(kind: Kind, exception: str) -> None:
    verdict = diagnosed(task(1, FAILED, trace(exception)))
    assert verdict.kind is kind, verdict.message
    assert verdict.hint
    assert not verdict.hint.startswith("correct the script")


@pytest.mark.parametrize(
    ("kind", "file", "exception"),
    [
        (Kind.WRONG_TF_CONFIG, "site-packages/tensorflow/python/training/server_lib.py", "TypeError: '1' has type str, but expected one of: int"),
        (Kind.SCRIPT_EXCEPTION, "site-packages/google/protobuf/internal/containers.py", "TypeError: '1' has type str, but expected one of: int"),
        (Kind.SAVE_CONFLICT, "shutil.py", "OSError: [Errno 39] Directory not empty: 'model'"),
        (Kind.SCRIPT_EXCEPTION, "clean.py", "OSError: [Errno 39] Directory not empty: 'model'"),
        (Kind.SCRIPT_EXCEPTION, "site-packages/torch/cuda.py", "RuntimeError: CUDA error: device-side assert triggered"),
    ],
)  # fmt: skip
def test_the_same_words_have_another_class_in_other_exceptions(kind: Kind, file: str, exception: str) -> None:
    log = trace(f'  File "/usr/lib/python3.11/{file}", line 3, in call\n    go()\n{exception}')
    assert diagnosed(task(1, FAILED, log)).kind is kind


def test_an_exhausted_tensorflow_iterator_means_that_data_ran_out() -> None:
    log = (
        trace(E + "OutOfRangeError: End of sequence [Op:IteratorGetNext]")
        + "\nDuring handling of the above exception, another exception occurred:\n\n"
        + trace("StopIteration")
    )
    assert diagnosed(task(1, FAILED, log)).kind is Kind.DATA_RAN_OUT
    assert diagnosed(task(1, FAILED, trace("StopIteration"))).kind is Kind.SCRIPT_EXCEPTION


def test_the_reason_that_a_bucket_gave_is_in_the_message() -> None:
    log = trace(
        E + "PermissionDeniedError: Error executing an HTTP request: HTTP response code 403 with body '{\n"
        '  "error": {\n    "code": 403,\n    "message": "ann@example.com may not read objects of this bucket."\n  }\n}\'\n'
        "\t when reading metadata of gs://bucket/train"
    )
    verdict = diagnosed(task(1, FAILED, log))
    assert verdict.kind is Kind.PERMISSION
    assert "ann@example.com may not read objects of this bucket." in verdict.message


@pytest.mark.parametrize("exception", ["RuntimeError: no backend", "ValueError: mutable default"])
def test_an_exception_of_an_imported_package_does_not_blame_the_script(exception: str) -> None:
    log = trace(
        f'  File "/home/ubuntu/venv/lib/python3.11/site-packages/pack/__init__.py", line 3, in <module>\n    check()\n{exception}',
        source="import pack",
    )
    verdict = diagnosed(task(1, FAILED, log))
    assert verdict.kind is Kind.SCRIPT_EXCEPTION
    assert "package" in verdict.hint


def test_a_missing_package_is_reported_with_the_file_to_list_it_in() -> None:
    verdict = diagnosed(task(1, FAILED, trace("ModuleNotFoundError: No module named 'resnet'")))
    assert "push it with the script" in verdict.hint
    assert "requirements.txt" in verdict.hint


def test_a_file_that_shadows_a_package_is_reported() -> None:
    for words in (
        "AttributeError: module 'tensorflow' has no attribute 'distribute'",
        "ModuleNotFoundError: No module named 'tensorflow.keras'; 'tensorflow' is not a package",
    ):
        assert "rename the file" in diagnosed(task(1, FAILED, trace(words))).hint


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("RuntimeError: Collective ops must be configured at program startup", "create the strategy before"),
        (
            "ValueError: When providing a distributed dataset, you must specify the number of steps to run.",
            "pass steps_per_epoch to fit, and validation_steps",
        ),
    ],
)
def test_mistakes_with_the_strategy_are_reported_with_their_fix(words: str, fix: str) -> None:
    verdict = diagnosed(task(1, FAILED, trace(words)))
    assert fix in verdict.hint
    assert "to run. at" not in verdict.message


# --- ports and addresses ----------------------------------------------------------------------------------------------

SERVICE = trace(
    E + "UnavailableError: Failed to get a split: failed to connect to all addresses; last error: UNAVAILABLE: "
    "ipv4:10.0.0.{host}:{port}: Failed to connect to remote host: Connection refused"
)


@pytest.mark.parametrize(("host", "port", "is_peer"), [(9, 5050, False), (2, 5050, False), (2, 2222, True)])
def test_a_server_outside_the_job_is_not_a_peer(host: int, port: int, is_peer: bool) -> None:
    log = SERVICE.replace("{host}", str(host)).replace("{port}", str(port))
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 9), STARTED, stopped=True))
    if is_peer:
        assert verdict.kind is Kind.PEER_UNREACHABLE
    else:
        assert (verdict.kind, verdict.task) == (Kind.SERVICE_UNREACHABLE, "worker-1")
        assert f"10.0.0.{host}:{port}, which is not a task of this job" in verdict.message


PORTS = [
    "E0000 00:00:1795232285.946913 1 add_port.cc:83] Failed to add port to server: No address added out of total 1 resolved for '0.0.0.0:{port}'\n",
    "E0301 10:00:00.123456789   4711 chttp2_server.cc:1051] UNKNOWN:No address added out of total 1 resolved for '[::]:{port}'\n",
    'E0301 10:00:00.123456789   4711 server_chttp2.cc:40] {"description":"Failed to add any wildcard listeners","referenced_errors":[{"description":"Address already in use","errno":98,"syscall":"bind"}],"target_address":"[::]:{port}"}\n',
    "E0301 10:00:00.123456789   4711 tcp_server_posix.cc:64] bind addr=[::]:{port}: Address already in use\n",
]  # fmt: skip


def test_the_address_of_a_peer_that_the_network_translates_is_a_peers() -> None:
    log = trace(
        E
        + "UnavailableError: failed to connect to all addresses; last error: UNKNOWN: ipv4:34.1.2.3:2222: Failed to "
        "connect to remote host\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0 while "
        "calling /tensorflow.WorkerService/GetStatus:\n:UNKNOWN:Error received from peer  {grpc_status:14}"
    )
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 9), STARTED, stopped=True))
    assert (verdict.kind, verdict.task) == (Kind.PEER_UNREACHABLE, "worker-0")


@pytest.mark.parametrize("line", PORTS)
@pytest.mark.parametrize("ended", [FAILED, Exit(None, 11), ABORTED])
def test_the_port_that_a_script_chose_is_not_the_tasks_port(line: str, ended: Exit) -> None:
    assigned = diagnosed(task(1, ended, line.replace("{port}", "2222")))
    assert assigned.kind is Kind.PORT_IN_USE
    assert "its port was in use" in assigned.message
    chosen = diagnosed(task(1, ended, line.replace("{port}", "11888")))
    assert chosen.kind is Kind.PORT_IN_USE
    if "target_address" not in line:
        assert "port 11888" in chosen.message
        assert "TF_CONFIG" in chosen.hint


# --- the start --------------------------------------------------------------------------------------------------------

REGISTRATION = (
    "Stopping the service: cluster registration failed, some tasks were never scheduled. "
    "DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. "
    "# of tasks that reached the barrier: 1/2.\nThe first task at the barrier: /job:worker/replica:0/task:0. "
    "Some timed out task names:\n/job:worker/replica:0/task:1\n"
)


@pytest.mark.parametrize("ended", [ABORTED, FAILED])
@pytest.mark.parametrize("prefix", ["", "E0000 00:00:1795232285.946913 1 coordination_service.cc:900] "])
def test_a_peer_that_never_registered_is_named(ended: Exit, prefix: str) -> None:
    verdict = diagnosed(task(0, ended, STARTED + prefix + REGISTRATION), task(1, None, "", stopped=True))
    assert (verdict.kind, verdict.task) == (Kind.PEER_NEVER_STARTED, "worker-1"), verdict.message


def test_servers_without_a_chief_are_reported() -> None:
    stack = (
        'Main thread (most recent call first):\n  File "/usr/lib/python3/dist-packages/tensorflow/python/training/'
        'server_lib.py", line 185 in join\n  File "/home/ubuntu/job/task.py", line 9 in <module>\n'
    )
    tasks = [
        TaskEvidence(f"worker-{i}", exit=Exit(None, 15), exited_at=9.0, stopped_by_us=True, inspection=HangInspection(f"worker-{i}", f"worker-{i}", 1, 9.0, "S", stack, []))
        for i in (0, 1)
    ]  # fmt: skip
    verdict = diagnosed(
        *tasks, reason=Reason("no first step within 60 s: no task waits for another", ReasonKind.HANG)
    )
    assert "Server.join" in verdict.message
    assert "--chief" in verdict.hint


# --- last output -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("E0000 00:00:1795232285.946913 77 loader.cc:12] decoder table is empty\n", "decoder table is empty"),
        ("F0000 00:00:1795232285.946913 77 loader.cc:12] Check failed: n > 0\n", "Check failed: n > 0"),
        ("node-a:293:765 [0] NCCL WARN Cuda failure 'invalid argument'\n", "NCCL WARN Cuda failure"),
    ],
)
@pytest.mark.parametrize("ended", [Exit(3), ABORTED])
def test_the_last_library_error_is_the_last_output(line: str, text: str, ended: Exit) -> None:
    rule = "-" * 40 + "\n"
    verdict = diagnosed(task(1, ended, "step 1\n" + line + rule))
    assert text in verdict.message
    assert rule.strip() not in verdict.lines


def test_the_exception_of_a_victim_is_reported_if_nothing_else_is_known() -> None:
    log = trace(E + "InternalError: Collective ops is aborted by: the moon is full")
    verdict = diagnosed(task(0, FAILED, log), task(1, Exit(None, 9), "step 1\n", stopped=True))
    assert verdict.kind is Kind.UNKNOWN
    assert "raised InternalError: the moon is full" in verdict.message


def test_a_missing_cpu_instruction_is_a_crash_with_a_hint() -> None:
    verdict = diagnosed(task(1, Exit(None, 4), "step 1\n"))
    assert verdict.kind is Kind.KILLED
    assert "CPU" in verdict.message
    assert "PYTHONFAULTHANDLER" not in verdict.hint


BARS = [
    "\x08\x08\x08\r {n}/44 [===>......] - ETA: {n}s - loss: 0.{n}",
    "\r\x1b[1m{n}/44\x1b[0m \x1b[32m━━━\x1b[0m\x1b[37m━━━\x1b[0m \x1b[1m1s\x1b[0m 15ms/step - loss: 0.{n}",
    "\r {n}%|███▌      | {n}/44 [00:0{n}<00:10,  2.42it/s]",
    "\rLoading {n} of 44",
]  # fmt: skip


@pytest.mark.parametrize("bar", BARS)
def test_a_redrawn_progress_bar_is_one_line(bar: str) -> None:
    drawn = "".join(bar.replace("{n}", str(number)) for number in range(1, 38))
    verdict = diagnosed(task(1, Exit(None, 9), "loading the data\n" + drawn))
    assert len(verdict.lines) == 2
    assert verdict.lines[0] == "loading the data"
    assert "37" in verdict.lines[1]


@pytest.mark.parametrize(
    "earlier",
    [
        "E1127 10:00:01.250000 140 cluster_coordinator.py:899] Start cancelling closures due to error ValueError('no rows'): no rows\n",
        "ERROR:tensorflow: /job:worker/task:0 encountered the following error when processing closure: ValueError():no rows\n",
        trace("ValueError: no rows") + "cleaning up\n",
    ],
)
def test_a_cancelled_request_is_a_consequence_of_an_earlier_error(earlier: str) -> None:
    cancelled = (
        "ERROR:tensorflow:Remote function on worker /job:worker/task:1 failed with CancelledError():CANCELLED\n"
    )
    verdict = diagnosed(
        task(0, FAILED, earlier + cancelled + trace(f"{E}CancelledError: RemoteExecuteNode::RunAsync"))
    )
    assert verdict.kind is Kind.SCRIPT_EXCEPTION
    assert "raised ValueError: no rows at task.py:7 in <module>" in verdict.message


def test_a_cancelled_request_without_an_earlier_error_is_reported_itself() -> None:
    assert (
        "raised CancelledError: stopped"
        in diagnosed(task(0, FAILED, trace("asyncio.CancelledError: stopped"))).message
    )


def test_addresses_of_a_resolver_of_the_script_are_not_those_of_the_job() -> None:
    log = "I0000 00:00:1795232285.946913 1 add_port.cc:83] Failed to add port to server: No address added out of total 1 resolved for '0.0.0.0:2299'\n"
    source = "s = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=r)"
    log += trace(f"{E}UnknownError: Could not start gRPC server", source=source)
    verdict = diagnosed(task(0, FAILED, log), task(1, Exit(0), ""))
    assert verdict.kind is Kind.PORT_IN_USE
    assert "cluster resolver of the script does not describe this job" in verdict.hint
    slurm = trace("RuntimeError: SLURM_PROCID not found in environment. Not running inside a SLURM step?")
    assert diagnosed(task(0, FAILED, slurm), task(1, Exit(0), "")).hint == verdict.hint


def test_estimators_need_an_older_tensorflow() -> None:
    log = trace("AttributeError: module 'tensorflow' has no attribute 'estimator'")
    assert "tensorflow~=2.15.0" in diagnosed(task(0, FAILED, log), task(1, Exit(0), "")).hint
