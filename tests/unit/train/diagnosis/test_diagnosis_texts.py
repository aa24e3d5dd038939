# ruff: noqa: E501 - one row a line
"""The cause that each text of an exception, a peer, or a batch system has; the words of user programs are made up."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from tests.unit.train.diagnosis.evidence import DONE, FAILED, KILLED, LOST, STARTED, E, diagnosed, raised, task
from train.agent.protocol.records import Exit
from train.diagnosis.storage import hint
from train.diagnosis.verdict import Cause

TERMED, ABORTED = Exit(None, 15), Exit(None, 6)

# --- exceptions of one task: the cause, and what it raised -------------------------------------------------------------

TEXTS = [
    (Cause.GPU_OUT_OF_MEMORY, E + "ResourceExhaustedError: OOM when allocating tensor with shape[64,512] and type float on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc [Op:Mul]"),
    (Cause.GPU_OUT_OF_MEMORY, E + "InternalError: Failed to initialize CUDA: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (Cause.GPU_OUT_OF_MEMORY, E + "ResourceExhaustedError: Graph execution error:\n\nDetected at node 'dense/MatMul' defined at (most recent call last):\n    File \"/job/task.py\", line 9, in <module>\n      model.fit(x)\nNode: 'dense/MatMul'\nOOM when allocating tensor with shape[9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc\n\t [[{{node dense/MatMul}}]]\nHint: If you want to see a list"),
    (Cause.HOST_OUT_OF_MEMORY, E + "ResourceExhaustedError: OOM when allocating tensor with shape[9] and type float on /job:worker/replica:0/task:1/device:CPU:0 by allocator cpu"),
    (Cause.HOST_OUT_OF_MEMORY, "OSError: [Errno 12] Cannot allocate memory"),
    (Cause.DISK_FULL, "OSError: [Errno 122] Disk quota exceeded: 'ckpt'"),
    (Cause.SCRIPT_EXCEPTION, "OSError: [Errno 28] No space left on device: inotify watch limit reached"),
    (Cause.NCCL, E + "UnknownError: Error invoking NCCL: unhandled cuda error\n\t [[{{node NcclAllReduce}}]]"),
    (Cause.NCCL, E + "InternalError: NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail."),
    (Cause.NAME_RESOLUTION, E + "UnavailableError: failed to connect to all addresses; last error: DNS resolution failed for host-1:2222: C-ares status is not ARES_SUCCESS"),
    (Cause.NAME_RESOLUTION, "socket.gaierror: [Errno -2] Name or service not known"),
    (Cause.PORT_IN_USE, "OSError: [Errno 98] Address already in use"),
    (Cause.WRONG_TF_CONFIG, E + "AbortedError: /job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted."),
    (Cause.DATA_RAN_OUT, E + "CancelledError: 2 root error(s) found.\n  (0) CANCELLED:  Operation was cancelled\n\t [[{{node IteratorGetNext}}]]\n  (1) OUT_OF_RANGE:  End of sequence\n\t [[{{node IteratorGetNext}}]]\n0 successful operations."),
    (Cause.FILE_NOT_FOUND, E + "NotFoundError: /data/labels.txt; No such file or directory [Op:ReadFile]"),
    (Cause.SCRIPT_EXCEPTION, E + "NotFoundError: Key layer_with_weights-0/bias not found in checkpoint"),
    (Cause.GPU_FAILED, "ImportError: libcublas.so.12: cannot open shared object file: No such file or directory"),
    (Cause.SCRIPT_EXCEPTION, E + "UnavailableError: Error executing an HTTP request: libcurl code 56 meaning 'Failure when receiving data from the peer', error details: Recv failure: Connection reset by peer"),
    (Cause.KERAS_3, "ImportError: Keras cannot be imported. Check that it is installed."),
    (Cause.SCRIPT_EXCEPTION, "ConnectionRefusedError: [Errno 111] Connection refused"),
    (Cause.SCRIPT_EXCEPTION, "RuntimeError: the OOM score of a killed NCCL port was lost"),
    (Cause.SCRIPT_EXCEPTION, "queue.Empty"),
    (Cause.SCRIPT_EXCEPTION, "Diverged: loss is nan"),
    (Cause.PACKAGES, "ImportError: numpy.core.multiarray failed to import"),
    (Cause.PACKAGES, "AttributeError: _ARRAY_API not found"),
    (Cause.PACKAGES, "TypeError: Descriptors cannot not be created directly."),
    (Cause.PACKAGES, "ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by /opt/v/_ext.so)"),
    (Cause.PACKAGES, "ImportError: /lib64/libm.so.6: version `GLIBC_2.35' not found (required by /opt/v/_ext.so)"),
    (Cause.PACKAGES, "ImportError: libGL.so.1: cannot open shared object file: No such file or directory"),
    (Cause.PACKAGES, E + "NotFoundError: /opt/v/_custom_ops.so: undefined symbol: _ZN10tensorflow8OpKernel11TraceStringE"),
    (Cause.PACKAGES, "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject"),
    (Cause.GPU_FAILED, E + "FailedPreconditionError: DNN library is not found.\n\t [[{{node conv/Conv2D}}]]"),
    (Cause.GPU_FAILED, E + "InternalError: libdevice not found at ./libdevice.10.bc"),
    (Cause.GPU_FAILED, E + "InternalError: cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime version"),
    (Cause.GPU_FAILED, E + "InternalError: Failed to load in-memory CUBIN: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
    (Cause.GPU_FAILED, E + "InternalError: CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC error encountered"),
    (Cause.GPU_FAILED, E + "InvalidArgumentError: Could not satisfy device specification '/job:worker/replica:0/task:1/device:GPU:0'. All available devices [/job:worker/replica:0/task:1/device:CPU:0]."),
    (Cause.GPU_FAILED, "RuntimeError: No CUDA GPUs are available"),
    (Cause.GPU_OUT_OF_MEMORY, E + "InternalError: CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
    (Cause.PERMISSION, "PermissionError: [Errno 13] Permission denied: '/mnt/out'"),
    (Cause.PERMISSION, E + "PermissionDeniedError: /mnt/out; Permission denied"),
    (Cause.PERMISSION, "OSError: [Errno 30] Read-only file system: '/data/out'"),
    (Cause.PERMISSION, E + "UnauthenticatedError: Error executing an HTTP request: HTTP response code 401 with body '{'"),
    (Cause.WRONG_TF_CONFIG, "ValueError: 'trainer' is not a valid task_type in this cluster"),
    (Cause.WRONG_TF_CONFIG, "ValueError: No such job in cluster: 'worker'"),
    (Cause.DATA_RAN_OUT, "ValueError: Unexpected result of `train_function` (Empty Logs). Please use"),
    (Cause.DATA_RAN_OUT, "ValueError: Unexpected result of `train_function` (Empty logs). This could be due to"),
    (Cause.SAVE_CONFLICT, E + "NotFoundError: /m/variables/variables_temp_0aa1/part-00000-of-00001.index; No such file or directory [Op:MergeV2Checkpoints]"),
    (Cause.WRONG_TF_CONFIG, E + 'InvalidArgumentError: Task 7 was not defined in job "worker"'),
    (Cause.PACKAGES, "TypeError: Unable to convert function return value to a Python type! The signature was\n\t() -> handle"),
    (Cause.CHECKPOINT_NOT_SHARED, E + "NotFoundError: /t/model.ckpt-0_temp_5f/part-00001-of-00002.index [Op:MergeV2Checkpoints]"),
    (Cause.SAVE_CONFLICT, "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)"),
    (Cause.SERVICE_UNREACHABLE, E + "UnavailableError: Failed to register dataset: failed to connect to all addresses"),
]  # fmt: skip


@pytest.mark.parametrize(("cause", "exception"), TEXTS)
def test_each_exception_has_its_cause(cause: Cause, exception: str) -> None:
    victim = task(0, FAILED, raised(LOST, "task.py:3"), exited_at=109.0)
    verdict = diagnosed(task(1, FAILED, raised(exception, "task.py:12")), victim)
    shared = "incarnation" in exception
    assert (verdict.kind, verdict.task) == (cause, "" if shared else "worker-1"), verdict.message
    assert (verdict.traceback, verdict.consequences) == ("task.py:12 in main", ("worker-0",))
    assert verdict.hint


HINTS = [
    ("ModuleNotFoundError: No module named 'tensorflow.contrib'", "the script is written for TensorFlow 1"),
    ("EOFError: EOF when reading a line", "a task has no keyboard"),
    ("RuntimeError: can't start new thread", "raise the limits"),
    ("ModuleNotFoundError: No module named 'resnet'", "push it with the script"),
    ("AttributeError: module 'tensorflow' has no attribute 'distribute'", "rename the file"),
    ("ModuleNotFoundError: No module named 'tensorflow.keras'; 'tensorflow' is not a package", "rename the file"),
    ("RuntimeError: Collective ops must be configured at program startup", "create the strategy before"),
    ("ValueError: When providing a distributed dataset, you must specify the number of steps to run.", "pass steps_per_epoch to fit"),
    ("AttributeError: module 'tensorflow' has no attribute 'estimator'", "tensorflow~=2.15.0"),
    ("RuntimeError: SLURM_PROCID not found in environment. Not running inside a SLURM step?", "TFConfigClusterResolver()"),
]  # fmt: skip


@pytest.mark.parametrize(("exception", "fix"), HINTS)
def test_each_mistake_of_the_script_has_its_fix(exception: str, fix: str) -> None:
    verdict = diagnosed(task(1, FAILED, raised(exception, "task.py:12")))
    assert verdict.kind is Cause.SCRIPT_EXCEPTION
    assert fix in verdict.hint
    assert "to run. at" not in verdict.message


@pytest.mark.parametrize(
    ("cause", "file", "exception"),
    [
        (Cause.WRONG_TF_CONFIG, "site-packages/tensorflow/python/training/server_lib.py", "TypeError: '1' has type str, but expected one of: int"),
        (Cause.SCRIPT_EXCEPTION, "site-packages/google/protobuf/internal/containers.py", "TypeError: '1' has type str, but expected one of: int"),
        (Cause.SAVE_CONFLICT, "shutil.py", "OSError: [Errno 39] Directory not empty: 'model'"),
        (Cause.SCRIPT_EXCEPTION, "clean.py", "OSError: [Errno 39] Directory not empty: 'model'"),
        (Cause.SCRIPT_EXCEPTION, "site-packages/torch/cuda.py", "RuntimeError: CUDA error: device-side assert triggered"),
    ],
)  # fmt: skip
def test_the_same_words_have_another_cause_in_other_files(cause: Cause, file: str, exception: str) -> None:
    log = raised(f'  File "/usr/lib/python3.11/{file}", line 3, in call\n    go()\n{exception}', "task.py:7")
    assert diagnosed(task(1, FAILED, log)).kind is cause


@pytest.mark.parametrize("exception", ["RuntimeError: no backend", "ValueError: mutable default"])
def test_an_exception_of_an_imported_package_does_not_blame_the_script(exception: str) -> None:
    inside = (
        f'  File "/venv/lib/python3.11/site-packages/pack/__init__.py", line 3, in <module>\n    check()\n{exception}'
    )
    verdict = diagnosed(task(1, FAILED, raised(inside, "task.py:7", source="import pack")))
    assert verdict.kind is Cause.SCRIPT_EXCEPTION
    assert "package" in verdict.hint


# --- errors that a peer answered with ----------------------------------------------------------------------------------


def answered(
    status: int, words: str, *, wrapper: str = "Collective ops is aborted by: ", name: str = "Internal"
) -> str:
    return raised(
        f"{E}{name}Error: Graph execution error:\n\n{wrapper}{words}\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:\n"
        f':UNKNOWN:Error received from peer  {{grpc_status:{status}, grpc_message:"{words}"}}\n'
        "\t [[{{node CollectiveReduceV2}}]] [Op:__inference_step_31]",
        "task.py:7",
    )


STOPPED = task(0, KILLED, STARTED, stopped_by_us=True)
ANSWERS = [
    (3, "Shape mismatch in the collective instance 7. Op at device /job:worker/replica:0/task:0/device:CPU:0 expected shape [3] but another member in the group expected shape [5].", Cause.MODELS_DIFFER),
    (8, "OOM when allocating tensor with shape[9,9] and type float on /job:worker/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc", Cause.GPU_OUT_OF_MEMORY),
    (11, "End of sequence", Cause.DATA_RAN_OUT),
    (13, "NCCL: unhandled system error", Cause.NCCL),
    (3, "assertion failed: [bad label] [Condition x < y did not hold]", Cause.UNKNOWN),
    (5, "/data/part-3.tfrecord; No such file or directory", Cause.FILE_NOT_FOUND),
]  # fmt: skip


@pytest.mark.parametrize(("status", "words", "cause"), ANSWERS)
def test_a_peer_that_answered_with_an_error_is_not_reported_as_lost(status: int, words: str, cause: Cause) -> None:
    verdict = diagnosed(task(1, FAILED, answered(status, words)), STOPPED)
    assert verdict.kind is cause, verdict.message
    assert not any(word in verdict.message for word in ("lost", "frozen", "cut off", "stopped answering"))
    assert words[:20] in verdict.message
    assert "firewall" not in verdict.hint
    if cause is not Cause.MODELS_DIFFER:
        assert verdict.message.startswith("worker-0 (10.0.0.2) reported: ")


@pytest.mark.parametrize(("status", "name"), [(14, "Unavailable"), (4, "DeadlineExceeded")])
def test_a_peer_that_did_not_answer_is_reported_as_lost(status: int, name: str) -> None:
    verdict = diagnosed(task(1, FAILED, answered(status, "Socket closed", name=name)), STOPPED)
    assert (verdict.kind, verdict.task) == (Cause.PEER_UNREACHABLE, "worker-0")


@pytest.mark.parametrize("order", ["{grpc_status:%s, grpc_message:%s}", "{grpc_message:%s, grpc_status:%s}"])
def test_the_status_of_the_peer_counts_not_one_that_it_quotes(order: str) -> None:
    quoted = '"out of bounds\\n:UNKNOWN:Error received from peer  {grpc_message:\\"Socket closed\\", grpc_status:14}"'
    outer = order % (("3", quoted) if order.startswith("{grpc_status") else (quoted, "3"))
    log = raised(
        E + "InvalidArgumentError: Collective ops is aborted by: out of bounds\n"
        "Additional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.WorkerService/RecvBuf:\n"
        f":UNKNOWN:Error received from peer  {outer}"
    )
    assert diagnosed(task(1, FAILED, log), STOPPED).message.startswith("worker-0 (10.0.0.2) reported: ")


def test_an_error_that_a_worker_returned_to_the_chief_is_the_scripts() -> None:
    log = answered(3, "assertion failed: [bad label]", wrapper="", name="InvalidArgument")
    verdict = diagnosed(task(1, FAILED, log), task(0, Exit(None, 15), STARTED, stopped_by_us=True))
    assert (verdict.kind, verdict.task) == (Cause.SCRIPT_EXCEPTION, "worker-1")
    assert verdict.message.endswith("at task.py:7 in main, as worker-0 reported")


# --- ports and addresses ----------------------------------------------------------------------------------------------

SERVICE = raised(
    E + "UnavailableError: Failed to get a split: failed to connect to all addresses; last error: UNAVAILABLE: "
    "ipv4:10.0.0.{host}:{port}: Failed to connect to remote host: Connection refused"
)


@pytest.mark.parametrize(("host", "port", "is_peer"), [(9, 5050, False), (2, 5050, False), (2, 2222, True)])
def test_a_server_outside_the_job_is_not_a_peer(host: int, port: int, is_peer: bool) -> None:
    log = SERVICE.replace("{host}", str(host)).replace("{port}", str(port))
    verdict = diagnosed(task(1, FAILED, log, port=2222), task(0, KILLED, STARTED, stopped_by_us=True, port=2222))
    assert (verdict.kind is Cause.PEER_UNREACHABLE) == is_peer
    if not is_peer:
        assert (verdict.kind, verdict.task) == (Cause.SERVICE_UNREACHABLE, "worker-1")
        assert f"10.0.0.{host}:{port}, which is not a task of this job" in verdict.message


def test_the_address_of_a_peer_that_the_network_translates_is_a_peers() -> None:
    log = raised(
        E
        + "UnavailableError: failed to connect to all addresses; last error: UNKNOWN: ipv4:34.1.2.3:2222: Failed to "
        "connect to remote host\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0 while "
        "calling /tensorflow.WorkerService/GetStatus:\n:UNKNOWN:Error received from peer  {grpc_status:14}"
    )
    verdict = diagnosed(task(1, FAILED, log), STOPPED)
    assert (verdict.kind, verdict.task) == (Cause.PEER_UNREACHABLE, "worker-0")


PORTS = [
    "E0000 00:00:1795232285.946913 1 add_port.cc:83] Failed to add port to server: No address added out of total 1 resolved for '0.0.0.0:{port}'\n",
    "E0301 10:00:00.123456789   4711 chttp2_server.cc:1051] UNKNOWN:No address added out of total 1 resolved for '[::]:{port}'\n",
    'E0301 10:00:00.123456789   4711 server_chttp2.cc:40] {"description":"Failed to add any wildcard listeners","referenced_errors":[{"description":"Address already in use","errno":98,"syscall":"bind"}],"target_address":"[::]:{port}"}\n',
    "E0301 10:00:00.123456789   4711 tcp_server_posix.cc:64] bind addr=[::]:{port}: Address already in use\n",
]  # fmt: skip


@pytest.mark.parametrize("line", PORTS)
@pytest.mark.parametrize("ended", [FAILED, Exit(None, 11), ABORTED])
def test_the_port_that_a_script_chose_is_not_the_tasks_port(line: str, ended: Exit) -> None:
    assigned = diagnosed(task(1, ended, line.replace("{port}", "2222"), port=2222))
    assert assigned.kind is Cause.PORT_IN_USE
    assert "its port was in use" in assigned.message
    chosen = diagnosed(task(1, ended, line.replace("{port}", "11888"), port=2222))
    assert chosen.kind is Cause.PORT_IN_USE
    if "target_address" not in line:
        assert "port 11888" in chosen.message
        assert "TF_CONFIG" in chosen.hint


def test_addresses_of_a_resolver_of_the_script_are_not_those_of_the_job() -> None:
    log = PORTS[0].replace("{port}", "2299")
    source = "s = tf.distribute.MultiWorkerMirroredStrategy(cluster_resolver=r)"
    log += raised(f"{E}UnknownError: Could not start gRPC server", source=source)
    verdict = diagnosed(task(0, FAILED, log, port=2222), task(1, DONE, ""))
    assert verdict.kind is Cause.PORT_IN_USE
    assert "cluster resolver of the script does not describe this job" in verdict.hint


# --- Cloud Storage: activity that TensorFlow reports, answer of the server, cause, and the command that fixes it -------

EMAIL = "100000000001-compute@developer.gserviceaccount.com"
DENIED = f"{EMAIL} does not have storage.%s access to the Google Cloud Storage %s."
GRANT = f"give the account the role: gcloud storage buckets add-iam-policy-binding gs://bkt --member serviceAccount:{EMAIL} --role roles/storage."
NO_ACCESS = "the hosts have no access to Cloud Storage; on Compute Engine, create the fleet again with fleet up --bucket gs://bkt"
STORAGE = [
    ("PermissionDeniedError", 403, DENIED % ("objects.create", "object"), "when initiating an upload to gs://bkt/run1/ckpt-1.index", GRANT + "objectUser"),
    ("PermissionDeniedError", 403, DENIED % ("buckets.get", "bucket"), "when reading gs://bkt/run1", GRANT + "legacyBucketReader"),
    ("PermissionDeniedError", 403, DENIED % ("buckets.get", "bucket"), "", f"give {EMAIL} the role roles/storage.legacyBucketReader on the bucket"),
    ("PermissionDeniedError", 403, "Insufficient Permission", "when reading gs://bkt/data/a.npz", NO_ACCESS),
    ("PermissionDeniedError", 401, "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object.", "when reading metadata of gs://bkt/data/a.npz", NO_ACCESS),
    ("NotFoundError", 404, "The specified bucket does not exist.", "when reading metadata of gs://bkt/data/a.npz", "correct the name of the bucket, or create it: gcloud storage buckets create gs://bkt"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "status", "message", "activity", "fix"), STORAGE)
def test_an_error_of_cloud_storage_names_the_command_that_fixes_it(
    error: str, status: int, message: str, activity: str, fix: str
) -> None:
    body = f'{{\n  "error": {{\n    "code": {status},\n    "message": "{message}"'
    text = (
        f"{E}{error}: Error executing an HTTP request: HTTP response code {status} with body '{body}'\n\t {activity}"
    )
    verdict = diagnosed(task(1, FAILED, raised(text)))
    assert verdict.kind is (Cause.FILE_NOT_FOUND if status == 404 else Cause.PERMISSION)
    assert verdict.hint == fix
    assert message in verdict.message  # the reason that the server gave


def test_an_error_of_the_storage_library_names_the_command_that_fixes_it() -> None:
    url = "https://storage.googleapis.com/storage/v1/b/bkt/o/a?alt=json"
    text = f"google.api_core.exceptions.Forbidden: 403 GET {url}: {DENIED % ('objects.get', 'object')}"
    assert diagnosed(task(1, FAILED, raised(text))).hint == GRANT + "objectUser"


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


# --- jobs of other clusters and versions --------------------------------------------------------------------------------


class Job(NamedTuple):
    """Exits and logs of tasks, in the order of their exits, and the numbers of these workers."""

    cause: Cause
    task: str
    tasks: list[tuple[Exit | None, str]]
    text: str = ""
    numbers: tuple[int, ...] = (1, 0)


def keras(exception: str) -> str:
    """Return the traceback of a call of Keras's fit."""
    library = "/usr/local/lib/python3.10/dist-packages"
    frames = (
        f'  File "{library}/keras/utils/traceback_utils.py", line 70, in error_handler\n    raise e.with_traceback(filtered_tb) from None\n'
        f'  File "{library}/tensorflow/python/eager/execute.py", line 53, in quick_execute\n    tensors = pywrap_tfe.TFE_Py_Execute(ctx._handle, device_name, op_name,\n'
    )
    return raised(frames + exception, "train.py:91", "train.py:77", source="model.fit(dataset, epochs=FLAGS.epochs)")


