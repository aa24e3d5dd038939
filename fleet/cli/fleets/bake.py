"""The command `fleet bake`: its options, and the request that they make."""

from __future__ import annotations

import typer

from fleet.cli.options import (
    DryRun,
    IndexUrl,
    Output,
    OutputOption,
    Packages,
    PipProxy,
    ProviderName,
    Yes,
)
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_services, read_settings, run_command


def bake(
    ctx: typer.Context,
    provider: ProviderName = None,
    package: Packages = None,
    index_url: IndexUrl = None,
    pip_proxy: PipProxy = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Create an image of a prepared host.

    Hosts of `fleet up` with the same options boot from the image, and install nothing. It is made of a separate host
    without GPUs, which is deleted afterwards. Shows the price and asks before it spends money. `fleet gc` lists
    images with their monthly price, and deletes them with --images.

    Examples:
      fleet bake --gpu t4
      fleet bake --gpu t4 --package 'tensorflow[and-cuda]~=2.21.0' --package pandas
    """
    from fleet.commands.fleets import bake as verb
    from fleet.settings import Settings
    from fleet.state import BAKING

    packages = tuple(package) if package else None
    given = Settings(
        provider=provider, packages=packages, index_url=index_url, pip_proxy=pip_proxy, options=read_options(ctx)
    )
    request = verb.BakeRequest(given, read_settings(provider), dry_run=dry_run)
    run_command(BAKING, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
