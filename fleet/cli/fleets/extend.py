"""The command `fleet extend`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, Output, OutputOption, Yes, argument, parse_duration
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def extend(
    time: Annotated[float, argument("TIME", "New lifetime from now, e.g. 4h.", parser=parse_duration)],
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Change the lifetime of a cloud fleet.

    The jobs end TIME from now, with a checkpoint, and the instances power off; with --max-cost, they are deleted.
    The instances are restarted only if TIME ends after the time at which Compute Engine deletes them.

    Examples:
      fleet extend 4h
      fleet extend 1d --fleet vision --yes
    """
    from fleet.commands.fleets import extend as verb

    request = verb.ExtendRequest(fleet=resolve_fleet(fleet), seconds=time)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
