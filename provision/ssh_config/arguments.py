"""The ssh options of an inventory, as far as they are supported.

As with ssh, the first value of an option applies. Options that only tune Ansible's connections are ignored. All other
options that change the route or the user are refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

_TUNING = frozenset(
    {
        "addkeystoagent",
        "batchmode",
        "checkhostip",
        "clearallforwardings",
        "compression",
        "connectionattempts",
        "connecttimeout",
        "controlmaster",
        "controlpath",
        "controlpersist",
        "escapechar",
        "exitonforwardfailure",
        "hashknownhosts",
        "ipqos",
        "kbdinteractiveauthentication",
        "loglevel",
        "numberofpasswordprompts",
        "passwordauthentication",
        "requesttty",
        "serveralivecountmax",
        "serveraliveinterval",
        "tcpkeepalive",
        "updatehostkeys",
        "visualhostkey",
    }
)
_TUNING_IF = {
    "canonicalizehostname": "no",
    "forwardagent": "no",
    "forwardx11": "no",
    "gssapiauthentication": "no",
    "nohostauthenticationforlocalhost": "no",
    "permitlocalcommand": "no",
    "pubkeyauthentication": "yes",
}
_TUNING_FLAGS = frozenset("CMTakqntvx")
_TUNING_WITH_VALUE = frozenset("S")
_FLAGS = frozenset("46AaCfGgKkMNnqsTtVvXxYy")
_LETTERS = {"i": "identityfile", "l": "user", "p": "port"}
_CHECKING = {
    "yes": "yes",
    "true": "yes",
    "ask": "ask",
    "accept-new": "accept-new",
    "no": "no",
    "off": "no",
    "false": "no",
}
_NAMES = {
    "port": "Port",
    "user": "User",
    "identityagent": "IdentityAgent",
    "identitiesonly": "IdentitiesOnly",
    "proxyjump": "ProxyJump",
    "proxycommand": "ProxyCommand",
    "stricthostkeychecking": "StrictHostKeyChecking",
    "userknownhostsfile": "UserKnownHostsFile",
    "hostkeyalias": "HostKeyAlias",
}
_PATHS = frozenset({"identityagent", "userknownhostsfile"})
_JUMP = re.compile(r"(ssh://)?([^@\s,]+@)?(\[[0-9A-Fa-f:.]+\]|\w[\w.-]*)(:\d{1,5})?")
_PLAIN = re.compile(r"[\w/.~%+@:,=-]+")


@dataclass
class SshOptions:
    """Options of ssh; the first value of an option applies.

    Paths are as written: they may begin with ``~``, and are relative to the working directory.

    Attributes:
        values: Values by lower-case name of the option. ``config`` is the SSH configuration to read instead of the
            user's; ``none``: no file at all.
        keys: Private keys, in their order.
        certificates: OpenSSH certificates for the keys, in their order.
    """

    values: dict[str, str] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)

    def read(self, text: str) -> None:
        """Read the options of `text`, which is split like a shell command.

        Raises:
            ValueError: an option is not supported or malformed; the text is a clause for the user.
        """
        try:
            words = shlex.split(text)
        except ValueError:
            raise ValueError("unbalanced quotes") from None
        for letter, value in _options(words):
            if letter == "o":
                self.add(*_named(value))
            elif letter == "J":
                self._jump(value)
            elif letter == "F":
                self.values.setdefault("config", ssh_path(value))
            elif letter in _LETTERS:
                self.add(_LETTERS[letter], value)
            elif letter not in _TUNING_FLAGS | _TUNING_WITH_VALUE:
                raise ValueError(f"the option -{letter} of ssh is not supported")

    def add(self, name: str, value: str) -> None:
        """Add one option of ssh_config, ``name`` in lower case.

        Raises:
            ValueError: it is not supported; the text is a clause for the user.
        """
        if name == "identityfile":
            self.keys.append(ssh_path(_unquoted(value)))
        elif name == "proxyjump":
            self._proxy_jump(value)
        elif name == "proxycommand":
            # An earlier ProxyJump overrides it; ProxyJump=none does not.
            if self.values.get("proxyjump", "none") == "none":
                self.values.setdefault(name, value)
        elif name == "certificatefile":
            self.certificates.append(ssh_path(_unquoted(value)))
        elif name in _READ:
            self.values.setdefault(name, _READ[name](value))
        elif not _is_tuning(name, value):
            raise ValueError(f"the option {name}={value} of ssh is not supported")

    @property
    def proxy(self) -> tuple[str, str]:
        """Return the name and value of the option that sets a proxy; empty if there is none."""
        proxies = ((name, self.values.get(name, "none")) for name in ("proxyjump", "proxycommand"))
        return next(((name, value) for name, value in proxies if value.lower() != "none"), ("", ""))

    def words(self, anchor: Callable[[str], str] = str) -> tuple[str, ...]:
        """Return the options as arguments of ssh(1).

        Args:
            anchor: Function that returns a path which is valid in every working directory.
        """
        values = {name: self.values[name] for name in _NAMES if name in self.values}
        if "proxyjump" in values or "proxycommand" in values:
            # Without a proxy, this overrides that of the user's SSH configuration.
            name, value = self.proxy if self.proxy[0] else ("proxycommand", "none")
            values = {**values, "proxyjump": "", "proxycommand": "", name: value}
        for name in _PATHS & set(values):
            is_path = name != "identityagent" or "/" in values[name]
            values[name] = quoted_path(anchor(values[name]) if is_path else values[name])
        config = self.values.get("config", "")
        pairs = [
            *(("IdentityFile", quoted_path(anchor(key))) for key in dict.fromkeys(self.keys)),
            *(("CertificateFile", quoted_path(anchor(path))) for path in dict.fromkeys(self.certificates)),
            *((_NAMES[name], value) for name, value in values.items() if value),
        ]
        return (
            *(("-F", anchor(config)) if config else ()),
            *(word for name, value in pairs for word in ("-o", f"{name}={value}")),
        )

    def _jump(self, value: str) -> None:
        if "proxyjump" in self.values or "proxycommand" in self.values:
            raise ValueError("-J can be given once, and not after another proxy")
        self._proxy_jump(value)

    def _proxy_jump(self, value: str) -> None:
        value = _unquoted(value)
        if value.lower() == "none":
            value = "none"
        elif not all(_JUMP.fullmatch(hop) for hop in value.split(",")):
            raise ValueError(f"invalid jump hosts {value!r}; expected [USER@]HOST[:PORT], separated by commas")
        if "proxycommand" not in self.values:
            self.values.setdefault("proxyjump", value)


def ssh_path(text: str) -> str:
    """Return a path that ssh would expand, as it is on disk, except for a ``~`` at its start.

    Raises:
        ValueError: it contains a token other than ``%%``.
    """
    if not text:
        raise ValueError("the path of a file is empty")
    if "%" in text.replace("%%", ""):
        raise ValueError(f"tokens of ssh are not supported: {text!r}")
    return text.replace("%%", "%")


def quoted_path(path: str) -> str:
    """Return a path as ssh_config parses it, with its spaces, quotes and percent signs."""
    text = path.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return text if _PLAIN.fullmatch(text) else f'"{text}"'


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the letter and the value of each option; the value is empty for a flag."""
    rest = iter(words)
    for word in rest:
        if not word.startswith("-") or len(word) < 2:
            raise ValueError(f"{word!r} is not an option of ssh")
        letters = word[1:]
        while letters[0] in _FLAGS:
            yield letters[0], ""
            letters = letters[1:]
            if not letters:
                break
        else:
            value = letters[1:] or next(rest, None)
            if value is None:
                raise ValueError(f"the option -{letters[0]} of ssh has no value")
            yield letters[0], value


