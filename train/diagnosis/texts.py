"""Clauses and hints of the verdicts, one of each for every kind; a rule may replace them."""

from __future__ import annotations

from train.diagnosis.verdict import Kind
from train.script.keras import KERAS_3_HINT
from train.script.requirements import FILES

# After the name of the task.
CLAUSES = {
    Kind.SCRIPT_EXCEPTION: "raised an exception",
    Kind.HOST_OUT_OF_MEMORY: "ran out of host memory",
    Kind.GPU_OUT_OF_MEMORY: "ran out of GPU memory",
    Kind.GPU_FAILED: "failed in its GPU, the driver, or the CUDA libraries",
    Kind.PACKAGES: "has packages that do not work together",
    Kind.PERMISSION: "was denied access",
    Kind.PORT_IN_USE: "could not listen: its port was in use",
    Kind.PEER_UNREACHABLE: "could not be reached by its peers",
    Kind.PEER_NEVER_STARTED: "never joined the others",
    Kind.SERVICE_UNREACHABLE: "could not reach a service that is not a task of this job",
    Kind.WRONG_TF_CONFIG: "has a TF_CONFIG that does not fit the cluster",
    Kind.VERSION_MISMATCH: "runs another version than its peers",
    Kind.MODELS_DIFFER: "has another model than its peers",
    Kind.DATA_RAN_OUT: "ran out of data",
    Kind.DATA_CANNOT_BE_SHARDED: "has a data set that cannot be divided among the workers",
    Kind.FILE_NOT_FOUND: "did not find a file",
    Kind.SAVE_CONFLICT: "could not save: another process changed the same files at the same time",
    Kind.CHECKPOINT_NOT_SHARED: "does not have the checkpoint that the others have",
    Kind.NCCL: "failed in NCCL",
    Kind.NAME_RESOLUTION: "could not resolve a host's name",
    Kind.DOWNLOAD: "could not download a file",
    Kind.DISK_FULL: "ran out of disk space",
    Kind.PREEMPTED: "was preempted",
    Kind.KILLED: "was killed",
    Kind.HANG: "made no progress",
    Kind.DEADLINE: "did not end in time",
    Kind.LIFETIME: "was ended with its hosts",
    Kind.KERAS_3: "failed on Keras 3, which does not support this with several workers or names it differently",
    Kind.STOPPED_EARLY: "exited with code 0 while the others were still training",
    Kind.UNKNOWN: "failed",
}

# Of all tasks together.
SHARED_CLAUSES = {
    Kind.VERSION_MISMATCH: "the tasks run different programs or different versions of TensorFlow or Keras",
    Kind.MODELS_DIFFER: "the models of the tasks differ",
    Kind.WRONG_TF_CONFIG: "the tasks do not agree on the cluster: TF_CONFIG differs between them, or an index "
    "is in use twice",
    Kind.CHECKPOINT_NOT_SHARED: "the tasks resumed from different checkpoints",
}

HINTS = {
    Kind.SCRIPT_EXCEPTION: "correct the script where the traceback points",
    Kind.HOST_OUT_OF_MEMORY: "use a smaller batch, cache or shuffle buffer, or hosts with more memory",
    Kind.GPU_OUT_OF_MEMORY: "use a smaller batch per worker, or GPUs with more memory; nvidia-smi on the host lists "
    "other processes that use the GPU",
    Kind.GPU_FAILED: "run nvidia-smi on the host: if it fails or lists an error, repair the driver or replace the "
    "host; else install the CUDA version that this TensorFlow needs (pip install 'tensorflow[and-cuda]')",
    Kind.PACKAGES: f"install versions that work together on all hosts, for example by naming them in {FILES}",
    Kind.PERMISSION: "give the job's account access to what the message names, or let the script write below its "
    "working directory",
    Kind.PORT_IN_USE: "list the process that uses the port with ss -ltnp on the host; stop it or use another port",
    Kind.PEER_UNREACHABLE: "check that the host is up, and that its firewall accepts all TCP ports from the other "
    "hosts",
    Kind.PEER_NEVER_STARTED: "read its log, and check that its firewall accepts the other hosts on its port",
    Kind.SERVICE_UNREACHABLE: "check that the service runs at this address and accepts connections from the hosts",
    Kind.WRONG_TF_CONFIG: "give every task the same cluster in TF_CONFIG, in the same order, and its own index; "
    "fleet sets it, so the script need not",
    Kind.VERSION_MISMATCH: "install the same TensorFlow and Keras on all hosts, give TF_USE_LEGACY_KERAS the same "
    "value on all, and start all tasks with the same files and the same checkpoint",
    Kind.MODELS_DIFFER: "build the same model in every task: from the same files, and with sizes (vocabulary, "
    "classes, inputs) that do not depend on the task's own part of the data",
    Kind.DATA_RAN_OUT: "give every worker the same number of batches: repeat() the data set and set steps_per_epoch",
    Kind.DATA_CANNOT_BE_SHARDED: "set the data set's option experimental_distribute.auto_shard_policy to "
    "tf.data.experimental.AutoShardPolicy.DATA, or give it at least as many files as there are workers",
    Kind.FILE_NOT_FOUND: "put the file on every host at that path, or into the script's directory, which is uploaded",
    Kind.SAVE_CONFLICT: "let each task save to a directory of its own (FLEET_MODEL_DIR), or only the chief to a "
    "shared one",
    Kind.CHECKPOINT_NOT_SHARED: "keep checkpoints in FLEET_CHECKPOINT_DIR or on storage that all hosts share, "
    "so that all tasks resume from the same one",
    Kind.NCCL: "run the job with -e NCCL_DEBUG=INFO to see the reason; open all TCP ports between the hosts, "
    "and name their network interface in NCCL_SOCKET_IFNAME",
    Kind.NAME_RESOLUTION: "use addresses in place of names, or make the name known on every host",
    Kind.DOWNLOAD: "download the file once on this computer and send it to the hosts: all tasks need the same one",
    Kind.DISK_FULL: "free space on the host, or use hosts with larger disks",
    Kind.PREEMPTED: "fleet up replaces the host; --preemptions N lets a job continue after N losses",
    Kind.KILLED: "the kernel log of the host (dmesg -T) may have the reason",
    Kind.HANG: "read in the logs what each task was doing; --on-hang restart restarts the tasks if that helps",
    Kind.DEADLINE: "give the job more time with --timeout, or let it do less; from a checkpoint it continues",
    Kind.LIFETIME: "fleet up starts the hosts again, and fleet train with --resume continues from the newest "
    "checkpoint; fleet extend in time lets a job continue",
    Kind.KERAS_3: KERAS_3_HINT,
    Kind.STOPPED_EARLY: "let every worker take the same number of steps",
    Kind.UNKNOWN: "",
}

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