def loop(exception: str) -> str:
    """Return the traceback of a loop without Keras."""
    return raised(exception, "loop.py:40", "loop.py:31", source="loss = step(next(it))")


EPOCHS = "Epoch 1/5\n100/100 - 9s - loss: 2.1 - accuracy: 0.3 - 9s/epoch - 90ms/step\nEpoch 2/5\n"
CLOSED = keras(
    E
    + "UnavailableError: Graph execution error:\n\nDetected at node 'CollectiveReduceV2' defined at (most recent call last):\n"
    '    File "/srv/app/train.py", line 91, in <module>\n      main()\n    File "/srv/app/train.py", line 77, in main\n      model.fit(dataset, epochs=FLAGS.epochs)\n'
    "Node: 'CollectiveReduceV2'\nCollective ops is aborted by: Socket closed\n"
    "Additional GRPC error information from remote target /job:worker/replica:0/task:1:\n"
    ':{"created":"@1668000000.123456789","description":"Error received from peer ipv4:10.0.0.3:2222","file":"external/com_github_grpc_grpc/src/core/lib/surface/call.cc","file_line":1056,"grpc_message":"Socket closed","grpc_status":14}\n'
    "The error could be from a previous operation. Restart your program to reset.\n"
    "\t [[{{node CollectiveReduceV2}}]] [Op:__inference_train_function_2345]"
)
OOM = (
    E + "ResourceExhaustedError: Graph execution error:\n\n"
    "Detected at node 'gradient_tape/model/conv/Conv2D/Conv2DBackpropFilter' defined at (most recent call last):\n"
    '    File "/srv/app/train.py", line 91, in <module>\n      main()\n'
    '    File "/usr/local/lib/python3.10/dist-packages/keras/engine/training.py", line 1564, in fit\n      tmp_logs = self.train_function(iterator)\n'
    "Node: 'gradient_tape/model/conv/Conv2D/Conv2DBackpropFilter'\n2 root error(s) found.\n"
    "  (0) RESOURCE_EXHAUSTED:  OOM when allocating tensor with shape[64,512,56,56] and type float on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc\n"
    "\t [[{{node gradient_tape/model/conv/Conv2D/Conv2DBackpropFilter}}]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions.\n\n"
    "\t [[CollectiveReduceV2/_14]]\nHint: If you want to see a list of allocated tensors when OOM happens, add report_tensor_allocations_upon_oom to RunOptions.\n\n"
    "  (1) RESOURCE_EXHAUSTED:  OOM when allocating tensor with shape[64,512,56,56] and type float on /job:worker/replica:0/task:1/device:GPU:0 by allocator GPU_0_bfc\n"
    "0 successful operations.\n0 derived errors ignored. [Op:__inference_train_function_2345]"
)
GPU_WORDS = (
    "2024-03-01 10:00:01.500000: W external/local_tsl/tsl/framework/bfc_allocator.cc:487] Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.50GiB (rounded to 2684354560)requested by op\n"
    "2024-03-01 10:00:01.500100: I external/local_tsl/tsl/framework/bfc_allocator.cc:1044] BFCAllocator dump for GPU_0_bfc\n"
    + "".join(
        f"2024-03-01 10:00:01.{i:06}: I external/local_tsl/tsl/framework/bfc_allocator.cc:1051] Bin ({i}): \tTotal Chunks: 4, Chunks in use: 3.\n"
        for i in range(90)
    )
)
STRAGGLERS = (
    E
    + "DeadlineExceededError: Barrier timed out. Id: {barrier}::4829304. This usually happens because a task triggered the barrier too early or too slowly. Please look at the task logs (both timed out and first task) to debug further.\n"
    "# of tasks that reached the barrier: 1/2.\nThe first task at the barrier: /job:worker/replica:0/task:0. Some timed out task names:\n/job:worker/replica:0/task:1\n\n\n"
    "RPC: /tensorflow.CoordinationService/Barrier"
)

