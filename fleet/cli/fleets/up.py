"""The command `fleet up`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import (
    EXISTING_HOSTS,
    DryRun,
    Fleet,
    IndexUrl,
    Output,
    OutputOption,
    Packages,
    PipProxy,
    ProviderName,
    Yes,
    option,
    parse_count,
    parse_text,
)
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_services, read_settings, resolve_fleet, run_command


def up(
    ctx: typer.Context,
    workers: Annotated[
        int | None,
        option(
            "--workers",
            "Number of workers.",
            "N",
            short="-w",
            parser=parse_count,
            default="2; with --inventory all hosts",
        ),
    ] = None,
    provider: ProviderName = None,
    python: Annotated[
        str | None,
        option("--python", "Interpreter for the script on the hosts.", "PATH", parser=parse_text, default="detected"),
    ] = None,
    package: Packages = None,
    index_url: IndexUrl = None,
    pip_proxy: PipProxy = None,
    retry_until_up: Annotated[bool, option("--retry-until-up", "Keep retrying until capacity is available.")] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    accept_new: Annotated[
        bool, option("--accept-new", "Accept the keys of unknown hosts without asking.", panel=EXISTING_HOSTS)
    ] = False,
    allow_programs: Annotated[
        bool,
        option(
            "--allow-programs",
            "Run programs on this computer that fleet.toml or the inventory names, without asking.",
            envvar="FLEET_ALLOW_PROGRAMS",
        ),
    ] = False,
) -> None:
    """Create, repair, or resize a fleet.

    Uses this computer, unless fleet.toml or an option selects other hosts: --inventory existing ones, each option of
    Compute Engine its instances. Shows the price and asks before it spends money. With another number of workers,
    adds hosts to an existing fleet or releases the last ones; asks first if results on these are not on this
    computer.

    Examples:
      fleet up --workers 4
      fleet up --workers 2 --gpu t4
      fleet up --inventory hosts.ini
    """
    from fleet.commands.fleets import up as verb
    from fleet.fleets.resolution import UpRequest
    from fleet.settings import Settings

    packages = tuple(package) if package else None
    given = Settings(
        provider=provider,
        workers=workers,
        python=python,
        packages=packages,
        index_url=index_url,
        pip_proxy=pip_proxy,
        options=read_options(ctx),
    )
    name = resolve_fleet(fleet)
    request = UpRequest(
        name,
        given,
        read_settings(provider),
        dry_run=dry_run,
        retry_until_up=retry_until_up,
        accept_new=accept_new,
        allow_programs=allow_programs,
    )
    run_command(name, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
