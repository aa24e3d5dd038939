"""The command line: parse arguments, run the command, print errors with their next steps."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from fleet.cli.application import COMMANDS, list_options, root_command
from fleet.cli.command_line import CommandLine, explain_mistake, make_words, parse
from fleet.cli.options import Output
from fleet.cli.runtime import CommandEnded, CommandFailed, open_sink
from fleet.errors import CancelledError, FleetError, InternalError, UsageError
from fleet.interrupts import ignore_interrupts, was_interrupted
from fleet.state import state_root
from fleet.steps import DEFAULT_FLEET, Again, Step

if TYPE_CHECKING:
    from fleet.events import Sink


def find_typed_command(arguments: list[str]) -> CommandLine | None:
    """Return the command line as it was typed; None if it has no known command."""
    at = next((index for index, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    if at == len(arguments) or arguments[at] not in COMMANDS:
        return None
    command = root_command(arguments[at]).commands[arguments[at]]
    return parse(arguments[at], command.complete(arguments[at + 1 :]), list_options(command))


def render_next_steps(error: FleetError, typed: CommandLine | None, fleet: str) -> list[str]:
    """Return the command lines of the next steps, each once, with the name of the fleet.

    The first one is not the command that has just failed, unless it was cancelled: nothing before it changes its
    outcome.
    """
    steps = (_resolve(step, typed) if isinstance(step, Again) else step for step in error.next_steps)
    lines = list(dict.fromkeys(step.text(fleet) for step in steps if step is not None))
    failed = typed.step().text(fleet) if typed is not None else ""
    is_repeated = lines[:1] == [failed] and not isinstance(error, CancelledError)
    return lines[1:] if is_repeated else lines


def _resolve(again: Again, typed: CommandLine | None) -> Step | None:
    """Return the typed command with the changes; None if it does not have the options.

    If the option to remove was not typed but comes from fleet.toml, the step is the help of the command.
    """
    if typed is None:
        return None
    if again.command and again.command != typed.command:
        return Step(again.command, *(part for word in make_words(again.change) for part in word.text))
    if not typed.takes(again.change):
        return None
    changed = typed.changed(again.change, again.program)
    return Step(typed.command, "--help") if again.change and changed == typed else changed.step()


def report_failure(error: FleetError, next_lines: Sequence[str] = (), sink: Sink | None = None) -> int:
    """Print an error and return its exit code."""
    ignore_interrupts()
    from fleet.console.jsonl import JsonSink
    from fleet.console.messages import print_error

    json = sink if isinstance(sink, JsonSink) else None
    try:
        if was_interrupted() and sys.stderr.isatty():
            sys.stderr.write("\r")  # over the ^C that the terminal has echoed
        print_error(error, sys.stderr, next_lines=next_lines, json=json)
    except BrokenPipeError:  # as with 2>&1 | head; the exit code still reports the failure
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    return error.exit_code


def keep_traceback(failure: InternalError) -> None:
    """Write the traceback of an internal error to a file, for a report."""
    import traceback

    from provision.directories import make_directory

    file = state_root() / "bug-report.txt"
    text = "".join(traceback.format_exception(failure))
    try:
        make_directory(file.parent)
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        failure.cause = text
    else:
        failure.hint = f"report it, with the file {file}"


def explain_usage_error(error: Any, typed: CommandLine | None) -> UsageError:
    """Return the error for a command line that cannot be parsed."""
    command, context = typed.command if typed is not None else "", getattr(error, "ctx", None)
    if context is not None and context.parent is not None:
        command = context.info_name
    return explain_mistake(error.format_message(), command, typed)


_ABORTED = 130  # exit code of Typer after Ctrl-C
_NOT_STARTED = CancelledError("interrupted; nothing was started", next_steps=[Again({})])


def run(arguments: list[str]) -> int:
    """Run one command.

    Returns:
        The exit code, see fleet.errors.
    """
    sink: Sink | None = None
    fleet = DEFAULT_FLEET
    try:
        program = root_command(*(word for word in arguments[:1] if word in COMMANDS))
        code = program(args=arguments or ["--help"], prog_name="fleet", standalone_mode=False)
        if code != _ABORTED:
            return code if isinstance(code, int) else 0
        failure: FleetError = _NOT_STARTED
    except CommandEnded as ended:
        return ended.code
    except CommandFailed as failed:
        failure, sink, fleet = failed.error, failed.sink, failed.fleet
    except FleetError as error:
        failure = error
    except KeyboardInterrupt:
        failure = _NOT_STARTED
    except Exception as error:  # noqa: BLE001 - of the command line, or a bug: its traceback goes into a file
        is_mistake = hasattr(error, "format_message")  # an error of Typer; its classes moved between versions
        failure = explain_usage_error(error, find_typed_command(arguments)) if is_mistake else InternalError.of(error)
    if isinstance(failure, InternalError):
        keep_traceback(failure)
    typed = find_typed_command(arguments)
    if sink is None and typed is not None and typed.asks_for("--output", Output.JSON.value):
        sink = open_sink(Output.JSON)
    return report_failure(failure, render_next_steps(failure, typed, fleet), sink)