JOBS: dict[str, Job] = {
    # --- GPU and host memory
    "graph error with ops defined elsewhere": Job(Cause.GPU_OUT_OF_MEMORY, "worker-1", [(FAILED, EPOCHS + keras(OOM)), (FAILED, CLOSED)]),
    "memory that only the allocator assigns to the GPU": Job(Cause.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, EPOCHS + GPU_WORDS + keras(E + "ResourceExhaustedError: Out of memory while trying to allocate 2684354560 bytes. [Op:__inference_one_step_on_iterator_991]"))]),
    "memory of an unknown device": Job(Cause.UNKNOWN, "worker-0", [(FAILED, keras(E + "ResourceExhaustedError: failed to allocate memory [Op:Mul]"))], "failed to allocate memory"),
    "xla": Job(Cause.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, GPU_WORDS + loop("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."))]),
    "cuda at the start": Job(Cause.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, loop(E + "InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory"))]),
    "cudnn without memory": Job(Cause.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, "2023-01-01 10:00:00.100000: E tensorflow/stream_executor/cuda/cuda_dnn.cc:377] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\n" + loop(E + "UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try looking to see if a warning log message was printed above. [Op:Conv2D]"))]),
    "old style": Job(Cause.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, "Caused by op 'mul', defined at:\n  File \"/srv/app/train.py\", line 3, in <module>\n\n" + loop("ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"))]),
    "slurm memory": Job(Cause.HOST_OUT_OF_MEMORY, "worker-1", [(KILLED, EPOCHS + "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"), (FAILED, CLOSED)]),
    "slurm memory limit": Job(Cause.HOST_OUT_OF_MEMORY, "worker-1", [(KILLED, EPOCHS + "slurmstepd: error: Step 812.0 exceeded memory limit (66412340 > 65536000), being killed\n"), (FAILED, CLOSED)]),
    "pbs memory": Job(Cause.HOST_OUT_OF_MEMORY, "worker-1", [(TERMED, EPOCHS + "=>> PBS: job killed: mem 8912340kb exceeded limit 8388608kb\n"), (FAILED, CLOSED)]),
    "kernel log": Job(Cause.HOST_OUT_OF_MEMORY, "worker-1", [(Exit(137), EPOCHS + "[412345.678901] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:34567890kB, anon-rss:16777216kB, file-rss:0kB\n"), (FAILED, CLOSED)]),
    "ray memory": Job(Cause.HOST_OUT_OF_MEMORY, "worker-0", [(FAILED, loop("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."))]),
    "killed, reported by the shell": Job(Cause.KILLED, "worker-1", [(Exit(137), EPOCHS + "/srv/run.sh: line 12:  4711 Killed                  python3 train.py --epochs 5\n"), (FAILED, CLOSED)]),
    "killed, reported by a Python wrapper": Job(Cause.KILLED, "worker-1", [(Exit(247), EPOCHS), (FAILED, CLOSED)], "SIGKILL"),
    "bus error": Job(Cause.KILLED, "worker-1", [(Exit(135), EPOCHS + "Bus error (core dumped)\n"), (FAILED, CLOSED)], "SIGBUS"),
    "heap": Job(Cause.KILLED, "worker-1", [(ABORTED, EPOCHS + "*** Error in `python3': munmap_chunk(): invalid pointer: 0x0000555560e2b570 ***\n======= Backtrace: =========\n/lib64/libc.so.6(+0x7f574)[0x2aaaaaf6a574]\n"), (FAILED, CLOSED)]),
    # --- packages
    "no scipy on Keras 2": Job(Cause.PACKAGES, "worker-0", [(FAILED, loop("NameError: name 'scipy' is not defined"))], "lacks the package scipy"),
    "no scipy on Keras 3": Job(Cause.PACKAGES, "worker-0", [(FAILED, loop("ImportError: This requires the scipy module. You can install it via `pip install scipy`"))], "lacks the package scipy"),
    "no scipy, reported": Job(Cause.PACKAGES, "worker-0", [(FAILED, loop("ImportError: Image transformations require SciPy. Install SciPy."))], "lacks the package scipy"),
    # --- disks and files
    "checkpoint on a full disk": Job(Cause.DISK_FULL, "worker-0", [(FAILED, EPOCHS + keras(E + "ResourceExhaustedError: {{function_node __wrapped__SaveV2_dtypes_30_device_/job:worker/replica:0/task:0/device:CPU:0}} /ckpt/ckpt-3_temp/part-00000-of-00001.data-00000-of-00001.tempstate812; No space left on device [Op:SaveV2]")), (FAILED, CLOSED)], numbers=(0, 1)),
    "hdf5 on a full disk": Job(Cause.DISK_FULL, "worker-0", [(FAILED, loop("OSError: [Errno 28] Can't synchronously write data (file write failed: time = Mon Jan  1 10:00:00 2024\n, filename = 'm.h5', file descriptor = 7, errno = 28, error message = 'No space left on device', buf = 0x55, total write size = 8, bytes this sub-write = 8, offset = 0)"))]),
    "bucket without the object": Job(Cause.FILE_NOT_FOUND, "worker-0", [(FAILED, loop(E + "NotFoundError: Error executing an HTTP request: HTTP response code 404 with body '{\"error\": {\"code\": 404}}'\n\t when reading metadata of gs://some-bucket/train.tfrecord"))]),
    "pattern without files": Job(Cause.FILE_NOT_FOUND, "worker-0", [(FAILED, loop(E + "InvalidArgumentError: Expected 'tf.Tensor(False, shape=(), dtype=bool)' to be true. Summarized data: b'No files matched pattern: /data/train-*.tfrecord'"))]),
    "checkpoint that only the chief has": Job(Cause.CHECKPOINT_NOT_SHARED, "worker-1", [(FAILED, loop(E + "NotFoundError: Unsuccessful TensorSliceReader constructor: Failed to find any matching files for /tmp/run/ckpt-12")), (FAILED, CLOSED)]),
    "checkpoint on a full disk, in few words": Job(Cause.DISK_FULL, "worker-0", [(FAILED, loop("ResourceExhaustedError: ./model/model-49.tempstate5787507096018461664\n\t [[Node: save/save = SaveSlices[T=[DT_FLOAT, DT_FLOAT]](_recv_save/Const_0)]]"))]),
    "quota": Job(Cause.DISK_FULL, "worker-0", [(FAILED, loop(E + "ResourceExhaustedError: disk quota exceeded [Op:SaveV2]"))]),
    # --- network, names, ports
    "dns of a service": Job(Cause.NAME_RESOLUTION, "worker-0", [(FAILED, loop(E + "UnavailableError: failed to connect to all addresses; last error: UNKNOWN: DNS resolution failed for job-worker-1.default.svc:2222: C-ares status is not ARES_SUCCESS qtype=AAAA name=job-worker-1.default.svc is_balancer=0: Domain name not found\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/GetStatus:"))]),
    "dns of a download": Job(Cause.NAME_RESOLUTION, "worker-0", [(FAILED, loop("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"))]),
    "port of an old gRPC": Job(Cause.PORT_IN_USE, "worker-0", [(FAILED, 'E0301 10:00:00.123456789   4711 server_chttp2.cc:40]        {"created":"@1583056800.123","description":"No address added out of total 1 resolved","file":"external/grpc/src/core/ext/transport/chttp2/server/chttp2_server.cc","file_line":394,"referenced_errors":[{"created":"@1583056800.123","description":"Failed to add any wildcard listeners","referenced_errors":[{"created":"@1583056800.123","description":"Unable to configure socket","fd":7,"referenced_errors":[{"description":"Address already in use","errno":98,"os_error":"Address already in use","syscall":"bind"}]}]}]}\n' + loop(E + "UnknownError: Could not start gRPC server"))]),
    "reset by a killed peer": Job(Cause.KILLED, "worker-1", [(FAILED, keras(E + "UnavailableError: Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:")), (KILLED, EPOCHS)], numbers=(0, 1)),
    "http proxy": Job(Cause.PEER_UNREACHABLE, "worker-1", [(FAILED, loop(E + "UnavailableError: Trying to connect an http1.x server\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/GetStatus:"))]),
    "os error of TensorFlow 1": Job(Cause.PEER_UNREACHABLE, "", [(FAILED, loop(E + "UnavailableError: OS Error")), (FAILED, loop(E + "UnavailableError: OS Error"))]),
    "storage that closes connections is not a peer": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop(E + "UnavailableError: Error executing an HTTP request: libcurl code 35 meaning 'SSL connect error', error details: OpenSSL SSL_connect: Broken pipe")), (FAILED, CLOSED)], numbers=(0, 1)),
    # --- peers
    "barrier of 2.12": Job(Cause.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(STRAGGLERS.format(barrier="WaitForAllTasks"))), (None, "")], numbers=(0, 1)),
    "barrier of 2.19": Job(Cause.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(STRAGGLERS.format(barrier="[Init]Wait_for_all_tasks_to_register"))), (None, "")], numbers=(0, 1)),
    "barrier of 2.11": Job(Cause.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(E + "DeadlineExceededError: Barrier timed out. Barrier_id: WaitForAllTasks::3409563941431950927. Timed out task names:\n/job:worker/replica:0/task:1\n\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.CoordinationService/Barrier:")), (None, "")], numbers=(0, 1)),
    "shutdown barrier": Job(Cause.KILLED, "worker-1", [(KILLED, EPOCHS), (FAILED, EPOCHS + loop(E + "DeadlineExceededError: Shutdown barrier in coordination service has failed:\nDEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::55. Timed out task names:\n/job:worker/replica:0/task:1\n\nThis suggests that the workers are out of sync."))]),
    "peer that came back": Job(Cause.PEER_UNREACHABLE, "worker-1", [(FAILED, EPOCHS + keras(E + "AbortedError: Graph execution error:\n\n/job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted.\n\nRPC: /tensorflow.CoordinationService/ReportErrorToTask\n\t [[{{node CollectiveReduceV2}}]] [Op:__inference_train_function_1]"))]),
    "index in use twice": Job(Cause.WRONG_TF_CONFIG, "", [(FAILED, loop(E + "AbortedError: /job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted."))]),
    "peer that came back, to a session": Job(Cause.PEER_UNREACHABLE, "worker-1", [(FAILED, EPOCHS + loop(E + 'AbortedError: RecvTensor expects a different device incarnation: 1234567 vs. 7654321. Your worker job ("/job:worker/replica:0/task:1") was probably restarted. Check your worker job for the reason why it was restarted.'))]),
    "rendezvous": Job(Cause.SCRIPT_EXCEPTION, "worker-1", [(FAILED, loop(E + "CancelledError: RecvAsync is cancelled.\n\t [[{{node cond/else/_1/CollectiveReduceV2}}]] [Op:__inference_step_5]")), (FAILED, loop("ZeroDivisionError: float division by zero"))], "ZeroDivisionError", numbers=(0, 1)),
    "collectives that timed out": Job(Cause.HANG, "", [(FAILED, keras(E + "DeadlineExceededError: Collective ops is aborted by: Collective has timed out during execution."))] * 2),
    "collectives that timed out on all but one": Job(Cause.HANG, "worker-1", [(FAILED, keras(E + "DeadlineExceededError: Collective ops is aborted by: Collective has timed out during execution.")), (None, EPOCHS)], numbers=(0, 1)),
    "parameter server gone": Job(Cause.PEER_UNREACHABLE, "ps-0", [(FAILED, "ERROR:tensorflow:/job:worker/task:0 encountered the following error when processing closure: UnavailableError():Graph execution error:\n" + loop(E + "UnavailableError: failed to connect to all addresses\nAdditional GRPC error information from remote target /job:ps/replica:0/task:0:\n" + ':{"created":"@1663638751.1","description":"Failed to pick subchannel","file":"external/com_github_grpc_grpc/src/core/ext/filters/client_channel/client_channel.cc","file_line":3940,"grpc_status":14}'))]),
    "peer in a long tale of user code": Job(Cause.KILLED, "worker-1", [(FAILED, loop(E + "UnavailableError: in user code:\n\n" + "".join(f"    /srv/lib/layer_{i}.py:{i} call  *\n        return super().call(x)\n" for i in range(90)) + "\n    UnavailableError: Collective ops is aborted by: Socket closed\n    The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduceV2]\n")), (KILLED, EPOCHS)], numbers=(0, 1)),
    # --- NCCL
    "nccl": Job(Cause.NCCL, "worker-0", [(FAILED, "node-a:293:765 [0] NCCL WARN Net : Call to connect to 10.0.0.3<40001> failed with Connection refused\n2023-10-26 12:12:07.399692: W tensorflow/core/framework/op_kernel.cc:1780] OP_REQUIRES failed at nccl_ops.cc:104 : INTERNAL: unhandled system error\n" + keras(E + "InternalError: Graph execution error:\n\nDetected at node 'NcclAllReduce' defined at (most recent call last):\n    File \"/srv/app/train.py\", line 91, in <module>\n      main()\nNode: 'NcclAllReduce'\nunhandled system error\n\t [[{{node NcclAllReduce}}]] [Op:__inference_train_function_1]"))]),
    "nccl whose peer ended": Job(Cause.SCRIPT_EXCEPTION, "worker-1", [(FAILED, keras(E + "InternalError: Collective ops is aborted by: NCCL: remote process exited or there was a network error. Set NCCL_DEBUG=WARN for detail.")), (FAILED, loop("KeyError: 'label'"))], "KeyError", numbers=(0, 1)),
    "nccl whose peer ended for an unknown reason": Job(Cause.NCCL, "", [(FAILED, keras(E + "InternalError: Collective ops is aborted by: NCCL: remote process exited or there was a network error. Set NCCL_DEBUG=WARN for detail."))] * 2),
    "nccl without shared memory": Job(Cause.NCCL, "worker-0", [(FAILED, "node-a:293:765 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\nnode-a:293:765 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-cvnBpe (size 9637888)\n" + loop(E + "InternalError: NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail."))]),
    # --- ends from outside
    "slurm preemption": Job(Cause.PREEMPTED, "worker-0", [(TERMED, EPOCHS + "slurmstepd: error: *** STEP 812.0 ON node17 CANCELLED AT 2024-03-01T10:00:00 DUE TO PREEMPTION ***\n")]),
    "slurm time limit": Job(Cause.DEADLINE, "worker-0", [(TERMED, EPOCHS + "slurmstepd: error: *** JOB 812 ON node17 CANCELLED AT 2024-03-01T10:00:00 DUE TO TIME LIMIT ***\n")]),
    "pbs time limit": Job(Cause.DEADLINE, "worker-0", [(Exit(271), EPOCHS + "=>> PBS: job killed: walltime 3625 exceeded limit 3600\n")]),
    "preemption handler": Job(Cause.PREEMPTED, "worker-0", [(Exit(42), EPOCHS + "INFO:tensorflow:PreemptionCheckpointHandler: checkpoint saved, exiting after a termination notice.\n")]),
    # --- the script
    "behind a progress bar": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, " 63%|██████▎   | 32547/51360 [21:52:50<12:38:51,  2.42s/it, avr_loss=0.0996]" + loop("KeyError: 'lr'"))], "KeyError: 'lr' at loop.py:31 in main"),
    "keras 3 arguments": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, keras("ValueError: Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 of layer \"dense\" is incompatible with the layer: expected axis -1 of input shape to have value 784, but received input with shape (64, 28)\x1b[0m\n\nArguments received by Sequential.call():\n  • inputs=tf.Tensor(shape=(64, 28), dtype=float32)\n  • training=True"))], "expected axis -1"),
    "note on an exception": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop("ValueError: bad row\nwhile reading shard 3\n"))]),
    "missing attribute": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop("AttributeError: module 'tensorflow' has no attribute 'Session'"))]),
    "usage": Job(Cause.UNKNOWN, "worker-0", [(Exit(1), "FATAL Flags parsing error: Unknown command line flag 'epoch'. Did you mean: epochs ?\nPass --helpshort or --helpfull to see help on flags.\n")]),
    "rich traceback": Job(Cause.SCRIPT_EXCEPTION, "worker-0", [(FAILED, "╭──────────────── Traceback (most recent call last) ────────────────╮\n│ /srv/app/train.py:12 in main                                     │\n│                                                                  │\n│    9 def main():                                                 │\n│ ❱ 12     raise ValueError(\"no such split\")                       │\n╰──────────────────────────────────────────────────────────────────╯\nValueError: no such split\n")], "no such split"),
}  # fmt: skip


@pytest.mark.parametrize("name", JOBS)
def test_each_job_has_its_cause(name: str) -> None:
    job = JOBS[name]
    numbers = job.numbers if len(job.tasks) > 1 else (0,)
    verdict = diagnosed(
        *(
            task(number, ended, log, exited_at=100.0 + place if ended else None)
            for place, (number, (ended, log)) in enumerate(zip(numbers, job.tasks, strict=True))
        )
    )
    assert (verdict.kind, verdict.task) == (job.cause, job.task), verdict.message
    assert job.text in verdict.message
