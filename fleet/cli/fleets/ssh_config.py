"""The command `fleet ssh-config`: its options, and the request that they make."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fleet.cli.options import Fleet, Output, OutputOption, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet, run_command
from fleet.errors import UsageError
from fleet.steps import Step


def ssh_config(
    install: Annotated[bool, option("--install", "Add one Include line to ~/.ssh/config, for all fleets.")] = False,
    remove: Annotated[bool, option("--remove", "Remove the Include line from ~/.ssh/config.")] = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Let ssh and editors reach hosts by name: ssh NAME-worker-1.

    Without options, prints the configuration of a fleet. The names follow every change of a fleet until fleet down.

    Examples:
      fleet ssh-config --install
      fleet ssh-config --remove
    """
    name = resolve_fleet(fleet)
    if install and remove:
        raise UsageError("--install and --remove exclude each other", next_steps=[Step("ssh-config", "--help")])
    if install or remove:
        from fleet.commands.fleets import ssh_config as verb

        file = Path("~/.ssh/config").expanduser()
        request = verb.SshConfigRequest("install" if install else "remove", file)
        run_command(name, output, lambda sink: verb.run(request, make_services(sink), sink), live=False)
        return
    from fleet.commands.fleets import inventory

    export = inventory.InventoryRequest(fleet=name, form="ssh-config")
    print_result(name, lambda out: out.write(inventory.run(export, make_services())))
