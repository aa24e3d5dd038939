"""The command `fleet up`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import EXISTING_HOSTS, Fleet, Output, OutputOption, Yes, parse_count
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_ports, read_settings, resolve_fleet, run_command
from provision.registry import NAMES


def up(
    ctx: typer.Context,
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            metavar="N",
            parser=parse_count,
            help="Number of workers.  [default: 2; with --inventory all hosts]",
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help=f"Provider of the hosts: {', '.join(NAMES)}.  [default: local]",
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="Interpreter for the script on the hosts.")
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            metavar="REQ",
            help="Package to install on remote hosts. Repeatable.  [default on cloud hosts: TensorFlow, "
            "tf-keras, and "
            "TensorBoard]",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and the price; create nothing.")] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    accept_new: Annotated[
        bool,
        typer.Option(
            "--accept-new",
            help="Accept the keys of unknown hosts without asking.",
            rich_help_panel=EXISTING_HOSTS,
        ),
    ] = False,
    retry_until_up: Annotated[
        bool,
        typer.Option("--retry-until-up", help="Keep retrying until capacity is available."),
    ] = False,
) -> None:
    """Create or repair a fleet.

    Uses this computer, unless the options or fleet.toml select an inventory, a GPU, a machine type, a zone, Spot VMs,
    or a project. Shows the price and asks before it spends money.
    """
    from fleet.commands.fleets import up as verb
    from fleet.fleets.resolution import UpRequest
    from fleet.settings import Settings

    given = Settings(
        provider=provider,
        workers=workers,
        python=python,
        packages=tuple(package) if package else None,
        options=read_options(ctx),
    )
    name = resolve_fleet(fleet)
    request = UpRequest(
        name, given, read_settings(), dry_run=dry_run, retry_until_up=retry_until_up, accept_new=accept_new
    )
    run_command(name, output, lambda sink: verb.run(request, make_ports(sink, yes=yes), sink))
