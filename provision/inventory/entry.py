"""A host as described by the variables of an inventory.

Variables that decide how a host is reached are applied or refused. Ansible's tuning variables are ignored. All other
variables belong to the user.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from provision.bounds import check_text
from provision.inventory.files import InventoryError, Location
from provision.inventory.groups import CONNECTION, Settings
from provision.inventory.names import is_host_name
from provision.inventory.yaml import VAULT
from provision.ssh_config.arguments import ssh_option, ssh_words

_SUPPORTED = {
    "ansible_connection": (
        ("ssh", "smart", "paramiko", "paramiko_ssh", "ansible.builtin.ssh", "ansible.builtin.paramiko_ssh"),
        "only SSH is",
    ),
    "ansible_shell_type": (("sh",), "a POSIX shell is required"),
}
_PASSWORD = re.compile(r"ansible_((ssh_)?pass(word)?|(ssh_)?private_key_passphrase|ssh_private_key)")
_TUNING = re.compile(
    r"ansible_ssh_(control_path(_dir)?|host_key_checking|pipelining|(reconnection_)?retries|timeout|transfer_method"
    r"|use_tty|verbosity)"
)
_DISCOVERED = ("auto", "auto_silent", "auto_legacy", "auto_legacy_silent")
_USER = re.compile(r"[\w][\w.@+\\$-]*")
_FLAGS = {
    **dict.fromkeys(("true", "yes", "on", "y", "t", "1"), True),
    **dict.fromkeys(("false", "no", "off", "n", "f", "0"), False),
}


@dataclass(frozen=True)
class Entry:
    """A host as the inventory describes it.

    Attributes:
        name: Its name in the inventory.
        address: Address that SSH connects to, or a name that DNS or the user's SSH configuration resolves.
        options: Options for ssh, such as port, user, and keys, valid in every working directory.
        python: Interpreter for the user's script; empty: detected on the host.
        groups: Groups that contain it, directly or not, by name; without ``all``.
        variables: All variables of the host; some may be the user's. Templates are text, and an encrypted value is
            a mapping with the key ``__ansible_vault``.
    """

    name: str
    address: str
    options: tuple[str, ...] = ()
    python: str = ""
    groups: tuple[str, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)

    @property
    def keys(self) -> list[str]:
        """Return the private keys that the options name, in their order."""
        words = [f"identityfile={word}" if before == "-i" else word for before, word in pairwise(self.options)]
        return [shlex.split(word.partition("=")[2])[0] for word in words if word.startswith("identityfile=")]


def entry(name: str, settings: Settings, groups: tuple[str, ...]) -> Entry:
    """Return the host `name` with these variables.

    Raises:
        InventoryError: a variable is not supported or malformed.
    """
    host = _Host(name, settings)
    host.refuse()
    address = host.text("ansible_host", "ansible_ssh_host")
    if address and not is_host_name(address):
        hint = f"set ansible_user={address.partition('@')[0]} instead" if "@" in address else ""
        raise host.error(
            f"invalid address {address!r} of host {name!r}", "ansible_host", "ansible_ssh_host", hint=hint
        )
    return Entry(
        name=name,
        address=address or name,
        options=tuple(host.options()),
        python=host.python(),
        groups=groups,
        variables={variable: setting.value for variable, setting in settings.items()},
    )


class _Host:
    """Reads the variables of one host."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings

    def error(self, message: str, *variables: str, hint: str = "") -> InventoryError:
        """Return the error about the first of `variables` that is set."""
        return InventoryError(message, location=self._location(*variables), hint=hint)

    def text(self, *variables: str) -> str:
        """Return the value of a variable that has several names; empty if it is unset.

        Raises:
            InventoryError: it is not text, or two of its names have different values.
        """
        values = {variable: value for variable in variables if (value := self._text(variable))}
        if len(set(values.values())) > 1:
            assignments = (f"{name}={value} ({self._location(name)})" for name, value in values.items())
            message = f"host {self._name!r} has contradictory values: {' and '.join(assignments)}"
            raise self.error(message, *values, hint=f"keep {next(iter(values))}")
        return next(iter(values.values()), "")

    def options(self) -> list[str]:
        """Return the ssh options in the order in which Ansible passes them.

        Raises:
            InventoryError: an option is not supported.
        """
        words = self._words("ansible_ssh_args")
        if self._flag("ansible_ssh_host_key_checking", "ansible_host_key_checking") is False:
            words += ("-o", "stricthostkeychecking=no")
        port = self.text("ansible_port", "ansible_ssh_port")
        if port:
            if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65535):
                message = f"invalid SSH port {port!r} of host {self._name!r}; expected a number from 1 to 65535"
                raise self.error(message, "ansible_port", "ansible_ssh_port")
            words += ("-o", f"port={port}")
        key = self.text("ansible_private_key_file", "ansible_ssh_private_key_file")
        words += ssh_option("identityfile", key) if key else ()
        user = self.text("ansible_user", "ansible_ssh_user")
        if user and not _USER.fullmatch(user):
            message = f"invalid login name {user!r} of host {self._name!r}"
            raise self.error(message, "ansible_user", "ansible_ssh_user")
        words += ("-o", f"user={user}") if user else ()
        return [*words, *self._words("ansible_ssh_common_args"), *self._words("ansible_ssh_extra_args")]

    def python(self) -> str:
        """Return the interpreter for the user's script; empty: detected on the host.

        Raises:
            InventoryError: it is a command, not a path.
        """
        python = self.text("ansible_python_interpreter")
        words = python.split()
        if len(words) > 1 and (not python.startswith(("/", "~")) or words[0].endswith("/env")):
            message = f"ansible_python_interpreter of host {self._name!r} must be one word"
            hint = "write the path of the interpreter, e.g. /usr/bin/python3"
            raise self.error(message, "ansible_python_interpreter", hint=hint)
        return "" if python in _DISCOVERED else python

    def refuse(self) -> None:
        """Raise InventoryError for the first variable that is not supported."""
        for variable, (supported, reason) in _SUPPORTED.items():
            value = self.text(variable)
            if value and value not in supported:
                hint = f"exclude the host with --limit '!{self._name}'"
                if value in ("local", "ansible.builtin.local"):
                    hint = "for workers on this computer: fleet up --provider local"
                message = f"{variable}={value} of host {self._name!r} is not supported; {reason}"
                raise self.error(message, variable, hint=hint)
        for variable, setting in self._settings.items():
            if setting.value in (None, ""):
                continue
            subject = f"{variable} of host {self._name!r} is not supported"
            if _PASSWORD.fullmatch(variable):
                hint = f"install a key with ssh-copy-id {self._name}, and remove {variable}"
                raise self.error(f"{subject}; only key files and the SSH agent are", variable, hint=hint)
            if variable.startswith(("ansible_ssh_", "ansible_paramiko_")) and not (
                CONNECTION.fullmatch(variable) or _TUNING.fullmatch(variable)
            ):
                raise self.error(subject, variable)
        user = self.text("ansible_become_user")
        login = self.text("ansible_user", "ansible_ssh_user")
        if self._flag("ansible_become") and user not in ("", "root", login):
            message = (
                f"ansible_become_user={user} of host {self._name!r} is not supported: tasks run as the login user"
            )
            raise self.error(message, "ansible_become_user", hint=f"log in as {user}: ansible_user={user}")

    def _location(self, *variables: str) -> Location | None:
        return next((self._settings[variable].location for variable in variables if variable in self._settings), None)

    def _words(self, variable: str) -> list[str]:
        try:
            return ssh_words(self.text(variable))
        except ValueError as error:
            hint = "remove it, or set it in ~/.ssh/config for this host"
            raise self.error(f"{variable} of host {self._name!r}: {error}", variable, hint=hint) from None

    def _flag(self, *variables: str) -> bool | None:
        text = self.text(*variables).lower()
        if text and text not in _FLAGS:
            raise self.error(f"{variables[0]}={text} is not yes or no", *variables)
        return _FLAGS.get(text)

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
            raise self.error(f"{owner} is encrypted by ansible-vault", variable)
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            message = f"{owner} is a template, which is not supported: {value}"
            raise self.error(message, variable, hint="write the value")
        if not isinstance(value, (str, int)):
            message = f"{owner} must be text or a whole number, not {value!r}"
            raise self.error(message, variable, hint="quote it; INI requires two kinds of quotes: \"'1.10'\"")
        try:
            return check_text(str(value).strip())
        except ValueError as error:  # raised by str, too, for a number with thousands of digits
            raise self.error(f"{owner}: {error}", variable, hint="correct the value") from None
