# ruff: noqa: E501 - one row a line
"""Real logs, each from a run of two or three workers with a deliberate failure.

Paths and addresses in them were replaced and startup lines of TensorFlow were removed; every other byte is original.
Logs in `v215-*` are from TensorFlow 2.15.1, all others from 2.21.0; in `mixed` worker 0 has the older version, worker 1
the newer. Directories with a `job.json` are complete jobs of `fleet train`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from train.agent.protocol.records import NO_REASON, Exit, HangInspection, Outcome, Reason, ReasonKind
from train.diagnosis.cause import diagnose
from train.diagnosis.verdict import Cause, TaskEvidence

LOGS = Path(__file__).with_name("logs")

# Case: task, kind, part of the message, place of the exception, tasks with consequential errors.
EXPECTED: dict[str, tuple[str, Cause, str, str, str]] = {
    "bad-alloc": ("worker-1", Cause.HOST_OUT_OF_MEMORY, "std::bad_alloc", "", "worker-0"),
    "chain": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ConfigurationError: no learning rate for step 10 at task.py:59 in inner", "task.py:59 in inner", "worker-0"),
    "chain-from": ("worker-1", Cause.SCRIPT_EXCEPTION, "ConfigurationError: labels.json is broken", "task.py:90 in fault", "worker-0"),
    "ckpt-disk": ("worker-1", Cause.DISK_FULL, "No space left on device", "task.py:94 in fault", "worker-0"),
    "ckpt-missing": ("worker-1", Cause.CHECKPOINT_NOT_SHARED, "/data/ckpt-3", "task.py:95 in fault", "worker-0"),
    "ctl-handled": ("worker-1", Cause.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "duplicate": ("worker-0", Cause.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "endless": ("worker-0", Cause.DATA_RAN_OUT, "End of sequence; so did worker-1", "task.py:107 in <module>", ""),
    "exception": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number: nan at step 10", "task.py:67 in fault", "worker-0"),
    "exception0": ("worker-0", Cause.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-1"),
    "exit-text": ("worker-1", Cause.SCRIPT_EXCEPTION, "exited with code 1: no GPU on this host, giving up", "", "worker-0"),
    "exit0": ("worker-1", Cause.STOPPED_EARLY, "exited with code 0 while the others were still training", "", "worker-0"),
    "exit3": ("worker-1", Cause.UNKNOWN, "exited with code 3", "", "worker-0"),
    "faulthandler": ("worker-1", Cause.KILLED, "crashed in native code (SIGSEGV)", "", "worker-0"),
    "flag": ("", Cause.VERSION_MISMATCH, "different versions of TensorFlow or Keras", "keras_task.py:21 in <module>", ""),
    "g-exception": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-0"),
    "g-sigkill": ("worker-1", Cause.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "gen": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised KeyError: 'picture_13.png'", "task.py:32 in g", "worker-0"),
    "group": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ValueError: invalid literal for int()", "task.py:103 in fault", "worker-0"),
    "import": ("worker-1", Cause.SCRIPT_EXCEPTION, "ModuleNotFoundError: No module named 'tensorflow_addons_x'", "task.py:10 in early", ""),
    "index-big": ("worker-1", Cause.WRONG_TF_CONFIG, "`task_id` 5 exceeds the maximum id", "task.py:17 in <module>", ""),
    "k-callback": ("worker-1", Cause.SCRIPT_EXCEPTION, "FloatingPointError: loss went up", "keras_task.py:27 in on_epoch_end", "worker-0"),
    "k-die": ("worker-0", Cause.UNKNOWN, "exited with code 7", "", "worker-1"),
    "k-dist": ("worker-0", Cause.SCRIPT_EXCEPTION, "you must specify the number of steps to run", "keras_task.py:35 in <module>", ""),
    "k-file": ("worker-0", Cause.DATA_CANNOT_BE_SHARDED, "the dataset only has 1 file(s)", "keras_task.py:36 in <module>", "worker-1"),
    "k-names": ("worker-0", Cause.KERAS_3, "has no attribute 'reset_states'", "keras_task.py:32 in <module>", ""),
    "k-unshared": ("", Cause.CHECKPOINT_NOT_SHARED, "resumed from different checkpoints", "keras_task.py:36 in <module>", "worker-0"),
    "k3": ("worker-1", Cause.KERAS_3, "Attempt to convert a value (PerReplica:", "keras_task.py:36 in <module>", ""),
    "label": ("worker-1", Cause.SCRIPT_EXCEPTION, "InvalidArgumentError: Received a label value of 7", "task.py:107 in <module>", "worker-0"),
    "length": ("", Cause.WRONG_TF_CONFIG, "do not agree on the cluster", "task.py:20 in <module>", "worker-2"),
    "memory": ("worker-1", Cause.HOST_OUT_OF_MEMORY, "Unable to allocate 32.0 GiB", "task.py:82 in fault", "worker-0"),
    "multiline": ("worker-1", Cause.SCRIPT_EXCEPTION, "RuntimeError: bad batch: shape (4, 8)", "task.py:68 in fault", "worker-0"),
    "name": ("worker-0", Cause.NAME_RESOLUTION, "worker-b.internal.invalid", "task.py:107 in <module>", "worker-1"),
    "net-cut0": ("worker-0", Cause.PEER_UNREACHABLE, "stopped answering worker-1 and worker-2", "", "worker-1 worker-2"),
    "net-cut2": ("worker-2", Cause.PEER_UNREACHABLE, "worker-0 lost worker-2", "", "worker-0 worker-1"),
    "net-swapped": ("worker-0", Cause.PEER_UNREACHABLE, "could not reach its own server", "", ""),
    "net-swapped3": ("", Cause.WRONG_TF_CONFIG, "unknown device", "task.py:107 in <module>", "worker-1"),
    "never": ("worker-1", Cause.PEER_NEVER_STARTED, "worker-0 waited for worker-1, which never joined", "", ""),
    "never0": ("worker-0", Cause.PEER_NEVER_STARTED, "worker-1 waited for worker-0, which never joined", "", ""),
    "npfile": ("worker-1", Cause.FILE_NOT_FOUND, "No such file or directory: 'data/train.npz'", "task.py:79 in fault", "worker-0"),
    "port-busy": ("worker-1", Cause.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "segv": ("worker-1", Cause.KILLED, "crashed in native code (SIGSEGV)", "", "worker-0"),
    "sigkill": ("worker-1", Cause.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "sigkill0": ("worker-0", Cause.KILLED, "was killed by SIGKILL", "", "worker-1"),
    "sigstop": ("worker-1", Cause.PEER_UNREACHABLE, "worker-0 lost worker-1", "", "worker-0"),
    "sigstop0": ("worker-0", Cause.PEER_UNREACHABLE, "stopped answering worker-1", "", "worker-1"),
    "sigterm-default": ("worker-1", Cause.KILLED, "was killed by SIGTERM", "", "worker-0"),
    "syntax": ("worker-1", Cause.SCRIPT_EXCEPTION, "SyntaxError: invalid syntax", "model.py:1", ""),
    "tf-oom": ("worker-1", Cause.HOST_OUT_OF_MEMORY, "OOM when allocating tensor", "task.py:84 in fault", "worker-0"),
    "usage": ("worker-1", Cause.UNKNOWN, "argument --epochs: invalid int value: 'ten'", "", ""),
    "mixed": ("", Cause.VERSION_MISMATCH, "Collective instance 101 expected type 1 and data_type 9", "keras_task.py:22 in <module>", "worker-0"),
    "v215-exception": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ValueError: loss is not a number", "task.py:67 in fault", "worker-0"),
    "v215-exit0": ("worker-1", Cause.STOPPED_EARLY, "exited with code 0", "", "worker-0"),
    "v215-k-file": ("worker-0", Cause.DATA_CANNOT_BE_SHARDED, "FILE based sharding", "keras_task.py:36 in <module>", "worker-1"),
    "v215-never": ("worker-1", Cause.PEER_NEVER_STARTED, "worker-0 waited for worker-1, which never joined", "", ""),
    "v215-port": ("worker-1", Cause.PORT_IN_USE, "Could not start gRPC server", "task.py:17 in <module>", ""),
    "v215-sigkill": ("worker-1", Cause.KILLED, "was killed by SIGKILL", "", "worker-0"),
    "v215-sigstop": ("worker-1", Cause.PEER_UNREACHABLE, "worker-0 lost worker-1", "", "worker-0"),
    "v215-sigstop0": ("worker-0", Cause.PEER_UNREACHABLE, "stopped answering worker-1", "", "worker-1"),
}  # fmt: skip
# Jobs that `fleet train` ran: task, kind, part of the message, place of the exception, part of the hint.
JOBS: dict[str, tuple[str, Cause, str, str, str]] = {
    "arguments-absl": ("worker-0", Cause.SCRIPT_EXCEPTION, "exited with code 1: flag --task_index=None: Flag --task_index must have a value", "", "fleet train SCRIPT -- --task_index {index} --job_name {type}"),
    "arguments-argparse": ("worker-0", Cause.SCRIPT_EXCEPTION, "exited with code 2: task.py: error: the following arguments are required: --epochs, --rank", "", "fleet train SCRIPT -- --epochs EPOCHS --rank {rank}"),
    "arguments-argv": ("worker-0", Cause.SCRIPT_EXCEPTION, "raised IndexError: list index out of range", "task.py:2 in <module>", "fleet train SCRIPT -- {rank}"),
    "arguments-click": ("worker-0", Cause.SCRIPT_EXCEPTION, "exited with code 2: Error: Missing option '--rank' / '-r'.", "", "fleet train SCRIPT -- --rank {rank}"),
    "assertion": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised AssertionError: total 8.0 at step 4 at task.py:16 in <module>", "task.py:16 in <module>", "correct the script where the traceback points"),
    "bar-killed": ("worker-1", Cause.KILLED, "was killed by SIGKILL", "", "the kernel log of the host"),
    "barrier": ("worker-1", Cause.HANG, "did not come to the barrier 'data-ready', at which worker-0 waited", "", "read in the logs what each task was doing; --on-"),
    "check-numerics": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised InvalidArgumentError: loss is not a number : Tensor had Inf values at task.py:17 in <module>", "task.py:17 in <module>", "correct the script where the traceback points"),
    "crlf": ("worker-1", Cause.FILE_NOT_FOUND, "could not run its program: fleet: cannot run ./run.sh: its lines end with CR LF, as on Windows; Linu", "", "convert the line ends of the file, for example w"),
    "custom-op-abi": ("worker-0", Cause.PACKAGES, "has packages that do not work together: NotFoundError: ./op.so: undefined symbol: TF_ThisSymbolIsOld", "task.py:14 in <module>", "install versions that work together on all hosts"),
    "download": ("worker-0", Cause.DOWNLOAD, "could not download http://data.example.invalid/train.npz: it has no access to the internet (Name or service not known)", "task.py:9 in <module>", "let the script read it there"),
    "download-dataset": ("worker-1", Cause.DOWNLOAD, "could not download https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz: it has no access to the internet", "task.py:4 in <module>", "download the file once on this computer and send it to the hosts"),
    "download-file": ("worker-0", Cause.DOWNLOAD, "could not download https://data.example.invalid/photos.tgz: it has no access to the internet", "task.py:4 in <module>", "all tasks need the same one"),
    "download-race": ("worker-1", Cause.SAVE_CONFLICT, "read an incomplete file that another task was downloading to the same place: BadZipFile", "task.py:10 in <module>", "download the file once before the job"),
    "download-weights": ("worker-1", Cause.DOWNLOAD, "could not download https://storage.googleapis.com/tensorflow/keras-applications/mobilenet_v2/", "task.py:5 in <module>", "all tasks need the same one"),
    "dtype": ("", Cause.VERSION_MISMATCH, "the tasks run different programs or different versions of TensorFlow or Keras (InternalError: Collec", "task.py:18 in <module>", "install the same TensorFlow and Keras on all hos"),
    "empty-logs": ("worker-1", Cause.DATA_RAN_OUT, "ran out of data: ValueError: Unexpected result of `train_function` (Empty logs). This could be due t", "task.py:17 in <module>", "give the data set at least one batch for every w"),
    "extra-layer": ("", Cause.MODELS_DIFFER, "the models of the tasks differ (InvalidArgumentError: Shape mismatch in the collective instance 105.", "task.py:12 in <module>", "build the same model in every task: from the sam"),
    "gather-last-batch": ("", Cause.MODELS_DIFFER, "the tasks gather tensors of different shapes (InvalidArgumentError: Shape mismatch in the collective", "task.py:19 in <module>", "give the tensors the same shape in every task: d"),
    "generator-shape": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised TypeError: `generator` yielded an element of shape (5,) where an element of shape (4,) was ex", "task.py:22 in <module>", "correct the script where the traceback points"),
    "graph-assertion": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised InvalidArgumentError: assertion failed: [label out of range] [Condition x < y did not hold el", "task.py:16 in <module>", "correct the script where the traceback points"),
    "interrupt": ("worker-1", Cause.KILLED, "was interrupted by SIGINT or KeyboardInterrupt at task.py:12 in <module>", "", "find out who sent the signal, or where the scrip"),
    "keras3": ("worker-0", Cause.KERAS_3, "failed on Keras 3, which does not support this with several workers or names it differently: ValueEr", "task.py:15 in <module>", "use Keras 2: import keras from tensorflow (`from"),
    "keyboard": ("worker-0", Cause.SCRIPT_EXCEPTION, "raised EOFError: EOF when reading a line at task.py:9 in <module>", "task.py:9 in <module>", "a task has no keyboard: give the answer as an ar"),
    "library-missing": ("worker-0", Cause.PACKAGES, "lacks a library that a package needs: ImportError: libGLx.so.1: cannot open shared object file: No s", "task.py:12 in <module>", "install the library on all hosts (libGL.so.1: `s"),
    "no-chief": ("", Cause.HANG, "no first step within 30 s: all tasks wait in Server.join for a chief, and there is none", "", "start the job with the roles that ParameterServe"),
    "no-gpu": ("worker-1", Cause.GPU_FAILED, "asks for a GPU that this host or this TensorFlow does not have: InvalidArgumentError: Could not sati", "task.py:11 in <module>", "start the job on hosts with GPUs (fleet up --gpu"),
    "oom-in-step": ("worker-1", Cause.HOST_OUT_OF_MEMORY, "ran out of host memory: ResourceExhaustedError: OOM when allocating tensor with shape[1048576,104857", "task.py:17 in <module>", "use a smaller batch, cache or shuffle buffer, or"),
    "open-files": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised OSError: [Errno 24] Too many open files: '/home/ubuntu/job/task.py' at task.py:12 in <listcom", "task.py:12 in <listcomp>", "raise the limits"),
    "order": ("", Cause.VERSION_MISMATCH, "the tasks run different programs or different versions of TensorFlow or Keras (InternalError: Collec", "task.py:24 in <module>", "install the same TensorFlow and Keras on all hos"),
    "out-of-range": ("worker-1", Cause.DATA_RAN_OUT, "ran out of data: OutOfRangeError: End of sequence", "task.py:22 in <module>", "give every worker the same number of batches: re"),
    "own-port": ("worker-1", Cause.PORT_IN_USE, "could not listen on port 23456, which was in use. fleet gave it port 2222: the script sets TF_CONFIG", "task.py:11 in <module>", "use the TF_CONFIG that fleet sets, and do not se"),
    "own-socket": ("worker-1", Cause.PORT_IN_USE, "could not open a port of the script's own: it was in use: OSError: [Errno 98] Address already in use", "task.py:11 in <module>", "use the TF_CONFIG that fleet sets, and do not se"),
    "permission": ("worker-1", Cause.PERMISSION, "was denied access: PermissionDeniedError: /etc/experiment; Permission denied", "task.py:13 in <module>", "give the job's account access to what the messag"),
    "permission-python": ("worker-0", Cause.PERMISSION, "was denied access: PermissionError: [Errno 13] Permission denied: '/etc/run.log'", "task.py:12 in <module>", "give the job's account access to what the messag"),
    "protobuf": ("worker-1", Cause.PACKAGES, "has packages that do not work together: TypeError: Descriptors cannot be created directly.", "old_pb2.py:3 in <module>", "install versions that work together on all hosts"),
    "ps-frozen": ("ps-0", Cause.STOPPED_EARLY, "exited with code 0 while the others were still training", "", "let the parameter server wait in Server.join() u"),
    "ps-killed": ("ps-0", Cause.KILLED, "was killed by SIGKILL", "", "the kernel log of the host"),
    "ps-raises": ("chief-0", Cause.SCRIPT_EXCEPTION, "raised InvalidArgumentError: assertion failed: [label out of range] [Condition x < y did not hold el", "task.py:29 in <module>", "correct the script where the traceback points"),
    "keras3-legacy": ("worker-1", Cause.KERAS_3, "to configure TensorFlow to use `tf_keras` when accessing `tf.keras`.", "task.py:4 in <module>", "use Keras 2: import keras from tensorflow"),
    "optimizer-scope": ("worker-0", Cause.SCRIPT_EXCEPTION, "must only be passed a variable created in this tf.distribute.Strategy.scope()", "task.py:23 in <module>", "create the model, its optimizer, and its metrics in the same"),
    "ps-ran-out": ("chief-0", Cause.DATA_RAN_OUT, "ran out of data: OutOfRangeError: End of sequence", "task.py:9 in <module>", "repeat() the data set and set steps_per_epoch"),
    "same-h5": ("worker-0", Cause.SAVE_CONFLICT, "unable to lock file", "task.py:13 in <module>", "let each task save to a directory of its own (FLEET_MODEL_DIR)"),
    "slot-variable": ("worker-1", Cause.SCRIPT_EXCEPTION, "Make sure the slot variables are created under the same strategy scope.", "task.py:23 in <module>", "create the model, its optimizer, and its metrics in the same"),
    "py-function": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ValueError: bad row 12 at task.py:11 in read", "task.py:11 in read", "correct the script where the traceback points"),
    "restarted-peer": ("worker-1", Cause.PEER_UNREACHABLE, "worker-0 lost worker-1 (10.0.0.3): it was frozen, cut off from the network, or ended", "", "check that the host is up, and that its firewall"),
    "restore-shape": ("", Cause.MODELS_DIFFER, "the models of the tasks differ (InvalidArgumentError: Shape mismatch in the collective instance 100.", "task.py:12 in <module>", "build the same model in every task: from the sam"),
    "same-checkpoint": ("worker-1", Cause.SAVE_CONFLICT, "could not save: another process changed the same files at the same time: InvalidArgumentError: allow", "task.py:13 in <module>", "let each task save to a directory of its own (FL"),
    "same-directory": ("worker-1", Cause.SAVE_CONFLICT, "could not save: another process changed the same files at the same time: NotFoundError: /tmp/shared-", "task.py:15 in <module>", "let each task save to a directory of its own (FL"),
    "shadow": ("worker-0", Cause.SCRIPT_EXCEPTION, "raised AttributeError: module 'tensorflow' has no attribute 'distribute' at task.py:3 in <module>", "task.py:3 in <module>", "rename the file or directory of the script that"),
    "shape-vocabulary": ("", Cause.MODELS_DIFFER, "the models of the tasks differ (InvalidArgumentError: Shape mismatch in the collective instance 103.", "task.py:11 in <module>", "build the same model in every task: from the sam"),
    "sigill": ("worker-1", Cause.KILLED, "crashed: its CPU does not have an instruction (SIGILL)", "", "the CPU lacks instructions (for example AVX) tha"),
    "steps-differ": ("worker-1", Cause.STOPPED_EARLY, "exited with code 0 while the others were still training", "", "let every worker take the same number of steps"),
    "stop-iteration": ("worker-1", Cause.DATA_RAN_OUT, "ran out of data: StopIteration", "task.py:16 in <module>", "give every worker the same number of batches: re"),
    "sys-exit": ("worker-1", Cause.SCRIPT_EXCEPTION, "exited with code 1: no labels.txt: run prepare.py first", "", "the program ended itself with this message"),
    "tensorboard": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised TBNotInstalledError: TensorBoard is not installed, missing implementation for tf.summary.scal", "task.py:13 in <module>", "list tensorboard in pyproject.toml or requirements.txt next to the"),
    "tf-config-index": ("worker-0", Cause.SCRIPT_EXCEPTION, "raised TypeError: 'str' object cannot be interpreted as an integer at task.py:9 in <module>", "task.py:9 in <module>", "correct the script where the traceback points"),
    "tf-config-type": ("worker-1", Cause.WRONG_TF_CONFIG, "has a TF_CONFIG that does not fit the cluster: ValueError: Unrecognized task_type: master, valid tas", "task.py:11 in <module>", "give every task the same cluster in TF_CONFIG, i"),
    "tf1": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised AttributeError: module 'tensorflow' has no attribute 'app' at task.py:3 in <module>", "task.py:3 in <module>", "the script is written for TensorFlow 1: convert"),
    "tf1-contrib": ("worker-1", Cause.SCRIPT_EXCEPTION, "raised ModuleNotFoundError: No module named 'tensorflow.contrib' at task.py:2 in <module>", "task.py:2 in <module>", "the script is written for TensorFlow 1: convert"),
}  # fmt: skip
# Cases in which all tasks exited with code 0, independent of their logs.
SUCCEEDED = ("k-ranout", "stagger", "thread")


def evidence(case: str) -> list[TaskEvidence]:
    ends = json.loads((LOGS / case / "ends.json").read_text())
    result = []
    for task, end in ends.items():
        log = (LOGS / case / f"{task}.log").read_bytes()
        ended = bool(end["at"])
        result.append(
            TaskEvidence(
                task,
                end.get("address", ""),
                Exit(end["code"], end["signal"]) if ended else None,
                1.7e9 + end["at"],
                NO_REASON,
                end["ours"],
                log,
                log[:16384],
                HangInspection(**{"slot": task, **end["inspection"]}) if "inspection" in end else None,
                end.get("port", 0),
            )
        )
    return result


def how_it_ended(case: str) -> tuple[str, Reason]:
    """Return the task that failed first and the reason, as the agents reported them."""
    file = LOGS / case / "job.json"
    if not file.exists():
        return "", NO_REASON
    job = json.loads(file.read_text())
    return job["first_failed_task"], Reason(job["reason"], ReasonKind(job["reason_kind"]))


def test_every_log_has_its_verdict() -> None:
    assert {*EXPECTED, *JOBS, *SUCCEEDED} == {directory.name for directory in LOGS.iterdir()}


@pytest.mark.parametrize("case", EXPECTED)
def test_each_case_has_its_verdict(case: str) -> None:
    task, kind, text, place, consequences = EXPECTED[case]
    verdict = diagnose(evidence(case), Outcome.FAILED, "")
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (kind, task), verdict.message
    assert text in verdict.message
    assert verdict.traceback == place
    assert verdict.consequences == tuple(consequences.split())
    assert 0 < len(verdict.lines) <= 12
    assert bool(verdict.hint) == (kind is not Cause.UNKNOWN)
    assert not re.search(r"[\x00-\x08\x0a-\x1f]", "".join((verdict.message, *verdict.lines)))


@pytest.mark.parametrize("case", JOBS)
def test_verdict_on_a_job(case: str) -> None:
    task, kind, text, place, hint = JOBS[case]
    verdict = diagnose(evidence(case), Outcome.FAILED, *how_it_ended(case))
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (kind, task), verdict.message
    assert text in verdict.message
    assert verdict.traceback == place
    assert hint in verdict.hint
    assert bool(verdict.hint) == (kind is not Cause.UNKNOWN)


@pytest.mark.parametrize("case", [*EXPECTED, *SUCCEEDED])
def test_success_has_no_cause(case: str) -> None:
    assert diagnose(evidence(case), Outcome.SUCCEEDED, "worker-1") is None


@pytest.mark.parametrize("case", SUCCEEDED)
def test_a_success_that_counts_as_failure_has_an_unknown_cause(case: str) -> None:
    verdict = diagnose(evidence(case), Outcome.FAILED, "")
    assert verdict is not None
    assert verdict.kind is Cause.UNKNOWN


@pytest.mark.parametrize("case", EXPECTED)
def test_windows_line_ends_do_not_change_the_verdict(case: str) -> None:
    changed = [replace(item, log_tail=item.log_tail.replace(b"\n", b"\r\n")) for item in evidence(case)]
    verdict = diagnose(changed, Outcome.FAILED, "")
    assert verdict is not None
    assert (verdict.kind, verdict.task) == (EXPECTED[case][1], EXPECTED[case][0])
