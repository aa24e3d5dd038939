"""The command line: parse arguments, run the command, print errors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.cli.application import WithJobs, add_command, app, root_command
from fleet.cli.demo import demo
from fleet.cli.failures import (
    explain_usage_error,
    is_json_requested,
    keep_traceback,
    render_next_steps,
    report_failure,
)
from fleet.cli.fleets.bake import bake
from fleet.cli.fleets.doctor import doctor
from fleet.cli.fleets.down import down
from fleet.cli.fleets.exec import exec_
from fleet.cli.fleets.extend import extend
from fleet.cli.fleets.gc import gc
from fleet.cli.fleets.inventory import inventory
from fleet.cli.fleets.push import push
from fleet.cli.fleets.ssh import WithJob, ssh
from fleet.cli.fleets.ssh_config import ssh_config
from fleet.cli.fleets.status import status
from fleet.cli.fleets.up import up
from fleet.cli.jobs.agent import agent
from fleet.cli.jobs.check import check
from fleet.cli.jobs.compare import compare
from fleet.cli.jobs.jobs import jobs
from fleet.cli.jobs.lint import lint
from fleet.cli.jobs.logs import logs
from fleet.cli.jobs.pull import pull
from fleet.cli.jobs.report import report
from fleet.cli.jobs.rerun import rerun
from fleet.cli.jobs.stop import stop
from fleet.cli.jobs.tensorboard import tensorboard
from fleet.cli.jobs.train import train
from fleet.cli.options import Output
from fleet.cli.program import WithProgram, WithResume, WithTrial
from fleet.cli.provider_options import WithProviders, WithScopes
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

add_command("Start", demo)
add_command("Start", doctor, WithProviders)
add_command("Fleets", up, WithProviders)
add_command("Fleets", bake, WithProviders)
add_command("Fleets", status)
add_command("Fleets", extend)
add_command("Fleets", down)
add_command("Fleets", gc, WithScopes)
add_command("Hosts", ssh, WithJob)
add_command("Hosts", exec_, WithProgram)
add_command("Hosts", push)
add_command("Hosts", ssh_config)
add_command("Hosts", inventory)
add_command("Jobs", lint)
add_command("Jobs", check, WithTrial)
add_command("Jobs", train, WithResume)
add_command("Jobs", logs, WithJobs)
add_command("Jobs", stop, WithJobs)
add_command("Jobs", rerun, WithJobs)
add_command("Jobs", agent)
add_command("Results", jobs, WithJobs)
add_command("Results", pull, WithJobs)
add_command("Results", tensorboard, WithJobs)
add_command("Results", report, WithJobs)
add_command("Results", compare, WithJobs)

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
        code = root_command()(args=arguments or ["--help"], prog_name="fleet", standalone_mode=False)
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
