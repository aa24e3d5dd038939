"""Options that several commands share, how their values are parsed, and how a shell completes them."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from datetime import datetime
from enum import Enum
from typing import Annotated, Any

import typer

from fleet.errors import UsageError
from fleet.settings import NAME_VARIABLE
from fleet.state import state_root
from fleet.steps import DEFAULT_FLEET, Again
from provision.bounds import check_text
from provision.durations import seconds
from provision.options import MONEY
from provision.registry import NAMES
from train.agent.protocol.records import RestartPolicy


def complete_fleet(incomplete: str) -> list[str]:
    """Return the names of fleets that begin with `incomplete`."""
    from fleet.state import Store

    with contextlib.suppress(Exception):
        return [name for name in Store(state_root()).names() if name.startswith(incomplete)]
    return []


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs that begin with `incomplete` and were started or shown here, each with its description."""
    with contextlib.suppress(Exception):
        return [choice for choice in _list_jobs(_fleet_in(ctx)) if choice[0].startswith(incomplete)]
    return []


def complete_worker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workers that begin with `incomplete`."""
    from fleet.state import Store

    with contextlib.suppress(Exception):
        _directory, record = Store(state_root()).need(_fleet_in(ctx))
        return [name for name in (*(slot.name for slot in record.slots), "all") if name.startswith(incomplete)]
    return []


def _fleet_in(ctx: typer.Context) -> str:
    return ctx.params.get("fleet") or DEFAULT_FLEET


def _list_jobs(fleet: str) -> Iterator[tuple[str, str]]:
    from fleet.state import Store

    directory, record = Store(state_root()).need(fleet)
    if record.last_job:
        yield record.last_job, record.last_script
    yield from ((job, "") for job in directory.recorded_jobs() if job != record.last_job)


FAILURES = "Failures"
TIMEOUTS = "Timeouts"
CHECKPOINTS = "Checkpoints"
TASKS = "Tasks"
EXISTING_HOSTS = "Existing hosts"
RENDEZVOUS = "Rendezvous"


class Output(str, Enum):
    """Output format of a command."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


class Duration(float):
    """A default in seconds that the help shows as 10s or 10m."""

    def __str__(self) -> str:
        return f"{self / 60:g}m" if self >= 120 and self % 60 == 0 else f"{self:g}s"


def parse_count(text: str) -> int:
    """Return a whole number."""
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def _bounded(kind: type[int] | type[float], low: int, high: int | None) -> Callable[[Any], float]:
    """Return a parser of numbers; Typer's own messages differ between its versions."""

    def parse(given: Any) -> float:
        try:
            value = kind(given)
        except ValueError:
            noun = "whole number" if kind is int else "number"
            raise typer.BadParameter(f"{given!r} is not a {noun}") from None
        if high is not None and not low <= value <= high:
            raise typer.BadParameter(f"{given} is not between {low} and {high}")
        if not value >= low:
            raise typer.BadParameter(f"{given} is less than {low}")
        return value

    return parse


def parse_text(text: str) -> str:
    """Return a value of bounded length without control characters."""
    return _checked(check_text, text)


def parse_duration(given: str | float) -> float:
    """Return a duration in seconds."""
    try:
        return seconds(str(given))  # a default comes as the number that it is
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_money(given: str | float) -> float:
    """Return an amount in US dollars."""
    try:
        return float(MONEY.read(float(str(given).strip().removeprefix("$"))))
    except ValueError:
        raise typer.BadParameter(f"{given!r} is not an amount in US dollars, such as 5 or 7.50") from None


def parse_index_url(text: str) -> str:
    """Return the URL of a package index."""
    from train.script.package_index import check_index_url

    return _checked(check_index_url, text)


def parse_proxy_url(text: str) -> str:
    """Return the URL of a proxy for pip."""
    from train.script.package_index import check_proxy_url

    return _checked(check_proxy_url, text)


