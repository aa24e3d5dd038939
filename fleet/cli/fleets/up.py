"""The command `fleet up`: its options, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.options import (
    CLOUD,
    EXISTING_HOSTS,
    NETWORK,
    Fleet,
    Output,
    OutputOption,
    Project,
    Yes,
    parse_count,
    parse_duration,
    split_commas,
)
from fleet.cli.runtime import make_ports, read_settings, resolve_fleet, run_command


def up(
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
            help="Provider of the hosts: local, gce, static, slurm, or pbs.  [default: local]",
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
    inventory: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            "-i",
            metavar="FILE",
            help="Inventory file: Ansible INI or YAML, or one host per line.",
            rich_help_panel=EXISTING_HOSTS,
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="PATTERN",
            help="Select hosts, as with Ansible's --limit.  [default: all]",
            rich_help_panel=EXISTING_HOSTS,
        ),
    ] = None,
    accept_new: Annotated[
        bool,
        typer.Option(
            "--accept-new",
            help="Accept the keys of unknown hosts without asking.",
            rich_help_panel=EXISTING_HOSTS,
        ),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="TYPE[:N]", help="GPUs per worker, e.g. t4 or t4:2.", rich_help_panel=CLOUD),
    ] = None,
    machine_type: Annotated[
        str | None,
        typer.Option(
            "--machine-type",
            metavar="TYPE",
            help="Machine type, e.g. n1-standard-8.  [default: chosen for the GPU]",
            rich_help_panel=CLOUD,
        ),
    ] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option(
            "--zone",
            metavar="ZONE",
            help="Zone or region to try; repeatable, tried in order.  [default: cheapest first]",
            rich_help_panel=CLOUD,
        ),
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot",
            help="Use Spot VMs: cheaper, but may be preempted at any time.",
            show_default=False,
            rich_help_panel=CLOUD,
        ),
    ] = None,
    max_duration: Annotated[
        float | None,
        typer.Option(
            "--max-duration",
            metavar="TIME",
            parser=parse_duration,
            help="Maximum lifetime, enforced by Compute Engine; 0 disables it.  [default: 8h]",
            rich_help_panel=CLOUD,
        ),
    ] = None,
    retry_until_up: Annotated[
        bool,
        typer.Option("--retry-until-up", help="Keep retrying until capacity is available.", rich_help_panel=CLOUD),
    ] = False,
    project: Project = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Boot image, e.g. projects/P/global/images/family/F.",
            rich_help_panel=CLOUD,
        ),
    ] = None,
    disk_size: Annotated[
        int | None,
        typer.Option(
            "--disk-size",
            metavar="GB",
            parser=parse_count,
            help="Size of the boot disk.  [default: 100]",
            rich_help_panel=CLOUD,
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME",
            help="VPC network, or the path of a shared one, projects/P/global/networks/N.  [default: default]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    subnet: Annotated[
        str | None,
        typer.Option(
            "--subnet",
            metavar="NAME",
            help="Subnetwork, or its path.  [default: the one of the region]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    firewall: Annotated[
        bool | None,
        typer.Option(
            "--firewall/--no-firewall",
            help="Create firewall rules for the fleet, or rely on existing ones.",
            show_default=False,
            rich_help_panel=NETWORK,
        ),
    ] = None,
    iap: Annotated[
        bool | None,
        typer.Option(
            "--iap/--no-iap",
            help="No external addresses; SSH goes through Identity-Aware Proxy.",
            show_default=False,
            rich_help_panel=NETWORK,
        ),
    ] = None,
    ssh_from: Annotated[
        list[str] | None,
        typer.Option(
            "--ssh-from",
            metavar="CIDR",
            help="Source range allowed to use SSH. Repeatable.  [default: your public address]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scopes",
            metavar="SCOPE",
            help="OAuth scope of the service account, e.g. devstorage.read_only. Repeatable.  [default: none]",
            rich_help_panel=NETWORK,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--service-account", metavar="EMAIL", help="Service account of the instances.", rich_help_panel=NETWORK
        ),
    ] = None,
) -> None:
    """Create or repair a fleet.

    Uses this computer, unless the options or fleet.toml select an inventory, a GPU, a machine type, a zone, Spot VMs,
    or a project. Shows the price and asks before it spends money.
    """
    from fleet.commands.fleets import up as verb
    from fleet.fleets.resolution import UpRequest
    from fleet.settings import Settings, absolute

    said = Settings(
        provider=provider,
        workers=workers,
        python=python,
        packages=tuple(package) if package else None,
        inventory=absolute(inventory, Path.cwd()) if inventory else None,
        limit=limit,
        gpu=gpu,
        machine_type=machine_type,
        zones=split_commas(zone),
        spot=spot,
        max_duration_s=None if max_duration is None else round(max_duration),
        project=project,
        image=image,
        disk_gb=disk_size,
        network=network,
        subnetwork=subnet,
        firewall=firewall,
        external=None if iap is None else not iap,
        ssh_from=split_commas(ssh_from),
        scopes=split_commas(scopes),
        service_account=service_account,
    )
    name = resolve_fleet(fleet)
    request = UpRequest(
        name, said, read_settings(), dry_run=dry_run, retry_until_up=retry_until_up, accept_new=accept_new
    )
    run_command(name, output, lambda sink: verb.run(request, make_ports(sink, yes=yes), sink))
