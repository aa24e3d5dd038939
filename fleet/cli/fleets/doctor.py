"""The command `fleet doctor`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption, option, parse_count
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_services, read_settings, run_command
from fleet.config import DEFAULT_FLEET
from provision.registry import NAMES


def doctor(
    ctx: typer.Context,
    provider: Annotated[
        str | None,
        option("--provider", f"Provider to check: {', '.join(NAMES)}.", "NAME", default="as for fleet up"),
    ] = None,
    workers: Annotated[
        int | None,
        option("--workers", "Number of workers that need quota.", "N", short="-w", parser=parse_count, default="2"),
    ] = None,
    output: OutputOption = Output.AUTO,
) -> None:
    """Diagnose missing prerequisites and how to fix them.

    Give the options of fleet up, so that everything that it needs is checked.

    Examples:
      fleet doctor
      fleet doctor --provider gce --project my-project
      fleet doctor --workers 4 --gpu t4 --zone us-central1 --network prod
    """
    from fleet.commands.fleets import doctor as verb
    from fleet.fleets.resolution import refuse_options, resolve_provider
    from fleet.settings import Settings

    defaults = read_settings(provider)
    given = Settings(provider=provider, workers=workers, options=read_options(ctx))
    chosen = resolve_provider(given, defaults)
    refuse_options(given, chosen)
    request = verb.DoctorRequest(chosen, given.over(defaults))
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, make_services(sink), sink))
