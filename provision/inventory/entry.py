"""A host as described by the variables of an inventory.

Variables that decide how a host is reached are applied or refused. Ansible's tuning variables are ignored. All other
variables belong to the user.
"""

from __future__ import annotations

import re
import reprlib
import shlex
from dataclasses import dataclass
from itertools import pairwise

from provision.bounds import check_text
from provision.inventory.files import InventoryError
from provision.inventory.groups import CONNECTION, Settings
from provision.inventory.names import is_host_name, is_port
from provision.inventory.yaml import VAULT
from provision.ssh_config.arguments import ssh_option, ssh_words

ADDRESS_VARIABLE = "fleet_private_address"

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
_ROUTE = re.compile(r"ansible_(ssh|paramiko)_")
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
        private_address: Address at which the other hosts reach it; empty: the host reports it.
        location: File and line that name it first.
    """

    name: str
    address: str
    options: tuple[str, ...] = ()
    python: str = ""
    private_address: str = ""
    location: str = ""

    @property
    def keys(self) -> list[str]:
        """Return the private keys that the options name, in their order."""
        words = [f"identityfile={word}" if before == "-i" else word for before, word in pairwise(self.options)]
        return [shlex.split(word.partition("=")[2])[0] for word in words if word.startswith("identityfile=")]


def entry(name: str, settings: Settings, location: str) -> Entry:
    """Return the host `name` with these variables.

    Raises:
        InventoryError: a variable is not supported or malformed.
    """
    host = _Host(name, settings)
    host.refuse()
    address, python = host.text("ansible_host", "ansible_ssh_host"), host.text("ansible_python_interpreter")
    if address and not is_host_name(address):
        hint = f"set ansible_user={address.partition('@')[0]} instead" if "@" in address else ""
        raise host.error("ansible_host", f"invalid address {address!r} of host {name!r}", hint)
    words = python.split()
    if len(words) > 1 and (not python.startswith(("/", "~")) or words[0].endswith("/env")):
        message = f"ansible_python_interpreter of host {name!r} must be one word"
        raise host.error("ansible_python_interpreter", message, "write the path, e.g. /usr/bin/python3")
    private_address = host.text(ADDRESS_VARIABLE)
    if private_address and not is_host_name(private_address):
        message = f"{ADDRESS_VARIABLE} of host {name!r} is not an address: {private_address!r}"
        raise host.error(ADDRESS_VARIABLE, message, "set the address at which the other hosts reach it")
    return Entry(
        name=name,
        address=address or name,
        options=tuple(host.options()),
        python="" if python in _DISCOVERED else python,
        private_address=private_address,
        location=location,
    )


class _Host:
    """Reads the variables of one host."""

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._settings = settings

    def error(self, variable: str, message: str, hint: str = "") -> InventoryError:
        """Return the error about a variable, which has this name or the old one."""
        old = variable.replace("ansible_", "ansible_ssh_", 1)
        setting = self._settings.get(variable) or self._settings.get(old)
        return InventoryError(message, setting.location if setting else "", hint=hint)

    def text(self, *variables: str) -> str:
        """Return the value of a variable that has several names; empty if it is unset.

        Raises:
            InventoryError: it is not text, or two of its names have different values.
        """
        values = {variable: value for variable in variables if (value := self._text(variable))}
        if len(set(values.values())) > 1:
            assignments = (f"{each}={value} ({self._settings[each].location})" for each, value in values.items())
            message = f"host {self._name!r} has contradictory values: {' and '.join(assignments)}"
            raise self.error(next(iter(values)), message, f"keep {next(iter(values))}")
        return next(iter(values.values()), "")

    def options(self) -> list[str]:
        """Return the ssh options in the order in which Ansible passes them.

        Raises:
            InventoryError: an option is not supported.
        """
        words = self._words("ansible_ssh_args")
        if self._flag("ansible_host_key_checking", "ansible_ssh_host_key_checking") is False:
            words += ("-o", "stricthostkeychecking=no")
        if port := self.text("ansible_port", "ansible_ssh_port"):
            if not is_port(port):
                message = f"invalid SSH port {port!r} of host {self._name!r}; expected a number from 1 to 65535"
                raise self.error("ansible_port", message)
            words += ("-o", f"port={port}")
        if key := self.text("ansible_private_key_file", "ansible_ssh_private_key_file"):
            words += ssh_option("identityfile", key)
        if user := self.text("ansible_user", "ansible_ssh_user"):
            if not _USER.fullmatch(user):
                raise self.error("ansible_user", f"invalid login name {user!r} of host {self._name!r}")
            words += ("-o", f"user={user}")
        return [*words, *self._words("ansible_ssh_common_args"), *self._words("ansible_ssh_extra_args")]

    def refuse(self) -> None:
        """Raise InventoryError for the first variable that is not supported."""
        for variable, (supported, reason) in _SUPPORTED.items():
            value = self.text(variable)
            if value and value not in supported:
                hint = f"exclude the host with --limit '!{self._name}'"
                if value in ("local", "ansible.builtin.local"):
                    hint = "for workers on this computer: fleet up --provider local"
                message = f"{variable}={value} of host {self._name!r} is not supported; {reason}"
                raise self.error(variable, message, hint)
        for variable, setting in self._settings.items():
            subject = f"{variable} of host {self._name!r} is not supported"
            if setting.value in (None, ""):
                continue
            if _PASSWORD.fullmatch(variable):
                hint = f"install a key with ssh-copy-id {self._name}, and remove {variable}"
                raise self.error(variable, f"{subject}; only key files and the SSH agent are", hint)
            if _ROUTE.match(variable) and not (CONNECTION.fullmatch(variable) or _TUNING.fullmatch(variable)):
                raise self.error(variable, subject)
        user = self.text("ansible_become_user")
        if self._flag("ansible_become") and user not in ("", "root", self.text("ansible_user", "ansible_ssh_user")):
            subject = f"ansible_become_user={user} of host {self._name!r} is not supported"
            message = f"{subject}: tasks run as the login user"
            raise self.error("ansible_become_user", message, f"log in as {user}: ansible_user={user}")

    def _words(self, variable: str) -> list[str]:
        try:
            return ssh_words(self.text(variable))
        except ValueError as error:
            hint = "remove it, or set it in ~/.ssh/config for this host"
            raise self.error(variable, f"{variable} of host {self._name!r}: {error}", hint) from None

    def _flag(self, *variables: str) -> bool | None:
        text = self.text(*variables).lower()
        if text and text not in _FLAGS:
            raise self.error(variables[0], f"{variables[0]}={text} is not yes or no")
        return _FLAGS.get(text)

    def _text(self, variable: str) -> str:
        """Return the value of one variable as text; empty if it is unset.

        Raises:
            InventoryError: it is a template, encrypted, or not text.
        """
        value, owner = None, f"{variable} of host {self._name!r}"
        if variable in self._settings:
            value = self._settings[variable].value
        if value is None:
            return ""
        if isinstance(value, dict) and VAULT in value:
            raise self.error(variable, f"{owner} is encrypted by ansible-vault")
        if isinstance(value, str) and ("{{" in value or "{%" in value):
            raise self.error(variable, f"{owner} is a template, which is not supported: {value}", "write the value")
        if not isinstance(value, (str, int)):
            message = f"{owner} must be text or a whole number, not {reprlib.repr(value)}"
            raise self.error(variable, message, "quote it; INI requires two kinds of quotes: \"'1.10'\"")
        try:
            return check_text(str(value).strip())
        except ValueError as error:  # raised by str, too, for a number with thousands of digits
            raise self.error(variable, f"{owner}: {error}", "correct the value") from None
