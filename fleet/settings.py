"""What is said of a fleet, and where: on the command line, in the environment, in a file called fleet.toml.

inventories/fleet.gce.toml, fleet.local.toml and fleet.static.toml beside it show every key of the file.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from fleet.durations import seconds
from fleet.errors import UsageError

FILE = "fleet.toml"
PROJECT_VARIABLES = ("FLEET_GCE_PROJECT", "GOOGLE_CLOUD_PROJECT")
ENDPOINT_VARIABLE = "FLEET_GCE_ENDPOINT"


@dataclass(frozen=True)
class Settings:
    """Settings of a fleet; None: not set.

    Attributes:
        name: Of the fleet.
        provider: Where its hosts come from.
        workers: How many.
        python: Interpreter for the script on the hosts.
        packages: Requirements that are installed on the hosts.
        inventory: Absolute path of the file that names the hosts.
        limit: Which of them.
        gpu: GPUs of each worker, ``t4`` or ``t4:2``.
        external: Whether instances have external addresses.

    The other attributes are those of provision.model.CloudSpec.
    """

    name: str | None = None
    provider: str | None = None
    workers: int | None = None
    python: str | None = None
    packages: tuple[str, ...] | None = None
    inventory: str | None = None
    limit: str | None = None
    project: str | None = None
    endpoint: str | None = None
    zones: tuple[str, ...] | None = None
    gpu: str | None = None
    machine_type: str | None = None
    spot: bool | None = None
    max_duration_s: int | None = None
    image: str | None = None
    disk_gb: int | None = None
    disk_type: str | None = None
    network: str | None = None
    subnetwork: str | None = None
    firewall: bool | None = None
    external: bool | None = None
    ssh_from: tuple[str, ...] | None = None
    ssh_user: str | None = None
    ssh_port: int | None = None
    scopes: tuple[str, ...] | None = None
    service_account: str | None = None

    def over(self, others: Settings) -> Settings:
        """Return these settings, completed by `others`."""
        return dataclasses.replace(others, **self.said())

    def said(self) -> dict[str, Any]:
        """Those that are not None, by name."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def cloud(self) -> dict[str, Any]:
        """Those for an instance of a cloud, by name."""
        return {key: value for key, value in self.said().items() if key not in _OF_ANY_FLEET}

    @property
    def wants_cloud(self) -> bool:
        """True if a setting requires rented instances: a GPU, machine type, zone, Spot, or project."""
        return bool(self.gpu or self.machine_type or self.zones or self.spot or self.project)


_OF_ANY_FLEET = ("name", "provider", "workers", "python", "packages", "inventory", "limit")


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Return the settings of the environment, without the name of the fleet."""
    projects = [environ[name] for name in PROJECT_VARIABLES if environ.get(name)]
    return Settings(project=projects[0] if projects else None, endpoint=environ.get(ENDPOINT_VARIABLE) or None)


def find(directory: Path) -> Path | None:
    """Return the fleet.toml of `directory` or its nearest parent; None if there is none."""
    return next((path for place in (directory, *directory.parents) if (path := place / FILE).is_file()), None)


def load(path: Path) -> Settings:
    """Return the settings of a file.

    Where it names no provider but settings that only a cloud has, it means Compute Engine; with an inventory, hosts
    that exist already. The path of that counts from the file's directory.

    Raises:
        UsageError: it cannot be read, is no TOML, or has an unknown key or a value of another type.
    """
    found: dict[str, Any] = {}
    for name, table in _tables(path).items():
        keys = _TABLES.get(name)
        if keys is None:
            raise _unknown(f"{path}: unknown table [{name}]", name, _TABLES)
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is a table", hint=f"write [{name}] on a line of its own")
        for key, value in table.items():
            if key not in keys:
                raise _unknown(f"{path}: unknown key {key!r} in [{name}]", key, keys)
            found[keys[key].field] = _value(f"{path}: {key} in [{name}]", keys[key], value)
    settings = Settings(**found)
    if settings.inventory:
        settings = dataclasses.replace(settings, inventory=absolute(settings.inventory, path.parent))
    implied = "gce" if settings.wants_cloud else "static" if settings.inventory else None
    return dataclasses.replace(settings, provider=settings.provider or implied)


def absolute(path: str, directory: Path) -> str:
    """Return an absolute path; a relative one starts at `directory`."""
    return str((directory / Path(path).expanduser()).absolute())


def _tables(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        tables: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML", cause=str(error), hint="fix the syntax") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read", cause=reason or "", hint="check the file") from error
    return tables


def _unknown(message: str, word: str, known: Mapping[str, Any]) -> UsageError:
    from difflib import get_close_matches

    meant = get_close_matches(word, known, n=1)
    return UsageError(
        message,
        cause=f"valid keys: {', '.join(known)}",
        hint=f"did you mean {meant[0]}?" if meant else "remove it",
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string in quotes")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('must be a list of strings, for example ["one", "two"]')
    return tuple(value)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    return value


def _yes_or_no(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _no_or_yes(value: Any) -> bool:
    return not _yes_or_no(value)


def _duration_s(value: Any) -> int:
    if isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return round(seconds(str(value)))
    raise ValueError('must be a duration, for example "8h"')


def _endpoint(value: Any) -> str:
    """Check that a URL from a file may receive credentials; the file may be another user's.

    Raises:
        ValueError: it leads neither to Google nor to this computer.
    """
    host = urlsplit(_text(value)).hostname or ""
    if not (host == "localhost" or _is_loopback(host) or f".{host}".endswith(".googleapis.com")):
        raise ValueError(
            f"must be a googleapis.com or loopback URL; set any other with the variable {ENDPOINT_VARIABLE}"
        )
    return str(value)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Key(NamedTuple):
    field: str
    read: Callable[[Any], Any]


def _value(where: str, key: _Key, value: Any) -> Any:
    try:
        return key.read(value)
    except ValueError as error:
        reason = str(error)
        separator = " " if reason.startswith("must") else ": "
        raise UsageError(f"{where}{separator}{reason}", hint="correct the value") from None


_TABLES: dict[str, dict[str, _Key]] = {
    "fleet": {
        "name": _Key("name", _text),
        "provider": _Key("provider", _text),
        "workers": _Key("workers", _whole),
        "python": _Key("python", _text),
        "packages": _Key("packages", _texts),
        "inventory": _Key("inventory", _text),
        "limit": _Key("limit", _text),
    },
    "gce": {
        "project": _Key("project", _text),
        "endpoint": _Key("endpoint", _endpoint),
        "zones": _Key("zones", _texts),
        "gpu": _Key("gpu", _text),
        "machine-type": _Key("machine_type", _text),
        "spot": _Key("spot", _yes_or_no),
        "max-duration": _Key("max_duration_s", _duration_s),
        "image": _Key("image", _text),
        "disk-size": _Key("disk_gb", _whole),
        "disk-type": _Key("disk_type", _text),
        "network": _Key("network", _text),
        "subnet": _Key("subnetwork", _text),
        "firewall": _Key("firewall", _yes_or_no),
        "iap": _Key("external", _no_or_yes),
        "ssh-from": _Key("ssh_from", _texts),
        "ssh-user": _Key("ssh_user", _text),
        "ssh-port": _Key("ssh_port", _whole),
        "scopes": _Key("scopes", _texts),
        "service-account": _Key("service_account", _text),
    },
}


def known_keys() -> dict[str, tuple[str, ...]]:
    """Every key of a fleet.toml, by table."""
    return {name: tuple(keys) for name, keys in _TABLES.items()}
