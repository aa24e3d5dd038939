"""`fleet inventory` and `fleet ssh-config`: the hosts of a fleet for other programs, the user's ssh among them."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Literal

from fleet.cli.application import command
from fleet.cli.options import FLEET, OUTPUT, Output, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet, session
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import SshConfigChanged
from fleet.services import Services
from fleet.steps import Step
from provision.ssh_config.include import include_line, install_include, remove_include

Form = Literal["ansible", "ssh-config", "json"]


def export_hosts(fleet: str, form: Form, services: Services) -> str:
    """Return the hosts of a fleet as the content of a file.

    Raises:
        NotFoundError: the fleet does not exist.
        UsageError: one of its paths cannot be written in such a file.
    """
    from provision.inventory.export import export

    directory, record = services.store.need(fleet)
    try:
        return export(fleet, record.hosts, directory.key, directory.known_hosts, form)
    except ValueError as error:
        raise UsageError(str(error), next_steps=[Step("inventory", "--format", "json")]) from error


@command("Hosts")
def inventory(
    form: Form = option("ansible", "--format", "Output format.", "<ansible|ssh-config|json>"), fleet: str = FLEET
) -> None:
    """Export the hosts of a fleet for other programs.

    Examples:
      fleet inventory > hosts.yaml
      fleet inventory --format ssh-config
    """
    name = resolve_fleet(fleet)
    print_result(name, lambda out: out.write(export_hosts(name, form, make_services())))


def change_config(file: Path, services: Services, *, install: bool) -> SshConfigChanged:
    """Add the Include line to the user's OpenSSH configuration, or remove it.

    Each command that changes the hosts of a fleet writes the included file of the fleet; `fleet down` deletes it.

    Raises:
        UsageError: the path of the state directory cannot be included.
        NotReadyError: the configuration cannot be changed.
    """
    try:
        line = include_line(services.store.ssh_configs)
    except ValueError as error:
        raise UsageError(
            str(error),
            hint="set FLEET_STATE_DIR to a path of letters and digits",
            next_steps=[Step("inventory", "--format", "ssh-config")],
        ) from error
    hosts = _export_all(services) if install else ()
    try:
        changed = (install_include if install else remove_include)(file, line)
    except OSError as error:
        where = "at the top of that file" if install else "from that file"
        raise NotReadyError(
            f"{file} cannot be changed",
            cause=error.strerror or str(error),
            hint=f"{'add' if install else 'remove'} this line {where}: {line}",
        ) from error
    return SshConfigChanged(str(file), line, install, changed, hosts)


def _export_all(services: Services) -> tuple[str, ...]:
    """Write the files of all fleets; return the names of their hosts."""
    names: list[str] = []
    for fleet in services.store.names():
        directory = services.store.fleet(fleet)
        with contextlib.suppress(FleetError, ValueError):  # a damaged fleet does not affect the others
            record = directory.read()
            if record is not None and record.ready:
                directory.export_ssh_config(record)
                names += [f"{fleet}-{host.name}" for host in record.hosts]
    return tuple(names)


@command("Hosts")
def ssh_config(
    install: bool = option(False, "--install", "Add one Include line to ~/.ssh/config, for all fleets."),
    remove: bool = option(False, "--remove", "Remove the Include line from ~/.ssh/config."),
    fleet: str = FLEET,
    output: Output = OUTPUT,
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
        with session(name, output, live=False) as run:
            run.emit(change_config(Path("~/.ssh/config").expanduser(), run.services, install=install))
        return
    print_result(name, lambda out: out.write(export_hosts(name, "ssh-config", make_services())))
