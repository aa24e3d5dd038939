"""A host as described by the variables of an inventory.

Variables that decide how a host is reached are applied or refused. Ansible's tuning variables are ignored. All other
variables belong to the user.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from provision.bounds import check_text
from provision.inventory.ansible.groups import CONNECTION, Settings
from provision.inventory.ansible.ranges import is_host_name
from provision.inventory.ansible.yaml_text import VAULT
from provision.inventory.errors import InventoryError, Location
from provision.ssh_config.arguments import SshOptions, ssh_path

_SSH = ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh")
_PASSWORDS = frozenset(
    {
        "ansible_password",
        "ansible_ssh_pass",
        "ansible_ssh_password",
        "ansible_private_key_passphrase",
        "ansible_ssh_private_key",
        "ansible_ssh_private_key_passphrase",
    }
)
_HONOURED = CONNECTION | {"ansible_ssh_host_key_checking"}
_TUNING = frozenset(
    {
        "ansible_ssh_control_path",
        "ansible_ssh_control_path_dir",
        "ansible_ssh_pipelining",
        "ansible_ssh_reconnection_retries",
        "ansible_ssh_retries",
        "ansible_ssh_timeout",
        "ansible_ssh_transfer_method",
        "ansible_ssh_use_tty",
        "ansible_ssh_verbosity",
    }
)
_DISCOVERED = ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent")
_USER = re.compile(r"[\w][\w.@+\\$-]*")
_TRUE = ("true", "yes", "on", "y", "t", "1")
_FALSE = ("false", "no", "off", "n", "f", "0")


@dataclass(frozen=True)
class Entry:
    """A host as the inventory describes it.

    Attributes:
        name: Its name in the inventory.
        address: Address that SSH connects to, or a name that DNS or the user's SSH configuration resolves.
        ssh: Options for ssh, such as port, user, and keys.
        python: Interpreter for the user's script; empty: detected on the host.
        groups: Groups that contain it, directly or not, by name; without ``all``.
        variables: All variables of the host; some may be the user's. Templates are text, and an encrypted value is
            a mapping with the key ``__ansible_vault``.
    """

    name: str
    address: str
    ssh: SshOptions = dataclasses.field(default_factory=SshOptions)
    python: str = ""
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def port(self) -> int:
        """Return the TCP port of SSH; 0: unset."""
        return int(self.ssh.values.get("port", "0"))

    @property
    def user(self) -> str:
        """Return the login name; empty: unset."""
        return self.ssh.values.get("user", "")


def entry(name: str, settings: Settings, groups: tuple[str, ...]) -> Entry:
    """Return the host `name` with these variables.

    Raises:
        InventoryError: a variable is not supported or malformed.
    """
    reading = _Reading(name, settings)
    reading.refuse()
    options = reading.options()
    address, location = reading.text("ansible_host", "ansible_ssh_host")
    if address and not is_host_name(address):
        hint = f"set ansible_user={address.partition('@')[0]} instead" if "@" in address else ""
        raise InventoryError(f"invalid address {address!r} of host {name!r}", location=location, hint=hint)
    return Entry(
        name=name,
        address=address or name,
        ssh=options,
        python=reading.python(),
        groups=groups,
        variables={variable: setting.value for variable, setting in settings.items()},
    )


class _Reading:
    """Reads the variables of one host."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings

    def location(self, *variables: str) -> Location | None:
        """Return the location at which the first of `variables` that is set was set."""
        return next((self._settings[variable].location for variable in variables if variable in self._settings), None)

    def text(self, *variables: str) -> tuple[str, Location | None]:
        """Return the value and the location of a variable that has several names; empty if it is unset.

        Raises:
            InventoryError: it is not text, or two of its names have different values.
        """
        values: dict[str, str] = {}
        for variable in variables:
            value = self._text(variable)
            if value:
                values[variable] = value
        if len(set(values.values())) > 1:
            assignments = " and ".join(
                f"{variable}={value} ({self._settings[variable].location})" for variable, value in values.items()
            )
            raise InventoryError(
                f"host {self._name!r} has contradictory values: {assignments}",
                location=self.location(*values),
                hint=f"keep {next(iter(values))}",
            )
        return next(iter(values.values()), ""), self.location(*values)

    def options(self) -> SshOptions:
        """Return the ssh options in the order in which Ansible passes them.

        Raises:
            InventoryError: an option is not supported.
        """
        options = SshOptions()
        self._read(options, "ansible_ssh_args")
        checking, _ = self.text("ansible_ssh_host_key_checking", "ansible_host_key_checking")
        if checking and self._flag("ansible_ssh_host_key_checking", checking) is False:
            options.add("stricthostkeychecking", "no")
        self._set_port(options)
        key, location = self.text("ansible_private_key_file", "ansible_ssh_private_key_file")
        if key:
            try:
                options.keys.append(ssh_path(key))
            except ValueError as error:
                raise InventoryError(str(error), location=location) from None
        user, location = self.text("ansible_user", "ansible_ssh_user")
        if user:
            options.values.setdefault("user", user)
        self._read(options, "ansible_ssh_common_args")
        self._read(options, "ansible_ssh_extra_args")
        self._check(options)
        return options

    def python(self) -> str:
        """Return the interpreter for the user's script; empty: detected on the host.

        Raises:
            InventoryError: it is a command, not a path.
        """
        python, location = self.text("ansible_python_interpreter")
        words = python.split()
        if len(words) > 1 and (not python.startswith(("/", "~")) or words[0].endswith("/env")):
            raise InventoryError(
                f"ansible_python_interpreter of host {self._name!r} must be one word",
                location=location,
                hint="write the path of the interpreter, e.g. /usr/bin/python3",
            )
        return "" if python in _DISCOVERED else python

    def refuse(self) -> None:
        """Raise InventoryError for the first variable that is not supported."""
        connection, location = self.text("ansible_connection")
        if connection and connection not in _SSH:
            step = "exclude the host with --limit '!" + self._name + "'"
            if connection in ("local", "ansible.builtin.local"):
                step = "for workers on this computer: fleet up --provider local"
            raise InventoryError(
                f"ansible_connection={connection} of host {self._name!r} is not supported; only SSH is",
                location=location,
                hint=step,
            )
        shell, location = self.text("ansible_shell_type")
        if shell not in ("", "sh"):
            raise InventoryError(
                f"ansible_shell_type={shell} of host {self._name!r} is not supported; a POSIX shell is required",
                location=location,
            )
        for variable, setting in self._settings.items():
            if setting.value not in (None, ""):
                self._refuse(variable, setting.location)
        self._refuse_become()

    def _refuse(self, variable: str, location: Location) -> None:
        if variable in _PASSWORDS:
            raise InventoryError(
                f"{variable} of host {self._name!r} is not supported; only key files and the SSH agent are",
                location=location,
                hint=f"install a key with ssh-copy-id {self._name}, and remove {variable}",
            )
        if variable.startswith(("ansible_ssh_", "ansible_paramiko_")) and variable not in _HONOURED | _TUNING:
            raise InventoryError(f"{variable} of host {self._name!r} is not supported", location=location)

    def _refuse_become(self) -> None:
        """Refuse other users than the login user: root is not needed, other users are not supported."""
        become, _ = self.text("ansible_become")
        user, location = self.text("ansible_become_user")
        if become and self._flag("ansible_become", become) and user not in ("", "root"):
            login, _ = self.text("ansible_user", "ansible_ssh_user")
            if user != login:
                raise InventoryError(
                    f"ansible_become_user={user} of host {self._name!r} is not supported: "
                    "tasks run as the login user",
                    location=location,
                    hint=f"log in as {user}: ansible_user={user}",
                )

    def _read(self, options: SshOptions, variable: str) -> None:
        text, location = self.text(variable)
        try:
            options.read(text)
        except ValueError as error:
            raise InventoryError(
                f"{variable} of host {self._name!r}: {error}",
                location=location,
                hint="remove it, or set it in ~/.ssh/config for this host",
            ) from None

    def _set_port(self, options: SshOptions) -> None:
        port, location = self.text("ansible_port", "ansible_ssh_port")
        if port:
            options.values.setdefault("port", port)
            _number(port, self._name, location)

    def _check(self, options: SshOptions) -> None:
        """Raise InventoryError if the port or the user is invalid."""
        location = self.location("ansible_ssh_args", "ansible_ssh_common_args", "ansible_ssh_extra_args")
        if "port" in options.values:
            _number(options.values["port"], self._name, self.location("ansible_port", "ansible_ssh_port") or location)
        user = options.values.get("user", "")
        if user and not _USER.fullmatch(user):
            raise InventoryError(
                f"invalid login name {user!r} of host {self._name!r}",
                location=self.location("ansible_user", "ansible_ssh_user") or location,
            )

    def _flag(self, variable: str, text: str) -> bool:
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise InventoryError(f"{variable}={text} is not yes or no", location=self.location(variable))

    def _text(self, variable: str) -> str:
        """Return the value of one variable as text; empty if it is unset.

        Raises:
            InventoryError: it is a template, encrypted, or not text.
        """
        setting = self._settings.get(variable)
        if setting is None or setting.value is None:
            return ""
        value, owner = setting.value, f"{variable} of host {self._name!r}"
        if isinstance(value, dict) and VAULT in value:
            raise InventoryError(f"{owner} is encrypted by ansible-vault", location=setting.location)
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            raise InventoryError(
                f"{owner} is a template, which is not supported: {value}",
                location=setting.location,
                hint="write the value",
            )
        if not isinstance(value, (str, int)):
            raise InventoryError(
                f"{owner} must be text or a whole number, not {value!r}",
                location=setting.location,
                hint="quote it; INI requires two kinds of quotes: \"'1.10'\"",
            )
        try:
            return check_text(str(value).strip())
        except ValueError as error:  # raised by str, too, for a number with thousands of digits
            raise InventoryError(f"{owner}: {error}", location=setting.location, hint="correct the value") from None


def _number(text: str, name: str, location: Location | None) -> None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise InventoryError(
            f"invalid SSH port {text!r} of host {name!r}; expected a number from 1 to 65535", location=location
        )
