"""Settings of a fleet: from the command line, the environment, and a file called fleet.toml.

inventories/fleet.gce.toml, fleet.local.toml and fleet.static.toml show every key of the file.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fleet.errors import UsageError, translate_errors
from provision.bounds import CpuLimitError, check_text, limit_cpu
from provision.options import COUNT, TEXT, TEXTS, Kind, Option, declarations
from provision.options import FILE as FILE_CONTENT
from provision.registry import NAMES, UnknownProviderError, options_class
from provision.ssh_config.programs import require_ownership
from train.script.package_index import check_index_url, check_proxy_url, pip_source

if TYPE_CHECKING:
    from provision.model import FleetSpec
    from train.agent.protocol.records import PipSource

FILE = "fleet.toml"
NAME_VARIABLE = "FLEET_NAME"
_SIZE_MAX = 1 << 16
_WORD_MAX = 60  # characters of a key in a message
_READ_S = 2.0  # of CPU time

Values = Mapping[str, Mapping[str, Any]]
"""Options of providers: by provider, by field of its options."""


@dataclass(frozen=True)
class Settings:
    """Settings of a fleet; None: not set.

    Attributes:
        name: Name of the fleet.
        provider: Provider of its hosts.
        workers: Number of hosts.
        python: Interpreter for the script on the hosts.
        packages: Requirements to install on the hosts.
        index_url: URL of the index for pip on the hosts.
        pip_proxy: URL of the proxy for pip on the hosts.
        options: Options of each provider. An option of several providers is set for each of them.
        train: Values of options of ``fleet train`` by their names without dashes, unchecked.
        file: The fleet.toml; None: none.
    """

    name: str | None = None
    provider: str | None = None
    workers: int | None = None
    python: str | None = None
    packages: tuple[str, ...] | None = None
    index_url: str | None = None
    pip_proxy: str | None = None
    options: Values = dataclasses.field(default_factory=dict)
    train: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    file: Path | None = dataclasses.field(default=None, compare=False)

    def over(self, others: Settings) -> Settings:
        """Return these settings, completed by `others`."""
        given = {key: value for key, value in vars(self).items() if value is not None and key != "train"}
        options = {name: {**others.of(name), **self.of(name)} for name in {**others.options, **self.options}}
        return dataclasses.replace(others, **{**given, "options": options})

    def of(self, provider: str) -> Mapping[str, Any]:
        """Return the options of a provider, by field."""
        return self.options.get(provider, {})

    @property
    def exclusive(self) -> dict[str, list[str]]:
        """Return the names of the options that are set and that only one provider has, by this provider."""
        alone = {provider: exclusive_names(provider, self.options) for provider in self.options}
        given = {provider: map(option_names(provider).get, values) for provider, values in self.options.items()}
        return {
            provider: exclusive
            for provider, names in given.items()
            if (exclusive := [name for name in names if name in alone[provider]])
        }


def option_names(provider: str) -> dict[str, str]:
    """Return the names of the options of a provider, by field."""
    return {field: declared.name for field, declared in declarations(options_class(provider)).items()}


def exclusive_names(provider: str, others: Iterable[str] = ()) -> set[str]:
    """Return the names of the options that only this provider has, among those of this package and `others`."""
    shared = {name for other in {*NAMES, *others} - {provider} for name in option_names(other).values()}
    return set(option_names(provider).values()) - shared


def read_environment(environ: Mapping[str, str], provider: str | None = None) -> Settings:
    """Return the settings of the environment, without the name of the fleet, which is a default of an option.

    Args:
        environ: The environment.
        provider: Provider of another package to include.
    """
    options: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys((*NAMES, *([provider] if provider else ()))):
        for field, declared in (_keys(name) or {}).values():
            value = next((environ[variable] for variable in declared.variables if environ.get(variable)), None)
            if value is not None:
                options.setdefault(name, {})[field] = value
    return Settings(options=options)


def read_pip_source(spec: FleetSpec) -> PipSource:
    """Return the index and the proxy of a fleet for pip, with logins from the environment of this program.

    Raises:
        UsageError: a variable for a login is not set.
    """
    with translate_errors():
        return pip_source(spec.index_url, spec.pip_proxy, os.environ)


def find(directory: Path) -> Path | None:
    """Return the fleet.toml of `directory` or of the nearest directory above it; None if there is none."""
    return next((path for parent in (directory, *directory.parents) if (path := parent / FILE).is_file()), None)


def load(path: Path) -> Settings:
    """Return the settings of a file.

    If it names no provider, an option that only one provider has selects it, unless others select another one; else
    the only table selects it. Paths are relative to the file's directory.

    Raises:
        UsageError: others can change it, it cannot be read, is not TOML, or has an unknown key or an invalid value.
    """
    with translate_errors():
        require_ownership(path)
    fields: dict[str, Any] = {}
    options: dict[str, dict[str, Any]] = {}
    tables = _tables(path)
    train = tables.pop(_TRAIN, {})
    if not isinstance(train, dict):
        raise _not_a_table(path, _TRAIN)
    for name, table in tables.items():
        keys = _keys(name)
        if keys is None and isinstance(table, dict):
            raise _unknown_error(f"{path}: unknown table [{name[:_WORD_MAX]}]", name, (*list_keys(), _TRAIN))
        if keys is None:
            where = f"{path}: key {name[:_WORD_MAX]!r} is not in a table"
            raise UsageError(where, hint="write it below [fleet] or [gce]")
        if not isinstance(table, dict):
            raise _not_a_table(path, name)
        values = fields if name == _FLEET else options.setdefault(name, {})
        for key, value in table.items():
            if key not in keys:
                raise _unknown_error(f"{path}: unknown key {key[:_WORD_MAX]!r} in [{name}]", key, keys)
            field, declared = keys[key]
            if declared.kind is FILE_CONTENT:
                _value(f"{path}: {key} in [{name}]", partial(_check_file, path.parent), value)
            values[field] = _value(f"{path}: {key} in [{name}]", partial(declared.read, directory=path.parent), value)
    settings = Settings(**fields, options=options, train=train, file=path)
    providers = [settings.provider] if settings.provider else list(settings.exclusive or filter(options.get, options))
    return dataclasses.replace(settings, provider=providers[0] if len(providers) == 1 else None)


def _not_a_table(path: Path, name: str) -> UsageError:
    return UsageError(f"{path}: {name} must be a table", hint=f"write [{name}] on a line of its own")


def _tables(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        with path.open("rb") as file:
            content = file.read(_SIZE_MAX + 1)
        if len(content) > _SIZE_MAX:
            raise UsageError(f"{path} is larger than {_SIZE_MAX >> 10} KiB", hint="check the file")
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        with limit_cpu(_READ_S):
            tables: dict[str, Any] = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply", hint="correct the file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read", cause=reason or "", hint="check the file") from error
    except (ValueError, CpuLimitError) as error:  # a number with 5,000 digits is a ValueError
        raise UsageError(f"{path} is not valid TOML", cause=str(error), hint="fix the syntax") from error
    return tables


def _unknown_error(message: str, word: str, valid: Collection[str]) -> UsageError:
    from difflib import get_close_matches

    meant = get_close_matches(word[:_WORD_MAX], valid, n=1)
    return UsageError(
        message,
        cause=f"valid keys: {', '.join(valid)}" if valid else "",
        hint=f"did you mean {meant[0]}?" if meant else "remove it",
    )


def _value(where: str, read: Callable[[Any], Any], value: Any) -> Any:
    try:
        with translate_errors():
            return read(value)
    except ValueError as error:
        reason = str(error)
        separator = " " if reason.startswith("must") else ": "
        raise UsageError(f"{where}{separator}{reason}", hint="correct the value") from None


def _check_file(directory: Path, value: Any) -> None:
    require_ownership(directory / Path(check_text(TEXT.read(value))).expanduser())


_FLEET = "fleet"
_TRAIN = "train"  # the command line knows its keys

_GENERAL = {
    "name": Option(TEXT, "name"),
    "provider": Option(TEXT, "provider"),
    "workers": Option(COUNT, "workers"),
    "python": Option(TEXT, "python"),
    "packages": Option(TEXTS, "packages"),
    "index_url": Option(Kind(lambda value: check_index_url(TEXT.read(value))), "index-url"),
    "pip_proxy": Option(Kind(lambda value: check_proxy_url(TEXT.read(value))), "pip-proxy"),
}


def _keys(table: str) -> dict[str, tuple[str, Option]] | None:
    """Return fields and options by the keys of a table; None if the table does not exist."""
    if table == _FLEET:
        fields = _GENERAL
    else:
        try:
            fields = declarations(options_class(table))
        except UnknownProviderError:
            return None
    return {declared.key: (field, declared) for field, declared in fields.items()}


def list_keys() -> dict[str, tuple[str, ...]]:
    """Return every key of a fleet.toml, by table; the tables of providers of other packages are left out."""
    return {name: tuple(keys) for name in (_FLEET, *NAMES) if (keys := _keys(name))}
