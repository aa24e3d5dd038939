"""The words of verdicts."""

from __future__ import annotations

from typing import NamedTuple

from train.diagnosis.verdict import Cause
from train.script.keras import KERAS_3_HINT
from train.script.requirements import FILES


class Wording(NamedTuple):
    """The words for a cause; a rule may replace them."""

    clause: str  # after the name of the task
    hint: str = ""  # what to change, one sentence
    shared: str = ""  # of all tasks together


WORDING = {
    Cause.SCRIPT_EXCEPTION: Wording("raised an exception", "correct the script where the traceback points"),
    Cause.HOST_OUT_OF_MEMORY: Wording("ran out of host memory",
        "use a smaller batch, cache or shuffle buffer, or hosts with more memory"),
    Cause.GPU_OUT_OF_MEMORY: Wording("ran out of GPU memory",
        "use a smaller batch per worker, or GPUs with more memory; nvidia-smi on the host lists "
        "other processes that use the GPU"),
    Cause.GPU_FAILED: Wording("failed in its GPU, the driver, or the CUDA libraries",
        "run nvidia-smi on the host: if it fails or lists an error, repair the driver or replace the "
        "host; else install the CUDA version that this TensorFlow needs (pip install 'tensorflow[and-cuda]')"),
    Cause.PACKAGES: Wording("has packages that do not work together",
        f"install versions that work together on all hosts, for example by naming them in {FILES}"),
    Cause.PERMISSION: Wording("was denied access",
        "give the job's account access to what the message names, or let the script write below its "
        "working directory"),
    Cause.PORT_IN_USE: Wording("could not listen: its port was in use",
        "list the process that uses the port with ss -ltnp on the host; stop it or use another port"),
    Cause.PEER_UNREACHABLE: Wording("could not be reached by its peers",
        "check that the host is up, and that its firewall accepts all TCP ports from the other "
        "hosts"),
    Cause.PEER_NEVER_STARTED: Wording("never joined the others",
        "read its log, and check that its firewall accepts the other hosts on its port"),
    Cause.SERVICE_UNREACHABLE: Wording("could not reach a service that is not a task of this job",
        "check that the service runs at this address and accepts connections from the hosts"),
    Cause.WRONG_TF_CONFIG: Wording("has a TF_CONFIG that does not fit the cluster",
        "give every task the same cluster in TF_CONFIG, in the same order, and its own index; "
        "fleet sets it, so the script need not",
        shared="the tasks do not agree on the cluster: TF_CONFIG differs between them, or an index "
        "is in use twice"),
    Cause.VERSION_MISMATCH: Wording("runs another version than its peers",
        "install the same TensorFlow and Keras on all hosts, give TF_USE_LEGACY_KERAS the same "
        "value on all, and start all tasks with the same files and the same checkpoint",
        shared="the tasks run different programs or different versions of TensorFlow or Keras"),
    Cause.MODELS_DIFFER: Wording("has another model than its peers",
        "build the same model in every task: from the same files, and with sizes (vocabulary, "
        "classes, inputs) that do not depend on the task's own part of the data",
        shared="the models of the tasks differ"),
    Cause.DATA_RAN_OUT: Wording("ran out of data",
        "give every worker the same number of batches: repeat() the data set and set steps_per_epoch"),
    Cause.DATA_CANNOT_BE_SHARDED: Wording("has a data set that cannot be divided among the workers",
        "set the data set's option experimental_distribute.auto_shard_policy to "
        "tf.data.experimental.AutoShardPolicy.DATA, or give it at least as many files as there are workers"),
    Cause.FILE_NOT_FOUND: Wording("did not find a file",
        "put the file on every host at that path, or into the script's directory: it is uploaded"),
    Cause.SAVE_CONFLICT: Wording("could not save: another process changed the same files at the same time",
        "let each task save to a directory of its own (FLEET_MODEL_DIR), or only the chief to a "
        "shared one"),
    Cause.CHECKPOINT_NOT_SHARED: Wording("does not have the checkpoint that the others have",
        "keep checkpoints in FLEET_CHECKPOINT_DIR or on storage that all hosts share, "
        "so that all tasks resume from the same one",
        shared="the tasks resumed from different checkpoints"),
    Cause.NCCL: Wording("failed in NCCL",
        "run the job with -e NCCL_DEBUG=INFO to see the reason; open all TCP ports between the hosts, "
        "and name their network interface in NCCL_SOCKET_IFNAME"),
    Cause.NAME_RESOLUTION: Wording("could not resolve a host's name",
        "use addresses in place of names, or make the name known on every host"),
    Cause.DOWNLOAD: Wording("could not download a file",
        "download the file once on this computer and send it to the hosts: all tasks need the same one"),
    Cause.DISK_FULL: Wording("ran out of disk space", "free space on the host, or use hosts with larger disks"),
    Cause.PREEMPTED: Wording("was preempted",
        "fleet up replaces the host; --preemptions N lets a job continue after N losses"),
    Cause.KILLED: Wording("was killed", "the kernel log of the host (dmesg -T) may have the reason"),
    Cause.HANG: Wording("made no progress",
        "read in the logs what each task was doing; --on-hang restart restarts the tasks if that helps"),
    Cause.DEADLINE: Wording("did not end in time",
        "give the job more time with --timeout, or let it do less; from a checkpoint it continues"),
    Cause.LIFETIME: Wording("was ended with its hosts",
        "fleet up starts the hosts again, and fleet train with --resume continues from the newest "
        "checkpoint; fleet extend in time lets a job continue"),
    Cause.KERAS_3: Wording(
        "failed on Keras 3, which does not support this with several workers or names it differently", KERAS_3_HINT),
    Cause.STOPPED_EARLY: Wording("exited with code 0 while the others were still training",
        "let every worker take the same number of steps"),
    Cause.UNKNOWN: Wording("failed"),
}  # fmt: skip

