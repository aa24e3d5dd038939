"""Options that several commands share, and how their values are parsed."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import typer

from fleet.config import NAME_VARIABLE
from provision.durations import seconds


class Output(str, Enum):
    """Output format of a command."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


Fleet = Annotated[
    str,
    typer.Option(
        "--fleet",
        envvar=NAME_VARIABLE,
        metavar="NAME",
        help="Fleet name.",
        show_default=False,
    ),
]


OutputOption = Annotated[
    Output,
    typer.Option(
        "--output",
        "-o",
        help="Output format: live view on a terminal and plain lines otherwise (auto), plain lines, or JSON lines.",
    ),
]


Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip confirmation prompts.")]


Worker = Annotated[
    str,
    typer.Option(
        "--worker", metavar="N", help="Only this task: 0, worker-0, ps-0, or all.  [default: all]", show_default=False
    ),
]


def split_commas(given: list[str] | None) -> tuple[str, ...] | None:
    """Return the values of a repeatable option, which may hold several between commas; None if not given."""
    return tuple(item for text in given for item in text.split(",") if item) if given else None


def parse_count(text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


class Duration(float):
    """A default in seconds that the help shows as 10s or 10m."""

    def __str__(self) -> str:
        return f"{self / 60:g}m" if self >= 120 and self % 60 == 0 else f"{self:g}s"


def parse_duration(given: str | float) -> float:
    """Return a duration in seconds."""
    try:
        return seconds(str(given))  # a default comes as the number that it is
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


FAILURES = "Failures"


TIMEOUTS = "Timeouts"


CHECKPOINTS = "Checkpoints"


TASKS = "Tasks"


EXISTING_HOSTS = "Existing hosts"


RENDEZVOUS = "Rendezvous"


Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="TIME",
        parser=parse_duration,
        help="Grace period between SIGTERM and SIGKILL.",
    ),
]


Restarts = Annotated[
    int,
    typer.Option(
        "--restarts",
        metavar="N",
        min=0,
        help="Restart all tasks up to N times after a failure.",
        rich_help_panel=FAILURES,
    ),
]


RestartsAfter = Annotated[
    Literal["never", "on-failure", "exit-code"],
    typer.Option(
        "--restart-policy",
        help="When to restart: after any failure, or only after signals and exit codes >= 128.",
        rich_help_panel=FAILURES,
    ),
]


Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=parse_duration,
        show_default=False,
        help="Stop the job after this time.  [default: no limit]",
        rich_help_panel=TIMEOUTS,
    ),
]


HangTimeout = Annotated[
    float,
    typer.Option(
        "--hang-timeout",
        metavar="TIME",
        parser=parse_duration,
        show_default=False,
        help="Treat the job as hung after this time without progress.  [default: disabled]",
        rich_help_panel=TIMEOUTS,
    ),
]


CheckpointDir = Annotated[
    str,
    typer.Option(
        "--checkpoint-dir",
        metavar="PATH",
        help="Checkpoint directory: relative to SCRIPT's directory, absolute on the hosts, or a URL (not "
        "replicated).  "
        "[default: a directory per job]",
        show_default=False,
        rich_help_panel=CHECKPOINTS,
    ),
]
