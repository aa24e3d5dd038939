"""Options that several commands share, how their values are parsed, and how a shell completes them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from datetime import datetime
from enum import Enum
from typing import Any

import typer

from fleet.errors import UsageError
from fleet.settings import NAME_VARIABLE
from fleet.state import FleetDirectory, FleetRecord, Store, state_root
from fleet.steps import DEFAULT_FLEET, Again
from provision.bounds import check_text
from provision.options import MONEY
from provision.quantities import read_duration
from provision.registry import NAMES
from train.agent.protocol.records import Policy, RestartPolicy
from train.defaults import GRACE_S
from train.script.package_index import check_index_url, check_proxy_url


def complete_fleet(incomplete: str) -> list[str]:
    """Return the names of fleets that begin with `incomplete`."""
    with contextlib.suppress(Exception):
        return [name for name in Store(state_root()).names() if name.startswith(incomplete)]
    return []


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs that begin with `incomplete` and were started or shown here, each with its description."""
    with contextlib.suppress(Exception):
        directory, record = _find_fleet(ctx)
        jobs = dict.fromkeys((record.last_job, *directory.recorded_jobs()), "")
        jobs[record.last_job] = record.last_script
        return [choice for choice in jobs.items() if choice[0] and choice[0].startswith(incomplete)]
    return []


def complete_worker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workers that begin with `incomplete`."""
    with contextlib.suppress(Exception):
        _directory, record = _find_fleet(ctx)
        return [name for name in (*(slot.name for slot in record.slots), "all") if name.startswith(incomplete)]
    return []


def _find_fleet(ctx: typer.Context) -> tuple[FleetDirectory, FleetRecord]:
    return Store(state_root()).need(ctx.params.get("fleet") or DEFAULT_FLEET)


FAILURES = "Failures"
TIMEOUTS = "Timeouts"
CHECKPOINTS = "Checkpoints"
TASKS = "Tasks"
EXISTING_HOSTS = "Existing hosts"
RENDEZVOUS = "Rendezvous"
TIME = "TIME"  # metavar of a duration


class Output(str, Enum):
    """Output format of a command."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


class Duration(float):
    """A default in seconds that the help shows as 10s or 10m."""

    def __str__(self) -> str:
        return f"{self / 60:g}m" if self >= 120 and self % 60 == 0 else f"{self:g}s"


def _parser(check: Callable[[Any], Any], message: str = "") -> Callable[[Any], Any]:
    """Return a parser for the values that `check` accepts.

    Args:
        check: Returns the parsed value, or raises ValueError.
        message: Says what is wrong with the value; empty: the error of `check` does. Typer's own messages differ
            between its versions.
    """

    def parse(given: Any) -> Any:
        try:
            return check(given)
        except ValueError as error:
            raise typer.BadParameter(f"{given!r} {message}" if message else str(error)) from None

    return parse


def _bounded(kind: type[int] | type[float], low: int, high: int | None) -> Callable[[Any], float]:
    """Return a parser of numbers."""
    read = _parser(kind, f"is not a {'whole number' if kind is int else 'number'}")

    def parse(given: Any) -> float:
        value = float(read(given)) if kind is float else int(read(given))
        if high is not None and not low <= value <= high:
            raise typer.BadParameter(f"{given} is not between {low} and {high}")
        if not value >= low:
            raise typer.BadParameter(f"{given} is less than {low}")
        return value

    return parse


parse_count = _parser(int, "is not a whole number")
parse_text = _parser(check_text)
"""Returns a value of bounded length without control characters."""
parse_duration = _parser(lambda given: read_duration(str(given)))  # a default comes as the number that it is
"""Returns a duration in seconds."""
parse_money = _parser(
    lambda given: float(MONEY.read(float(str(given).strip().removeprefix("$")))),
    "is not an amount in US dollars, such as 5 or 7.50",
)
parse_index_url = _parser(check_index_url)
parse_proxy_url = _parser(check_proxy_url)


def parse_since(given: str | float) -> float:
    """Return a time in seconds since the epoch: a duration before now, or a time in the local time zone."""
    text = str(given).strip()
    try:
        return max(time.time() - read_duration(text), 1.0)
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is neither a duration such as 10m nor a time such as 2026-11-22T19:30"
        ) from None
    return max(at, 1.0)


def split_commas(given: list[str] | None) -> tuple[str, ...] | None:
    """Return the values of a repeatable option, which may hold several between commas; None if not given."""
    return tuple(item for text in given for item in text.split(",") if item) if given else None


