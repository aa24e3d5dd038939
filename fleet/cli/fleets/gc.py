"""The command `fleet gc`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import Output, OutputOption, Yes, option
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_services, read_settings, run_command
from fleet.config import DEFAULT_FLEET


def gc(
    ctx: typer.Context,
    everybody: Annotated[bool, option("--all", "Include resources created by other users.")] = False,
    images: Annotated[bool, option("--images", "Also delete images that `fleet bake` created.")] = False,
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Find and delete orphaned resources.

    Asks first; by default only resources that were created from this computer. Fleets of another state directory
    count as orphaned. Searches this computer and all known projects, or only the one that --project names.
    Lists images with their monthly price, and keeps them unless --images is given.

    Examples:
      fleet gc
      fleet gc --project my-project --all
    """
    from fleet.commands.fleets import gc as verb
    from fleet.settings import Settings

    given = Settings(options=read_options(ctx))
    request = verb.GcRequest(given, read_settings(), everybody=everybody, images=images)
    run_command(DEFAULT_FLEET, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
