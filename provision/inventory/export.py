"""Exports a fleet's hosts for other programs: an Ansible inventory, an SSH configuration, JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from provision.inventory.ini import literal
from provision.model import Host
from provision.ssh_config.arguments import quoted_path

Form = Literal["ansible", "ssh-config", "json"]

VERSION = 1
"""Of the JSON form; a higher one breaks readers of this one."""


def export(fleet: str, hosts: Sequence[Host], key: Path, known_hosts: Path, form: Form) -> str:
    """Return the hosts of a fleet as the content of a file.

    Args:
        fleet: Name of the fleet.
        hosts: Its hosts, in their order.
        key: Private key of the fleet, for hosts without identities.
        known_hosts: File in which their host keys are pinned by alias.
        form: ``ansible``: an inventory in INI form, with all hosts in a group named like the fleet, with ``_`` for
            ``-``. ``ssh-config``: a block ``FLEET-worker-0`` for each host. ``json``: one object.

    Raises:
        ValueError: a path has a line break or a double quote, which these forms cannot represent, or a value is a
            template for Ansible.
    """
    for path in (key, known_hosts, *(path for host in hosts for path in (*host.identities, *host.certificates))):
        if any(sign in str(path) for sign in '\n\r"'):
            raise ValueError(f"the path {str(path)!r} cannot be written into a configuration")
    if form == "ansible":
        return _ansible(fleet, hosts, key, known_hosts)
    if form == "ssh-config":
        return "\n".join(_ssh_block(fleet, host, key, known_hosts) for host in hosts)
    return _json(fleet, hosts, key, known_hosts)


def _ansible(fleet: str, hosts: Sequence[Host], key: Path, known_hosts: Path) -> str:
    lines = [f"# The hosts of the fleet {fleet}.", f"[{fleet.replace('-', '_')}]"]
    for host in hosts:
        keys = _keys(host, key)
        options = [*_identities(keys[1:]), *_options(host, known_hosts)]
        variables = {
            "ansible_host": host.address,
            "ansible_port": str(host.port),
            "ansible_user": host.user,
            "ansible_ssh_private_key_file": _escaped(keys[0]) if keys else "",
            "ansible_ssh_common_args": shlex.join(
                word for name, value in options for word in ("-o", f"{name}={value}")
            ),
            "ansible_python_interpreter": host.python,
        }
        for value in variables.values():
            if any(sign in value for sign in ("{{", "{%", "{#")):
                raise ValueError(f"Ansible would expand {value!r} as a template")
        lines.append(
            " ".join([host.name, *(f"{name}={_ini_value(value)}" for name, value in variables.items() if value)])
        )
    return "\n".join(lines) + "\n"


def _ini_value(text: str) -> str:
    """Return a host variable's value in INI form; a value that reads as a number or a list is quoted twice."""
    if text.isascii() and text.isdigit() and not text.startswith("0"):
        return text
    value = text if literal(text) is text else repr(text)
    if "'" not in value:
        return shlex.quote(value)
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _ssh_block(fleet: str, host: Host, key: Path, known_hosts: Path) -> str:
    lines = [
        ("HostName", host.address),
        ("Port", str(host.port)),
        ("User", host.user),
        *_identities(_keys(host, key)),
        *_options(host, known_hosts),
    ]
    return "\n".join([f"Host {fleet}-{host.name}", *(f"    {name} {value}" for name, value in lines)]) + "\n"


def _keys(host: Host, key: Path) -> list[str]:
    return list(host.identities) if host.identities or host.agent else [str(key)]


def _identities(keys: Sequence[str]) -> list[tuple[str, str]]:
    return [("IdentityFile", quoted_path(path)) for path in keys]


def _options(host: Host, known_hosts: Path) -> list[tuple[str, str]]:
    """Return the ssh_config options that authenticate host and user, and set the route."""
    options = [
        *(("CertificateFile", quoted_path(path)) for path in host.certificates),
        ("IdentityAgent", quoted_path(host.agent) if host.agent else ""),
        ("IdentitiesOnly", "no" if host.agent and not host.identities_only else "yes"),
        ("UserKnownHostsFile", quoted_path(str(known_hosts))),
        ("StrictHostKeyChecking", "yes"),
        ("HostKeyAlias", host.key_alias),
        ("ProxyCommand", _escaped(shlex.join(host.proxy))),
    ]
    return [(name, value) for name, value in options if value]


def _escaped(text: str) -> str:
    """Return `text` with the % signs escaped for ssh."""
    return text.replace("%", "%%")


def _json(fleet: str, hosts: Sequence[Host], key: Path, known_hosts: Path) -> str:
    content = {
        "version": VERSION,
        "fleet": fleet,
        "key": str(key),
        "known_hosts": str(known_hosts),
        "hosts": [asdict(host) for host in hosts],
    }
    return json.dumps(content, indent=2) + "\n"