def option(
    default: Any, name: str, text: str, metavar: str = "", *, short: str = "", shown: str = "", **details: Any
) -> Any:
    """Declare an option.

    Args:
        default: Its default; ``...``: it must be given.
        name: ``--workers``.
        text: What it does, one sentence.
        metavar: Its value; empty: a flag; ``TIME``: a duration. Versions of Typer show choices in different brackets.
        short: ``-w``.
        shown: The default in words; empty: the real default is shown.
        details: `min`, `max`, and `number` (int or float) of a number; other arguments of typer.Option. `panel` is
            the group in the help, and an option that is `rare` is only shown by ``--help-all``.
    """
    if metavar.strip("[]") == TIME:
        details.setdefault("parser", parse_duration)
        default = Duration(default) if isinstance(default, float) else default
    if "min" in details:
        kind = details.pop("number", int)
        details["parser"] = _bounded(kind, details.pop("min"), details.pop("max", None))
    return typer.Option(
        default,
        *filter(None, (name, short)),
        metavar=metavar or None,
        help=f"{text}  [default: {shown}]" if shown else text,
        show_default=not shown,
        rich_help_panel=details.pop("panel", None),
        hidden=details.pop("rare", False),
        **details,
    )


def argument(default: Any, metavar: str, text: str, **details: Any) -> Any:
    """Declare an argument; its default is not shown."""
    return typer.Argument(default, metavar=metavar, help=text, show_default=False, **details)


def one_job(argument: str, option_value: str) -> str:
    """Return the job that is given as an argument or with ``--job``.

    Raises:
        UsageError: two different jobs are given.
    """
    if argument and option_value and argument != option_value:
        raise UsageError(
            f"JOB is given twice: {argument!r} and {option_value!r}", next_steps=[Again({"--job": None})]
        )
    return argument or option_value


FLEET: str = option(
    "",
    "--fleet",
    "Fleet name.",
    "NAME",
    shown="default, or the one of fleet.toml",
    envvar=NAME_VARIABLE,
    autocompletion=complete_fleet,
)
OUTPUT: Output = option(
    Output.AUTO,
    "--output",
    "Output format: live view on a terminal and plain lines otherwise (auto), plain lines, or JSON lines.",
    "<auto|lines|json>",
    short="-o",
)
PROVIDER: str | None = option(
    None, "--provider", f"Provider of the hosts: {', '.join(NAMES)}.", "NAME", shown="local"
)
PACKAGE: list[str] | None = option(
    None,
    "--package",
    "Package to install on remote hosts. Repeatable.",
    "REQ",
    shown="on cloud hosts TensorFlow, tf-keras, TensorBoard, and SciPy",
)
INDEX_URL: str | None = option(
    None,
    "--index-url",
    "Package index for pip on the hosts; write a login as user:${NAME}.",
    "URL",
    parser=parse_index_url,
    shown="the settings of each host",
    rare=True,
)
PIP_PROXY: str | None = option(
    None,
    "--pip-proxy",
    "Proxy for pip on the hosts; write a login as user:${NAME}.",
    "URL",
    parser=parse_proxy_url,
    shown="the settings of each host",
    rare=True,
)
DRY_RUN: bool = option(False, "--dry-run", "Show the plan and the price; create nothing.")
YES: bool = option(False, "--yes", "Skip confirmation prompts.", short="-y")
RAW: bool = option(
    False, "--raw", "Show each byte: all lines of all tasks, redrawn text, and TensorFlow's startup messages."
)
WORKER: str = option(
    "all", "--worker", "Only this task: 0, worker-0, ps-0, or all.", "N", shown="all", autocompletion=complete_worker
)
JOB_HELP = "Job: its ID or the first characters of it, its name, or -1 for the latest, -2 for the one before."
JOB: str = argument("", "[JOB]", f"{JOB_HELP}  [default: the latest job]", autocompletion=complete_job)
SAME_JOB: str = option("", "--job", "The same as JOB.", "JOB", autocompletion=complete_job)
HOSTS: str = option(
    "all",
    "--worker",
    "Only these hosts: 1, worker-1, or several as 0,2.",
    "N",
    shown="all",
    autocompletion=complete_worker,
)
GRACE: float = option(GRACE_S, "--grace", "Grace period between SIGTERM and SIGKILL.", TIME, rare=True)


RESTARTS: int = option(
    0, "--restarts", "Restart all tasks up to N times after a failure.", "N", min=0, panel=FAILURES
)
RESTART_POLICY: RestartPolicy = option(
    Policy().restart,
    "--restart-policy",
    "When to restart: after any failure, or only after signals and exit codes >= 128.",
    "<never|on-failure|exit-code>",
    panel=FAILURES,
    rare=True,
)
TIMEOUT: float = option(0.0, "--timeout", "Stop the job after this time.", TIME, shown="no limit", panel=TIMEOUTS)
HANG_TIMEOUT: float = option(
    0.0,
    "--hang-timeout",
    "Treat the job as hung after this time without progress.",
    TIME,
    shown="disabled",
    panel=TIMEOUTS,
)
CHECKPOINT_DIR: str = option(
    "",
    "--checkpoint-dir",
    "Checkpoint directory: relative to SCRIPT's directory, absolute on the hosts, or a URL (not replicated).",
    "PATH",
    shown="a directory per job",
    panel=CHECKPOINTS,
)
