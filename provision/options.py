"""Options and traits of a provider, declared once.

The fields of a `ProviderOptions` class are the options of ``fleet up`` and the keys of a table in fleet.toml. The
command line, the file, the comparison with a fleet that exists, and the documentation use the same declaration.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from provision.bounds import check_text
from provision.quantities import format_duration, format_money, read_duration

O = TypeVar("O", bound="ProviderOptions")  # noqa: E741

_METADATA = "option"
_USD_MAX = 1e6
_COUNT_MAX = 10**9


def _read_text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string in quotes")
    return value


def _read_texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError('must be a list of strings, e.g. ["one", "two"]')
    return tuple(value)


def _read_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError("must be a whole number")
    if abs(value) >= _COUNT_MAX:
        raise ValueError(f"must be a whole number below {_COUNT_MAX:,}")
    return value


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def _read_duration(value: Any) -> int:
    if isinstance(value, str) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return round(read_duration(str(value)))
    raise ValueError('must be a duration, e.g. "8h"')


def _read_money(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < _USD_MAX:
        return float(value)
    raise ValueError("must be an amount in US dollars, e.g. 5 or 7.50")


def _read_pairs(value: Any) -> tuple[str, ...]:
    if isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return tuple(f"{key}={item}" for key, item in value.items())
    raise ValueError('must be a table of strings, e.g. { key = "value" }')


def split_pair(text: str, name: str) -> tuple[str, str]:
    """Return key and value of ``KEY=VALUE``.

    Raises:
        InvalidOptionError: it has another form; `name` is the option.
    """
    key, separator, value = text.partition("=")
    if not separator:
        raise InvalidOptionError(f"{name} {text!r} does not have the form KEY=VALUE", {name: None})
    return key, value


def _show(value: Any) -> str:
    return str(value) or "the default"


class InvalidOptionError(ValueError):
    """A value is invalid, or contradicts others, and it is known what to do.

    Attributes:
        again: Options of ``fleet up`` to change before it is repeated (the value None removes an option); None: a
            repetition does not help.
        next_steps: Commands to run next.
    """

    def __init__(
        self,
        message: str,
        again: Mapping[str, str | bool | None] | None = None,
        next_steps: Sequence[Sequence[str]] = (),
    ) -> None:
        super().__init__(message)
        self.again = again
        self.next_steps = next_steps


@dataclass(frozen=True)
class Kind:
    """The type of a value.

    Attributes:
        read: Function that returns the value of a key of fleet.toml; it raises ValueError with a text that begins
            with "must".
        show: Function that returns the value as text for a message.
    """

    read: Callable[[Any], Any]
    show: Callable[[Any], str] = _show


TEXT = Kind(_read_text)
TEXTS = Kind(_read_texts, lambda value: ", ".join(value) or "the default")
COUNT = Kind(_read_count)
FLAG = Kind(_read_flag, lambda value: "yes" if value else "no")
DURATION = Kind(_read_duration, lambda value: format_duration(value) if value else "none")
MONEY = Kind(_read_money, lambda value: format_money(value) if value else "none")
PAIRS = Kind(_read_pairs, TEXTS.show)  # KEY=VALUE, repeatable; in fleet.toml a table
FILE = Kind(_read_text)  # a path like PATH; the value of the field is the text of the file
PATH = Kind(_read_text)  # relative to the working directory, in fleet.toml to the directory of the file


@dataclass(frozen=True)
class Option:
    """Declaration of an option.

    Attributes:
        kind: Type of its value.
        key: Key in the provider's table of fleet.toml, ``disk-size``.
        flags: Names on the command line, ``--inventory``, ``-i``; empty: ``--KEY`` or, for a flag,
            ``--KEY/--no-KEY``. Without `help`, the option is only in fleet.toml.
        metavar: Name of the value in the help.
        help: Help text, one or more sentences; the default is added to it.
        default: Text of the default for the help; empty: the default of the field.
        label: Noun for messages, ``disk size in GB``; empty: the words of the key.
        group: Title of the group in the help.
        rare: Only ``--help-all`` shows it.
        variables: Environment variables that set it; the first one that is set is used.
        fixed: It cannot change after the fleet is created.
        negated: The command line and fleet.toml give the opposite of the field: ``--iap`` is the opposite of
            `external`.
        overrides: If it is given on the command line, fleet.toml is ignored for this provider.
        scope: It selects the account. ``fleet gc`` and ``fleet doctor`` have it as well.
        check_file: Function that raises ValueError for a value that only the command line or environment may give.
    """

    kind: Kind
    key: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    help: str = ""
    default: str = ""
    label: str = ""
    group: str = ""
    rare: bool = False
    variables: tuple[str, ...] = ()
    fixed: bool = True
    negated: bool = False
    overrides: bool = False
    scope: bool = False
    check_file: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        negative = f"/--no-{self.key}" if self.kind is FLAG else ""
        if self.help and not self.flags:
            object.__setattr__(self, "flags", (f"--{self.key}{negative}",))
        if not self.label:
            object.__setattr__(self, "label", self.key.replace("-", " "))

    @property
    def name(self) -> str:
        """Return the name that messages use: the long form on the command line, or the key."""
        return next((flag.partition("/")[0] for flag in self.flags if flag.startswith("--")), self.key)

    def read(self, value: Any, directory: Path) -> Any:
        """Return the value of a key of fleet.toml.

        Args:
            value: Value as TOML returns it.
            directory: The directory of the file.

        Raises:
            ValueError: the value is invalid; the text begins with "must".
        """
        value = self.kind.read(value)
        if self.check_file is not None:
            self.check_file(value)
        return self.convert(value, directory)

    def convert(self, value: Any, directory: Path) -> Any:
        """Return the value of the field for a given value.

        Args:
            value: Value from the command line or fleet.toml.
            directory: Directory to which a path is relative.

        Raises:
            ValueError: it is too long, has control characters, or a file cannot be read.
        """
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str):
                check_text(text)
        if self.kind is PATH or (self.kind is FILE and value):
            path = (directory / Path(value).expanduser()).absolute()
            return _read_file(path) if self.kind is FILE else str(path)
        return not value if self.negated else value


def _read_file(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text") from None


def option(value: Any, kind: Kind, key: str, /, **rest: Any) -> Any:
    """Declare a field with this default as an option; `rest` has the other fields of `Option`."""
    return dataclasses.field(default=value, metadata={_METADATA: Option(kind, key, **rest)})


class PreemptionNotice(NamedTuple):
    """An HTTP server on which a provider announces that it is about to take a host, and when the jobs of a host end.

    The response is a JSON object; its keys below are paths, ``attributes/fleet-end-at``.

    Attributes:
        product: Product name of the provider's hosts in their DMI table.
        url: The object, ``http://ADDRESS/PATH``.
        variable: Environment variable of a host that replaces ADDRESS.
        headers: Headers of the request and of each valid response.
        value: Value of `key` when the host is about to be taken; case is ignored.
        wait: Query that delays the response until the value changes, with ``{etag}`` and ``{seconds}``; empty: the
            server does not support it.
        key: Key of the notice that the host is about to be taken.
        end_key: Key of the time by which all jobs of the host must have ended, in seconds since the epoch; 0: never.
    """

    product: str
    url: str
    variable: str
    headers: dict[str, str]
    value: str
    wait: str = ""
    key: str = ""
    end_key: str = ""


@dataclass(frozen=True)
class ProviderOptions:
    """Options of a fleet that belong to its provider, and traits of the provider.

    A provider derives a frozen dataclass from this class and declares its fields with `option`. The module of that
    class must be fast to import, because the command line needs it; the provider itself is imported when it is used.

    Attributes:
        implementation: The `Provider` class, ``package.module:Class``.
        title: Name of the provider in messages.
        rents: Instances cost money. The user is asked first, lost instances are replaced, TensorFlow is installed.
        existing: The hosts exist before and after the fleet. They are released: files of the fleet are deleted
            through SSH.
        resizable: ``fleet up --workers N`` can add hosts to a fleet and release them.
        remote: The hosts are other computers, on which packages can be installed.
        keeps_disks: Instances can be stopped, keep their files, and cost only their disks until they start again.
        preemption_notice: How the provider announces that it takes a host, which may belong to a fleet of another
            provider; None: it does not.
        gpus: GPUs that each host must have.
        spot: The provider may take instances back at any time.
        max_cost_usd: Limit of the cost of a fleet, from its creation to its deletion; 0: none.
        idle_timeout_s: Time without activity after which the hosts power off; 0: never.
    """

    implementation: ClassVar[str] = ""
    title: ClassVar[str] = ""
    rents: ClassVar[bool] = False
    existing: ClassVar[bool] = False
    resizable: ClassVar[bool] = True
    remote: ClassVar[bool] = True
    keeps_disks: ClassVar[bool] = False
    preemption_notice: ClassVar[PreemptionNotice | None] = None

    gpus: int = 0
    spot: bool = False
    max_cost_usd: float = 0.0
    idle_timeout_s: int = 0

    @classmethod
    def of(cls: type[O], options: ProviderOptions) -> O:
        """Return the options of a fleet as options of this class.

        Raises:
            ValueError: they belong to another provider.
        """
        if not isinstance(options, cls):
            raise ValueError(f"options of {type(options).title or 'no provider'}, not of {cls.title}")
        return options

    @property
    def account(self) -> str:
        """Return the account that pays; empty: nothing is paid, or the account is unknown."""
        return ""

    @property
    def is_extendable(self) -> bool:
        """Return whether the lifetime of the hosts can begin again."""
        return True

    def scope(self: O) -> O:
        """Return options that have only the account set, so that all fleets of an account have equal options."""
        names = [name for name, declared in declarations(type(self)).items() if declared.scope]
        return type(self)(**{name: getattr(self, name) for name in names})

    @property
    def variables(self) -> Mapping[str, str]:
        """Return environment variables of all jobs of the fleet."""
        return {}

    @property
    def root_scripts(self) -> Mapping[str, str]:
        """Return the name of the result of each script that root runs before packages are installed, by its option.

        The name is the SHA-256 of the script, or a fixed one.
        """
        return {}

    @property
    def lost_at_stop(self) -> str:
        """Return files that a stop of the hosts loses, as the subject of a sentence; empty: none."""
        return ""

    def conflicts(self, existing: ProviderOptions) -> list[str]:
        """Return a clause for each option that cannot change and differs from that of an existing fleet."""
        clauses = []
        for name, declared in declarations(type(self)).items():
            requested, has = getattr(self, name), getattr(existing, name)
            if declared.fixed and requested != has:
                now, before = (
                    declared.kind.show(value != declared.negated if declared.negated else value)
                    for value in (requested, has)
                )
                clauses.append(f"{declared.label} {now} requested, the fleet has {before}")
        return clauses


def declarations(options: type[ProviderOptions]) -> dict[str, Option]:
    """Return the declared options of a provider, by field."""
    fields = {field.name: field for field in dataclasses.fields(options)}
    # Of each class before its bases; in `fields`, inherited fields that are declared again keep their place.
    order = [name for kind in options.__mro__ for name in vars(kind).get("__annotations__", ())]
    return {
        name: fields[name].metadata[_METADATA]
        for name in dict.fromkeys(order)
        if name in fields and _METADATA in fields[name].metadata
    }


def default_text(options: type[ProviderOptions], field: str) -> str:
    """Return the default of an option for its help; empty if the help need not show one."""
    declared = declarations(options)[field]
    default = next(item.default for item in dataclasses.fields(options) if item.name == field)
    if isinstance(default, bool) and declared.kind is FLAG:
        return declared.default or (declared.key if default is not declared.negated else f"no-{declared.key}")
    if declared.default or default in ("", (), 0):
        return declared.default
    return declared.kind.show(default)
