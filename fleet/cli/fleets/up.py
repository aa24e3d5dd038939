"""The command `fleet up`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.options import (
    EXISTING_HOSTS,
    Fleet,
    Output,
    OutputOption,
    Yes,
    option,
    parse_count,
    parse_index_url,
    parse_proxy_url,
)
from fleet.cli.provider_options import read_options
from fleet.cli.runtime import make_services, read_settings, resolve_fleet, run_command
from provision.registry import NAMES


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
    provider: Annotated[
        str | None, option("--provider", f"Provider of the hosts: {', '.join(NAMES)}.", "NAME", default="local")
    ] = None,
    python: Annotated[str | None, option("--python", "Interpreter for the script on the hosts.", "PATH")] = None,
    package: Annotated[
        list[str] | None,
        option(
            "--package",
            "Package to install on remote hosts. Repeatable.",
            "REQ",
            default="on cloud hosts TensorFlow, tf-keras, and TensorBoard",
        ),
    ] = None,
    index_url: Annotated[
        str | None,
        option(
            "--index-url",
            "Package index for pip on the hosts; write a login as user:${NAME}.",
            "URL",
            parser=parse_index_url,
            default="the settings of each host",
        ),
    ] = None,
    pip_proxy: Annotated[
        str | None,
        option(
            "--pip-proxy",
            "Proxy for pip on the hosts; write a login as user:${NAME}.",
            "URL",
            parser=parse_proxy_url,
            default="the settings of each host",
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Show the plan and the price; create nothing.")] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    accept_new: Annotated[
        bool, option("--accept-new", "Accept the keys of unknown hosts without asking.", panel=EXISTING_HOSTS)
    ] = False,
    retry_until_up: Annotated[bool, option("--retry-until-up", "Keep retrying until capacity is available.")] = False,
) -> None:
    """Create, repair, or resize a fleet.

    Uses this computer, unless the options or fleet.toml select an inventory, a GPU, a machine type, a zone, Spot VMs,
    or a project. Shows the price and asks before it spends money. With another number of workers, adds hosts to an
    existing fleet or releases the last ones; asks first if results on these are not on this computer.

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
        name, given, read_settings(provider), dry_run=dry_run, retry_until_up=retry_until_up, accept_new=accept_new
    )
    run_command(name, output, lambda sink: verb.run(request, make_services(sink, yes=yes), sink))
