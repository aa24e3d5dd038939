"""Hints of verdicts that the diagnosis chooses itself; those of rules are in rules.toml."""

from __future__ import annotations

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
