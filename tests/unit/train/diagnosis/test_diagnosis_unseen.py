# ruff: noqa: E501 - logs
"""Logs in the formats of other clusters, launchers, and versions; the words of user programs are made up."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import NamedTuple

import pytest

from train.agent.protocol.records import Exit, Outcome
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Kind, TaskEvidence

FAILED, DONE, KILLED, TERMED, ABORTED = Exit(1), Exit(0), Exit(None, 9), Exit(None, 15), Exit(None, 6)
E = "tensorflow.python.framework.errors_impl."


class Case(NamedTuple):
    """A job: exits and logs of its tasks, in the order of their exits, and the numbers of these workers."""

    kind: Kind
    task: str
    tasks: list[tuple[Exit | None, str]]
    text: str = ""
    numbers: tuple[int, ...] = (1, 0)


def trace(
    exception: str, *, directory: str = "/srv/app", library: str = "/usr/local/lib/python3.10/dist-packages"
) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "{directory}/train.py", line 91, in <module>\n    main()\n'
        f'  File "{directory}/train.py", line 77, in main\n    model.fit(dataset, epochs=FLAGS.epochs)\n'
        f'  File "{library}/keras/utils/traceback_utils.py", line 70, in error_handler\n    raise e.with_traceback(filtered_tb) from None\n'
        f'  File "{library}/tensorflow/python/eager/execute.py", line 53, in quick_execute\n    tensors = pywrap_tfe.TFE_Py_Execute(ctx._handle, device_name, op_name,\n'
        f"{exception}\n"
    )


def loop(exception: str) -> str:
    """Return the traceback of a loop without Keras."""
    return (
        "Traceback (most recent call last):\n"
        '  File "/srv/app/loop.py", line 40, in <module>\n    run()\n'
        '  File "/srv/app/loop.py", line 31, in run\n    loss = step(next(it))\n'
        f"{exception}\n"
    )


EPOCHS = "Epoch 1/5\n100/100 - 9s - loss: 2.1 - accuracy: 0.3 - 9s/epoch - 90ms/step\nEpoch 2/5\n"
CLOSED = trace(
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

CASES: dict[str, Case] = {
    # --- GPU and host memory
    "graph error with ops defined elsewhere": Case(Kind.GPU_OUT_OF_MEMORY, "worker-1", [(FAILED, EPOCHS + trace(OOM)), (FAILED, CLOSED)]),
    "memory that only the allocator assigns to the GPU": Case(Kind.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, EPOCHS + GPU_WORDS + trace(E + "ResourceExhaustedError: Out of memory while trying to allocate 2684354560 bytes. [Op:__inference_one_step_on_iterator_991]"))]),
    "memory of an unknown device": Case(Kind.UNKNOWN, "worker-0", [(FAILED, trace(E + "ResourceExhaustedError: failed to allocate memory [Op:Mul]"))], "failed to allocate memory"),
    "xla": Case(Kind.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, GPU_WORDS + loop("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 4294967296 bytes."))]),
    "cuda at the start": Case(Kind.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, loop(E + "InternalError: CUDA runtime implicit initialization on GPU:0 failed. Status: out of memory"))]),
    "cudnn without memory": Case(Kind.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, "2023-01-01 10:00:00.100000: E tensorflow/stream_executor/cuda/cuda_dnn.cc:377] Could not create cudnn handle: CUDNN_STATUS_ALLOC_FAILED\n" + loop(E + "UnknownError: Failed to get convolution algorithm. This is probably because cuDNN failed to initialize, so try looking to see if a warning log message was printed above. [Op:Conv2D]"))]),
    "old style": Case(Kind.GPU_OUT_OF_MEMORY, "worker-0", [(FAILED, "Caused by op 'mul', defined at:\n  File \"/srv/app/train.py\", line 3, in <module>\n\n" + loop("ResourceExhaustedError (see above for traceback): OOM when allocating tensor with shape[9,9] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc"))]),
    "slurm memory": Case(Kind.HOST_OUT_OF_MEMORY, "worker-1", [(KILLED, EPOCHS + "slurmstepd: error: Detected 1 oom_kill event in StepId=812.0. Some of the step tasks have been OOM Killed.\n"), (FAILED, CLOSED)]),
    "slurm memory limit": Case(Kind.HOST_OUT_OF_MEMORY, "worker-1", [(KILLED, EPOCHS + "slurmstepd: error: Step 812.0 exceeded memory limit (66412340 > 65536000), being killed\n"), (FAILED, CLOSED)]),
    "pbs memory": Case(Kind.HOST_OUT_OF_MEMORY, "worker-1", [(TERMED, EPOCHS + "=>> PBS: job killed: mem 8912340kb exceeded limit 8388608kb\n"), (FAILED, CLOSED)]),
    "kernel log": Case(Kind.HOST_OUT_OF_MEMORY, "worker-1", [(Exit(137), EPOCHS + "[412345.678901] Memory cgroup out of memory: Killed process 4711 (python3) total-vm:34567890kB, anon-rss:16777216kB, file-rss:0kB\n"), (FAILED, CLOSED)]),
    "ray memory": Case(Kind.HOST_OUT_OF_MEMORY, "worker-0", [(FAILED, loop("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."))]),
    "killed, reported by the shell": Case(Kind.KILLED, "worker-1", [(Exit(137), EPOCHS + "/srv/run.sh: line 12:  4711 Killed                  python3 train.py --epochs 5\n"), (FAILED, CLOSED)]),
    "killed, reported by a Python wrapper": Case(Kind.KILLED, "worker-1", [(Exit(247), EPOCHS), (FAILED, CLOSED)], "SIGKILL"),
    "bus error": Case(Kind.KILLED, "worker-1", [(Exit(135), EPOCHS + "Bus error (core dumped)\n"), (FAILED, CLOSED)], "SIGBUS"),
    "heap": Case(Kind.KILLED, "worker-1", [(ABORTED, EPOCHS + "*** Error in `python3': munmap_chunk(): invalid pointer: 0x0000555560e2b570 ***\n======= Backtrace: =========\n/lib64/libc.so.6(+0x7f574)[0x2aaaaaf6a574]\n"), (FAILED, CLOSED)]),
    # --- packages
    "no scipy on Keras 2": Case(Kind.PACKAGES, "worker-0", [(FAILED, loop("NameError: name 'scipy' is not defined"))], "lacks the package scipy"),
    "no scipy on Keras 3": Case(Kind.PACKAGES, "worker-0", [(FAILED, loop("ImportError: This requires the scipy module. You can install it via `pip install scipy`"))], "lacks the package scipy"),
    "no scipy, reported": Case(Kind.PACKAGES, "worker-0", [(FAILED, loop("ImportError: Image transformations require SciPy. Install SciPy."))], "lacks the package scipy"),
    # --- disks and files
    "checkpoint on a full disk": Case(Kind.DISK_FULL, "worker-0", [(FAILED, EPOCHS + trace(E + "ResourceExhaustedError: {{function_node __wrapped__SaveV2_dtypes_30_device_/job:worker/replica:0/task:0/device:CPU:0}} /ckpt/ckpt-3_temp/part-00000-of-00001.data-00000-of-00001.tempstate812; No space left on device [Op:SaveV2]")), (FAILED, CLOSED)], numbers=(0, 1)),
    "hdf5 on a full disk": Case(Kind.DISK_FULL, "worker-0", [(FAILED, loop("OSError: [Errno 28] Can't synchronously write data (file write failed: time = Mon Jan  1 10:00:00 2024\n, filename = 'm.h5', file descriptor = 7, errno = 28, error message = 'No space left on device', buf = 0x55, total write size = 8, bytes this sub-write = 8, offset = 0)"))]),
    "bucket without the object": Case(Kind.FILE_NOT_FOUND, "worker-0", [(FAILED, loop(E + "NotFoundError: Error executing an HTTP request: HTTP response code 404 with body '{\"error\": {\"code\": 404}}'\n\t when reading metadata of gs://some-bucket/train.tfrecord"))]),
    "pattern without files": Case(Kind.FILE_NOT_FOUND, "worker-0", [(FAILED, loop(E + "InvalidArgumentError: Expected 'tf.Tensor(False, shape=(), dtype=bool)' to be true. Summarized data: b'No files matched pattern: /data/train-*.tfrecord'"))]),
    "checkpoint that only the chief has": Case(Kind.CHECKPOINT_NOT_SHARED, "worker-1", [(FAILED, loop(E + "NotFoundError: Unsuccessful TensorSliceReader constructor: Failed to find any matching files for /tmp/run/ckpt-12")), (FAILED, CLOSED)]),
    "checkpoint on a full disk, in few words": Case(Kind.DISK_FULL, "worker-0", [(FAILED, loop("ResourceExhaustedError: ./model/model-49.tempstate5787507096018461664\n\t [[Node: save/save = SaveSlices[T=[DT_FLOAT, DT_FLOAT]](_recv_save/Const_0)]]"))]),
    "quota": Case(Kind.DISK_FULL, "worker-0", [(FAILED, loop(E + "ResourceExhaustedError: disk quota exceeded [Op:SaveV2]"))]),
    # --- network, names, ports
    "dns of a service": Case(Kind.NAME_RESOLUTION, "worker-0", [(FAILED, loop(E + "UnavailableError: failed to connect to all addresses; last error: UNKNOWN: DNS resolution failed for job-worker-1.default.svc:2222: C-ares status is not ARES_SUCCESS qtype=AAAA name=job-worker-1.default.svc is_balancer=0: Domain name not found\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/GetStatus:"))]),
    "dns of a download": Case(Kind.NAME_RESOLUTION, "worker-0", [(FAILED, loop("urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>"))]),
    "port of an old gRPC": Case(Kind.PORT_IN_USE, "worker-0", [(FAILED, 'E0301 10:00:00.123456789   4711 server_chttp2.cc:40]        {"created":"@1583056800.123","description":"No address added out of total 1 resolved","file":"external/grpc/src/core/ext/transport/chttp2/server/chttp2_server.cc","file_line":394,"referenced_errors":[{"created":"@1583056800.123","description":"Failed to add any wildcard listeners","referenced_errors":[{"created":"@1583056800.123","description":"Unable to configure socket","fd":7,"referenced_errors":[{"description":"Address already in use","errno":98,"os_error":"Address already in use","syscall":"bind"}]}]}]}\n' + loop(E + "UnknownError: Could not start gRPC server"))]),
    "reset by a killed peer": Case(Kind.KILLED, "worker-1", [(FAILED, trace(E + "UnavailableError: Collective ops is aborted by: recvmsg:Connection reset by peer\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/RecvBuf:")), (KILLED, EPOCHS)], numbers=(0, 1)),
    "http proxy": Case(Kind.PEER_UNREACHABLE, "worker-1", [(FAILED, loop(E + "UnavailableError: Trying to connect an http1.x server\nAdditional GRPC error information from remote target /job:worker/replica:0/task:1 while calling /tensorflow.WorkerService/GetStatus:"))]),
    "os error of TensorFlow 1": Case(Kind.PEER_UNREACHABLE, "", [(FAILED, loop(E + "UnavailableError: OS Error")), (FAILED, loop(E + "UnavailableError: OS Error"))]),
    "storage that closes connections is not a peer": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop(E + "UnavailableError: Error executing an HTTP request: libcurl code 35 meaning 'SSL connect error', error details: OpenSSL SSL_connect: Broken pipe")), (FAILED, CLOSED)], numbers=(0, 1)),
    # --- peers
    "barrier of 2.12": Case(Kind.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(STRAGGLERS.format(barrier="WaitForAllTasks"))), (None, "")], numbers=(0, 1)),
    "barrier of 2.19": Case(Kind.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(STRAGGLERS.format(barrier="[Init]Wait_for_all_tasks_to_register"))), (None, "")], numbers=(0, 1)),
    "barrier of 2.11": Case(Kind.PEER_NEVER_STARTED, "worker-1", [(FAILED, loop(E + "DeadlineExceededError: Barrier timed out. Barrier_id: WaitForAllTasks::3409563941431950927. Timed out task names:\n/job:worker/replica:0/task:1\n\nAdditional GRPC error information from remote target /job:worker/replica:0/task:0 while calling /tensorflow.CoordinationService/Barrier:")), (None, "")], numbers=(0, 1)),
    "shutdown barrier": Case(Kind.KILLED, "worker-1", [(KILLED, EPOCHS), (FAILED, EPOCHS + loop(E + "DeadlineExceededError: Shutdown barrier in coordination service has failed:\nDEADLINE_EXCEEDED: Barrier timed out. Id: Shutdown::55. Timed out task names:\n/job:worker/replica:0/task:1\n\nThis suggests that the workers are out of sync."))]),
    "peer that came back": Case(Kind.PEER_UNREACHABLE, "worker-1", [(FAILED, EPOCHS + trace(E + "AbortedError: Graph execution error:\n\n/job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted.\n\nRPC: /tensorflow.CoordinationService/ReportErrorToTask\n\t [[{{node CollectiveReduceV2}}]] [Op:__inference_train_function_1]"))]),
    "index in use twice": Case(Kind.WRONG_TF_CONFIG, "", [(FAILED, loop(E + "AbortedError: /job:worker/replica:0/task:1 unexpectedly tried to connect with a different incarnation. It has likely restarted."))]),
    "peer that came back, to a session": Case(Kind.PEER_UNREACHABLE, "worker-1", [(FAILED, EPOCHS + loop(E + 'AbortedError: RecvTensor expects a different device incarnation: 1234567 vs. 7654321. Your worker job ("/job:worker/replica:0/task:1") was probably restarted. Check your worker job for the reason why it was restarted.'))]),
    "rendezvous": Case(Kind.SCRIPT_EXCEPTION, "worker-1", [(FAILED, loop(E + "CancelledError: RecvAsync is cancelled.\n\t [[{{node cond/else/_1/CollectiveReduceV2}}]] [Op:__inference_step_5]")), (FAILED, loop("ZeroDivisionError: float division by zero"))], "ZeroDivisionError", numbers=(0, 1)),
    "collectives that timed out": Case(Kind.HANG, "", [(FAILED, trace(E + "DeadlineExceededError: Collective ops is aborted by: Collective has timed out during execution."))] * 2),
    "collectives that timed out on all but one": Case(Kind.HANG, "worker-1", [(FAILED, trace(E + "DeadlineExceededError: Collective ops is aborted by: Collective has timed out during execution.")), (None, EPOCHS)], numbers=(0, 1)),
    "parameter server gone": Case(Kind.PEER_UNREACHABLE, "ps-0", [(FAILED, "ERROR:tensorflow:/job:worker/task:0 encountered the following error when processing closure: UnavailableError():Graph execution error:\n" + loop(E + "UnavailableError: failed to connect to all addresses\nAdditional GRPC error information from remote target /job:ps/replica:0/task:0:\n" + ':{"created":"@1663638751.1","description":"Failed to pick subchannel","file":"external/com_github_grpc_grpc/src/core/ext/filters/client_channel/client_channel.cc","file_line":3940,"grpc_status":14}'))]),
    "peer in a long tale of user code": Case(Kind.KILLED, "worker-1", [(FAILED, loop(E + "UnavailableError: in user code:\n\n" + "".join(f"    /srv/lib/layer_{i}.py:{i} call  *\n        return super().call(x)\n" for i in range(90)) + "\n    UnavailableError: Collective ops is aborted by: Socket closed\n    The error could be from a previous operation. Restart your program to reset. [Op:CollectiveReduceV2]\n")), (KILLED, EPOCHS)], numbers=(0, 1)),
    # --- NCCL
    "nccl": Case(Kind.NCCL, "worker-0", [(FAILED, "node-a:293:765 [0] NCCL WARN Net : Call to connect to 10.0.0.3<40001> failed with Connection refused\n2023-10-26 12:12:07.399692: W tensorflow/core/framework/op_kernel.cc:1780] OP_REQUIRES failed at nccl_ops.cc:104 : INTERNAL: unhandled system error\n" + trace(E + "InternalError: Graph execution error:\n\nDetected at node 'NcclAllReduce' defined at (most recent call last):\n    File \"/srv/app/train.py\", line 91, in <module>\n      main()\nNode: 'NcclAllReduce'\nunhandled system error\n\t [[{{node NcclAllReduce}}]] [Op:__inference_train_function_1]"))]),
    "nccl whose peer ended": Case(Kind.SCRIPT_EXCEPTION, "worker-1", [(FAILED, trace(E + "InternalError: Collective ops is aborted by: NCCL: remote process exited or there was a network error. Set NCCL_DEBUG=WARN for detail.")), (FAILED, loop("KeyError: 'label'"))], "KeyError", numbers=(0, 1)),
    "nccl whose peer ended for an unknown reason": Case(Kind.NCCL, "", [(FAILED, trace(E + "InternalError: Collective ops is aborted by: NCCL: remote process exited or there was a network error. Set NCCL_DEBUG=WARN for detail."))] * 2),
    "nccl without shared memory": Case(Kind.NCCL, "worker-0", [(FAILED, "node-a:293:765 [0] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device\nnode-a:293:765 [0] NCCL WARN Error while creating shared memory segment /dev/shm/nccl-cvnBpe (size 9637888)\n" + loop(E + "InternalError: NCCL: unhandled system error. Set NCCL_DEBUG=WARN for detail."))]),
    # --- ends from outside
    "slurm preemption": Case(Kind.PREEMPTED, "worker-0", [(TERMED, EPOCHS + "slurmstepd: error: *** STEP 812.0 ON node17 CANCELLED AT 2024-03-01T10:00:00 DUE TO PREEMPTION ***\n")]),
    "slurm time limit": Case(Kind.DEADLINE, "worker-0", [(TERMED, EPOCHS + "slurmstepd: error: *** JOB 812 ON node17 CANCELLED AT 2024-03-01T10:00:00 DUE TO TIME LIMIT ***\n")]),
    "pbs time limit": Case(Kind.DEADLINE, "worker-0", [(Exit(271), EPOCHS + "=>> PBS: job killed: walltime 3625 exceeded limit 3600\n")]),
    "preemption handler": Case(Kind.PREEMPTED, "worker-0", [(Exit(42), EPOCHS + "INFO:tensorflow:PreemptionCheckpointHandler: checkpoint saved, exiting after a termination notice.\n")]),
    # --- the script
    "behind a progress bar": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, " 63%|██████▎   | 32547/51360 [21:52:50<12:38:51,  2.42s/it, avr_loss=0.0996]" + loop("KeyError: 'lr'"))], "KeyError: 'lr' at loop.py:31 in run"),
    "keras 3 arguments": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, trace("ValueError: Exception encountered when calling Sequential.call().\n\n\x1b[1mInput 0 of layer \"dense\" is incompatible with the layer: expected axis -1 of input shape to have value 784, but received input with shape (64, 28)\x1b[0m\n\nArguments received by Sequential.call():\n  • inputs=tf.Tensor(shape=(64, 28), dtype=float32)\n  • training=True"))], "expected axis -1"),
    "note on an exception": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop("ValueError: bad row\nwhile reading shard 3\n"))]),
    "missing attribute": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, loop("AttributeError: module 'tensorflow' has no attribute 'Session'"))]),
    "usage": Case(Kind.UNKNOWN, "worker-0", [(Exit(1), "FATAL Flags parsing error: Unknown command line flag 'epoch'. Did you mean: epochs ?\nPass --helpshort or --helpfull to see help on flags.\n")]),
    "rich traceback": Case(Kind.SCRIPT_EXCEPTION, "worker-0", [(FAILED, "╭──────────────── Traceback (most recent call last) ────────────────╮\n│ /srv/app/train.py:12 in main                                     │\n│                                                                  │\n│    9 def main():                                                 │\n│ ❱ 12     raise ValueError(\"no such split\")                       │\n╰──────────────────────────────────────────────────────────────────╯\nValueError: no such split\n")], "no such split"),
}  # fmt: skip


def evidence(case: Case) -> list[TaskEvidence]:
    numbers = case.numbers if len(case.tasks) > 1 else (0,)
    return [
        TaskEvidence(
            f"worker-{number}",
            f"10.0.0.{number + 2}",
            ended,
            100.0 + place if ended else None,
            log_tail=log.encode(),
        )
        for place, (number, (ended, log)) in enumerate(zip(numbers, case.tasks, strict=True))
    ]


@pytest.mark.parametrize("name", CASES)
def test_each_text_has_its_class(name: str) -> None:
    case = CASES[name]
    verdict = diagnose(evidence(case), Outcome.FAILED, "")
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (case.kind, case.task), verdict.message
    assert case.text in verdict.message
    assert diagnose(evidence(case), Outcome.SUCCEEDED, "") is None


# A log line, with its number, as launchers, container engines, and clouds print it.
WRAPPINGS = {
    "ray": "\x1b[36m(BaseWorkerMixin pid=720, ip=172.31.79.57)\x1b[0m <line>",
    "mpi": "[1,0]<stderr>:<line>",
    "timestamp": "2023/10/26 12:<minute>:<second> <line>",
    "journal": "Oct 26 12:<minute>:<second> node-a python3[4711]: <line>",
    "compose": "worker-1  | <line>",
    "rank": "[rank0]: <line>",
    "cri": "2024-03-01T10:<minute>:<second>.000000123Z stderr F <line>",
    "docker": '{"log":<json>,"stream":"stderr","time":"2024-03-01T10:<minute>:<second>.000000123Z"}',
    "cloud": '{"severity": "ERROR", "message": <json>, "timestamp": "<second>"}',
    "windows": "<line>\r",
    "colour": "\x1b[31m<line>\x1b[0m",
}


def wrapped(wrapping: str, line: str, number: int) -> str:
    parts = {
        "minute": f"{number // 60 % 60:02}",
        "second": f"{number % 60:02}",
        "line": line,
        "json": json.dumps(line + "\n"),
    }
    return re.sub(r"<(minute|second|line|json)>", lambda item: parts[item.group(1)], WRAPPINGS[wrapping])


# Each case with every third format, each format with every third case.
@pytest.mark.parametrize(
    ("name", "wrapping"),
    [(name, wrapping) for i, name in enumerate(CASES) for j, wrapping in enumerate(WRAPPINGS) if (i + j) % 3 == 0],
)
def test_prefixes_of_launchers_do_not_change_the_verdict(name: str, wrapping: str) -> None:
    """A few lines without a known format keep their prefix."""
    case = CASES[name]
    result = []
    for item in evidence(case):
        lines = item.log_tail.decode().splitlines()
        text = "".join(wrapped(wrapping, line, number) + "\n" for number, line in enumerate(lines))
        result.append(replace(item, log_tail=text.encode()))
    verdict = diagnose(result, Outcome.FAILED, "")
    assert verdict is not None
    if verdict.kind is not Kind.UNKNOWN or any("Traceback (most recent call last):" in log for _, log in case.tasks):
        assert (verdict.kind, verdict.task) == (case.kind, case.task), verdict.message


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        (1, "this worker has no data", Kind.SCRIPT_EXCEPTION),
        (1, "need at least 4 workers", Kind.SCRIPT_EXCEPTION),
        (1, "The data set is empty: /data/part-1", Kind.SCRIPT_EXCEPTION),
        (1, "learning_rate must be positive", Kind.SCRIPT_EXCEPTION),
        (1, "model saved to /data/model", Kind.UNKNOWN),
        (1, "step 10 loss 1.6963", Kind.UNKNOWN),
        (3, "this worker has no data", Kind.UNKNOWN),
    ],
)
def test_the_last_sentence_of_a_program_that_exits_with_code_1_is_the_cause(code: int, line: str, kind: Kind) -> None:
    tasks = [TaskEvidence("worker-0", exit=Exit(code), exited_at=1.7e9, log_tail=f"Epoch 1/2\n{line}\n".encode())]
    verdict = diagnose(tasks, Outcome.FAILED, "worker-0")
    assert verdict is not None
    assert verdict.kind is kind
    assert (f"exited with code 1: {line}" in verdict.message) == (kind is Kind.SCRIPT_EXCEPTION)