def _checked(check: Callable[[str], str], text: str) -> str:
    try:
        return check(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def parse_since(given: str | float) -> float:
    """Return a time in seconds since the epoch: a duration before now, or a time in the local time zone."""
    text = str(given).strip()
    try:
        return max(time.time() - seconds(text), 1.0)
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
    name: str, help_text: str, metavar: str | None = None, *, short: str = "", default: str = "", **details: Any
) -> Any:
    """Declare an option.

    Args:
        name: ``--workers``.
        help_text: What it does, one sentence.
        metavar: Its value; None: a flag. Versions of Typer show choices in different brackets.
        short: ``-w``.
        default: The default in words; empty: the real default is shown.
        details: `min`, `max`, and `number` (int or float) of a number; other arguments of typer.Option. `panel` is
            the group in the help, and an option that is `rare` is only shown by ``--help-all``.
    """
    if "min" in details:
        kind = details.pop("number", int)
        details["parser"] = _bounded(kind, details.pop("min"), details.pop("max", None))
    return typer.Option(
        *filter(None, (name, short)),
        metavar=metavar,
        help=f"{help_text}  [default: {default}]" if default else help_text,
        show_default=not default,
        rich_help_panel=details.pop("panel", None),
        hidden=details.pop("rare", False),
        **details,
    )


def duration(name: str, help_text: str, metavar: str = "TIME", **details: Any) -> Any:
    """Declare an option that takes a duration, as `option` does."""
    return option(name, help_text, metavar, parser=parse_duration, **details)


def argument(metavar: str, help_text: str, **details: Any) -> Any:
    """Declare an argument; its default is not shown."""
    return typer.Argument(metavar=metavar, help=help_text, show_default=False, **details)


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


def select_fields(kind: type, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given values of a command line that are fields of `kind`, a dataclass or a named tuple."""
    names: tuple[str, ...] = getattr(kind, "_fields", ()) or tuple(field.name for field in fields(kind))
    return {name: given[name] for name in names if given.get(name) is not None}


Fleet = Annotated[
    str,
    option(
        "--fleet",
        "Fleet name.",
        "NAME",
        default="default, or the one of fleet.toml",
        envvar=NAME_VARIABLE,
        autocompletion=complete_fleet,
    ),
]
OutputOption = Annotated[
    Output,
    option(
        "--output",
        "Output format: live view on a terminal and plain lines otherwise (auto), plain lines, or JSON lines.",
        "<auto|lines|json>",
        short="-o",
    ),
]
ProviderName = Annotated[
    str | None, option("--provider", f"Provider of the hosts: {', '.join(NAMES)}.", "NAME", default="local")
]
Packages = Annotated[
    list[str] | None,
    option(
        "--package",
        "Package to install on remote hosts. Repeatable.",
        "REQ",
        default="on cloud hosts TensorFlow, tf-keras, TensorBoard, and SciPy",
    ),
]
IndexUrl = Annotated[
    str | None,
    option(
        "--index-url",
        "Package index for pip on the hosts; write a login as user:${NAME}.",
        "URL",
        parser=parse_index_url,
        default="the settings of each host",
        rare=True,
    ),
]
PipProxy = Annotated[
    str | None,
    option(
        "--pip-proxy",
        "Proxy for pip on the hosts; write a login as user:${NAME}.",
        "URL",
        parser=parse_proxy_url,
        default="the settings of each host",
        rare=True,
    ),
]
DryRun = Annotated[bool, option("--dry-run", "Show the plan and the price; create nothing.")]
Yes = Annotated[bool, option("--yes", "Skip confirmation prompts.", short="-y")]
Raw = Annotated[
    bool, option("--raw", "Show each byte: all lines of all tasks, redrawn text, and TensorFlow's startup messages.")
]
Worker = Annotated[
    str,
    option(
        "--worker", "Only this task: 0, worker-0, ps-0, or all.", "N", default="all", autocompletion=complete_worker
    ),
]
JOB_HELP = "Job: its ID or the first characters of it, its name, or -1 for the latest, -2 for the one before."
JobArgument = Annotated[str, argument("[JOB]", f"{JOB_HELP}  [default: the latest job]", autocompletion=complete_job)]
SameJob = Annotated[str, option("--job", "The same as JOB.", "JOB", autocompletion=complete_job)]
HostsOption = Annotated[
    str,
    option(
        "--worker",
        "Only these hosts: 1, worker-1, or several as 0,2.",
        "N",
        default="all",
        autocompletion=complete_worker,
    ),
]
Grace = Annotated[float, duration("--grace", "Grace period between SIGTERM and SIGKILL.", rare=True)]


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
