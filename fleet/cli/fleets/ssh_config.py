"""`fleet inventory` and `fleet ssh-config`: the hosts of a fleet for other programs, the user's ssh among them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from fleet.cli.application import command
from fleet.cli.options import Fleet, Output, OutputOption, option
from fleet.cli.runtime import make_services, print_result, resolve_fleet, run_command
from fleet.errors import FleetError, NotReadyError, UsageError
from fleet.events import Sink, SshConfigChanged
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
    form: Annotated[Form, option("--format", "Output format.", "<ansible|ssh-config|json>")] = "ansible",
    fleet: Fleet = "",
) -> None:
    """Export the hosts of a fleet for other programs.

    Examples:
      fleet inventory > hosts.yaml
      fleet inventory --format ssh-config
    """
    name = resolve_fleet(fleet)
    print_result(name, lambda out: out.write(export_hosts(name, form, make_services())))


@dataclass(frozen=True)
class SshConfigRequest:
    """Request of the command.

    Attributes:
        action: Add or remove the Include line.
        file: The user's OpenSSH configuration.
    """

    action: Literal["install", "remove"]
    file: Path


def run(request: SshConfigRequest, services: Services, sink: Sink) -> SshConfigChanged:
    """Add the Include line to the user's configuration, or remove it.

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
    is_install = request.action == "install"
    hosts = _export_all(services) if is_install else ()
    try:
        changed = (install_include if is_install else remove_include)(request.file, line)
    except OSError as error:
        where = "at the top of that file" if is_install else "from that file"
        raise NotReadyError(
            f"{request.file} cannot be changed",
            cause=error.strerror or str(error),
            hint=f"{'add' if is_install else 'remove'} this line {where}: {line}",
        ) from error
    summary = SshConfigChanged(str(request.file), line, is_install, changed, hosts)
    sink.emit(summary)
    return summary


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
        file = Path("~/.ssh/config").expanduser()
        request = SshConfigRequest("install" if install else "remove", file)
        run_command(name, output, lambda sink: run(request, make_services(sink), sink), live=False)
        return
    print_result(name, lambda out: out.write(export_hosts(name, "ssh-config", make_services())))
