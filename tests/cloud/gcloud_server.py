"""Fork gcloud commands from a process that has imported gcloud, which saves most of the CPU time of a command.

The launcher of gcloud runs this file instead of gcloud.py, which is the first argument. Each line of the standard
input is a request; the answer is the exit status. A forked command does not cover the launcher and the imports.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Any

MODULES = (
    "proto",
    "googlecloudsdk.gcloud_main",
    "googlecloudsdk.api_lib.compute.base_classes",
    "googlecloudsdk.api_lib.compute.instances.create.utils",
    "googlecloudsdk.api_lib.compute.transforms",
    "googlecloudsdk.api_lib.container.api_adapter",
    "googlecloudsdk.api_lib.container.util",
    "googlecloudsdk.command_lib.compute.instances.flags",
    "googlecloudsdk.core.credentials.google_auth_credentials",
    "googlecloudsdk.core.credentials.requests",
    "googlecloudsdk.core.credentials.transports",
    "googlecloudsdk.core.updater.update_manager",
    "googlecloudsdk.generated_clients.apis.compute.alpha.compute_alpha_messages",
    "googlecloudsdk.generated_clients.apis.compute.beta.compute_beta_messages",
    "googlecloudsdk.generated_clients.apis.compute.v1.compute_v1_client",
    "googlecloudsdk.generated_clients.apis.compute.v1.resources",
    "googlecloudsdk.generated_clients.apis.iam.v1.iam_v1_messages",
)
"""Modules that the commands of the tests import; other versions of gcloud may not have all of them."""
DEADLINE_S = 60


def main() -> None:
    launcher = sys.argv[1]
    sys.path.insert(0, os.path.dirname(launcher))  # noqa: PTH120 - as gcloud.py does
    gcloud = runpy.run_path(launcher)["main"]
    for name in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.disable()  # in short commands, to visit their objects takes longer than to leave garbage
    for line in sys.stdin:
        request = json.loads(line)
        if (pid := os.fork()) == 0:
            run(gcloud, [launcher, *request["arguments"]], request["environment"], request["files"])
        sys.stdout.write(f"{os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}\n")
        sys.stdout.flush()


def run(gcloud: Any, arguments: list[str], environment: dict[str, str], files: list[str]) -> None:
    """Run a command in this process, with these standard output and error files."""
    code = 1
    signal.alarm(DEADLINE_S)
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for number, descriptor in enumerate((null, *(os.open(file, os.O_WRONLY | os.O_CREAT) for file in files))):
            os.dup2(descriptor, number)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = arguments
        gcloud()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
