"""The command line: parse arguments, run the command, print errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.cli.application import COMMANDS, app, root_command
from fleet.cli.failures import (
    explain_usage_error,
    is_json_requested,
    keep_traceback,
    render_next_steps,
    report_failure,
)
from fleet.cli.options import Output
from fleet.cli.runtime import (
    CommandEnded,
    CommandFailed,
    open_sink,
)
from fleet.config import DEFAULT_FLEET
from fleet.errors import CancelledError, FleetError, InternalError
from fleet.steps import Again

if TYPE_CHECKING:
    from fleet.events import Sink


__all__ = ["app", "root_command", "run"]


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
        failure = explain_usage_error(error, arguments) if is_mistake else InternalError.of(error)
    if isinstance(failure, InternalError):
        keep_traceback(failure)
    lines = render_next_steps(failure, arguments, fleet)
    return report_failure(failure, lines, sink or (open_sink(Output.JSON) if is_json_requested(arguments) else None))
