"""The command `fleet down`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

from fleet.cli.options import Fleet, Output, OutputOption, Yes, option
from fleet.cli.runtime import make_services, resolve_fleet, run_command


def down(
    keep_disks: Annotated[
        bool, option("--keep-disks", "Stop the instances and keep their disks; fleet up starts them again.")
    ] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Delete the fleet and all its files.

    Asks first if a job is running, or if results are not on this computer. Existing hosts are released without any
    files of fleet.

    Examples:
      fleet down
      fleet down --keep-disks
      fleet down --fleet vision --yes
    """
    from fleet.commands.fleets import down as verb

    request = verb.DownRequest(fleet=resolve_fleet(fleet), keep_disks=keep_disks)
    run_command(request.fleet, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