SERVER_HINT = "open the URL on this computer, and correct it"
PUSHED_HINT = (
    "download the file once on this computer, send it to the hosts, and let the script read it there instead of "
    "downloading it: all tasks need the same one"
)
CACHE_HINT = (
    "run the script's call once on this computer, and send what it downloads, which all tasks need: "
    "fleet push --to {parent} ~/{cache}"
)
NAME_HINT = (
    "the name is not that of a task: correct it, or give the hosts access to it; `fleet push` sends files that they "
    "cannot download"
)

# For exceptions that may not be a fault of the script.
PACKAGE_HINT = (
    "compare the version of the package that is installed on the hosts with the one that the script was written for"
)
HOST_HINT = "compare the message with the host's files, packages and services: the fault may be outside the script"
TASK_PORT_HINT = (
    "use the TF_CONFIG that fleet sets, and do not set it in the script; a server of the script's own needs a free "
    "port on every host"
)
RESOLVER_HINT = (
    "the cluster resolver of the script does not describe this job: use "
    "tf.distribute.cluster_resolver.TFConfigClusterResolver(), with the TF_CONFIG that fleet sets"
)
LAUNCHER_HINT = (
    "another launcher (mpirun, srun, torchrun) sets this variable; in a task of fleet, use FLEET_RANK, "
    "FLEET_NUM_TASKS, and FLEET_ADDRESSES"
)
ARGUMENTS_HINT = "pass the arguments of the script after --: "
PLACEHOLDERS_HINT = "fleet replaces words such as {rank} on each host; --dry-run shows the values"
HOSTED_HINT = "{root} belongs to a notebook service: put {name} next to the script, and remove {root} from its path"
EXIT_HINT = "the program ended itself with this message: provide what it requires"
SERVERS_HINT = "start the job with the roles that ParameterServerStrategy needs: fleet train with --chief and --ps 1"
ILLEGAL_HINT = (
    "the CPU lacks instructions (for example AVX) that TensorFlow or another package was compiled for: use hosts "
    "with a newer CPU, or a build for this one"
)
CRASH_HINT = "run the script with -e PYTHONFAULTHANDLER=1 to see which call crashes"
INTERRUPT_HINT = "find out who sent the signal, or where the script raises KeyboardInterrupt"
JOIN_HINT = "let the parameter server wait in Server.join() until fleet stops it"
RESTARTED_HINT = "find out in its log why it ended"
