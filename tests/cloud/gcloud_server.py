"""Fork gcloud commands from a process that has imported gcloud, which saves most of the CPU time of a command.

The launcher of gcloud runs this file instead of gcloud.py, which is the first argument. Each line of the standard
input is a request; the answer is the exit status.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys
from typing import Any

MODULES = (
    "googlecloudsdk.gcloud_main",
    "googlecloudsdk.api_lib.compute.base_classes",
    "googlecloudsdk.command_lib.compute.instances.flags",
    "googlecloudsdk.core.credentials.requests",
    "googlecloudsdk.core.credentials.transports",
    "googlecloudsdk.generated_clients.apis.compute.v1.compute_v1_client",
    "googlecloudsdk.generated_clients.apis.compute.v1.resources",
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
        for number, file in enumerate((os.devnull, *files)):
            os.dup2(os.open(file, os.O_RDWR | os.O_CREAT), number)
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
