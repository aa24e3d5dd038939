"""Options about the policy of a job, which `fleet train` and `fleet agent` share."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import CHECKPOINTS, FAILURES, TIMEOUTS, duration, option
from train.agent.protocol.records import RestartPolicy

Restarts = Annotated[
    int, option("--restarts", "Restart all tasks up to N times after a failure.", "N", min=0, panel=FAILURES)
]
RestartsAfter = Annotated[
    RestartPolicy,
    option(
        "--restart-policy",
        "When to restart: after any failure, or only after signals and exit codes >= 128.",
        "<never|on-failure|exit-code>",
        panel=FAILURES,
        rare=True,
    ),
]
Timeout = Annotated[float, duration("--timeout", "Stop the job after this time.", default="no limit", panel=TIMEOUTS)]
HangTimeout = Annotated[
    float,
    duration(
        "--hang-timeout",
        "Treat the job as hung after this time without progress.",
        default="disabled",
        panel=TIMEOUTS,
    ),
]
CheckpointDir = Annotated[
    str,
    option(
        "--checkpoint-dir",
        "Checkpoint directory: relative to SCRIPT's directory, absolute on the hosts, or a URL (not replicated).",
        "PATH",
        default="a directory per job",
        panel=CHECKPOINTS,
    ),
]
