"""The command `fleet compare`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import JOB_HELP, Fleet, Output, OutputOption, argument
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def compare(
    first: Annotated[str, argument("JOB", JOB_HELP)],
    second: Annotated[str, argument("JOB", "The other job.")],
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Compare two jobs: arguments, code, versions, metrics.

    Marks lines that differ with an asterisk.

    Examples:
      fleet compare -2 -1
      fleet compare baseline wide -o json
    """
    from fleet.commands.jobs import compare as verb

    request = verb.CompareRequest(fleet=resolve_fleet(fleet), first=first, second=second)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink), sink), live=False)