def _named(text: str) -> tuple[str, str]:
    """Return the name and the value of an ``-o`` option: ``Name=value`` or ``Name value``."""
    match = re.fullmatch(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)\s*", text, re.DOTALL)
    if not match:
        raise ValueError(f"-o {text!r} is not NAME=VALUE")
    return match[1].lower(), match[2]


def _unquoted(value: str) -> str:
    """Return the single word of an ssh_config value, without its quotes."""
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if len(words) != 1:
        raise ValueError(f"{value!r} must be one word; quote a word that contains spaces")
    return words[0]


def _checking(value: str) -> str:
    if value.lower() not in _CHECKING:
        raise ValueError(f"invalid StrictHostKeyChecking={value}; expected yes, ask, accept-new, or no")
    return _CHECKING[value.lower()]


def _yes_or_no(value: str) -> str:
    if value.lower() not in ("yes", "no"):
        raise ValueError(f"{value!r} is not yes or no")
    return value.lower()


def _is_tuning(name: str, value: str) -> bool:
    if name in _TUNING_IF:
        return value.lower() == _TUNING_IF[name]
    if name == "preferredauthentications":
        return "publickey" in value.split(",")
    return name in _TUNING


_READ: Mapping[str, Callable[[str], str]] = {
    "hostkeyalias": _unquoted,
    "identitiesonly": _yes_or_no,
    "identityagent": lambda value: ssh_path(_unquoted(value)),
    "port": _unquoted,
    "stricthostkeychecking": _checking,
    "user": _unquoted,
    "userknownhostsfile": lambda value: ssh_path(_unquoted(value)),
}
"""Parsers of the options whose first value applies."""
