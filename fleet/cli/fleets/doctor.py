"""The command `fleet doctor`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption
from fleet.cli.runtime import make_ports, read_settings, run_command
from fleet.config import DEFAULT_FLEET


def doctor(
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="Provider to check: local, gce, static, slurm, or pbs.  [default: as for fleet up]",
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="Google Cloud project to check.")
    ] = None,
    output: OutputOption = Output.AUTO,
) -> None:
    """Diagnose missing prerequisites and how to fix them."""
    from fleet.commands.fleets import doctor as verb
    from fleet.fleets.resolution import provider_of
    from fleet.settings import Settings

    defaults = read_settings()
    said = Settings(provider=provider, project=project)
    request = verb.DoctorRequest(provider_of(said, defaults.provider), said.over(defaults))
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, make_ports(sink), sink))
