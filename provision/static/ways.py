"""The way to a host as the user's own SSH configuration says, word for word what `ssh` itself would do.

OpenSSH is asked (``ssh -G``), so that Host, Match, Include and the defaults mean what they mean to it: ssh_config(5).
"""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

ASK_TIMEOUT_S = 30.0
_NONE = ("", "none")

Ask = Callable[[Sequence[str]], str]
"""Runs a command; its output. Raises WayError."""


class WayError(Exception):
    """OpenSSH does not say how to reach a host.

    Attributes:
        sentence: What happened.
        cause: What OpenSSH said.
        next_step: What to type or change.
    """

    def __init__(self, sentence: str, *, cause: str = "", next_step: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        self.cause = cause
        self.next_step = next_step


@dataclass(frozen=True)
class Way:
    """How SSH reaches a host.

    Attributes:
        address: What TCP connects to.
        port: TCP port.
        user: Login name.
        key_name: Name of the host in known_hosts files.
        identities: Files of private keys, in the order in which they are offered; only those that exist.
        agent: Keys of the user's SSH agent are offered too.
        known_hosts: Files with host keys.
        proxy: Program that carries the connection, word by word; empty: TCP does.
    """

    address: str
    port: int
    user: str
    key_name: str
    identities: tuple[str, ...]
    agent: bool
    known_hosts: tuple[str, ...]
    proxy: tuple[str, ...]


def ask(command: Sequence[str]) -> str:
    """The output of an OpenSSH program.

    Raises:
        WayError: it is missing, fails, or does not answer within ASK_TIMEOUT_S.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ASK_TIMEOUT_S
        )
    except FileNotFoundError:
        raise WayError(
            f"{command[0]} is not installed on this computer",
            cause="your SSH configuration is read by OpenSSH itself",
            next_step="apt-get install openssh-client",
        ) from None
    except subprocess.TimeoutExpired:
        raise WayError(
            f"{shlex.join(command)} did not answer within {ASK_TIMEOUT_S:g} s",
            cause="a `Match exec` of your SSH configuration may wait for something",
            next_step="run it by hand",
        ) from None
    if done.returncode:
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise WayError(
            f"your SSH configuration cannot be read: {words[0] if words else 'ssh -G failed'}",
            cause="; ".join(words[1:]),
            next_step=shlex.join(command),
        )
    return done.stdout


def way(
    name: str,
    *,
    options: Sequence[str] = (),
    config: str = "",
    home: Path | None = None,
    run: Ask = ask,
) -> Way:
    """How `ssh [options] name` would reach a host.

    Args:
        name: The host as the user writes it.
        options: Of ssh(1): ``-p 2222 -l me -i key -o ProxyCommand=…``.
        config: File to read instead of the user's configuration; empty: the user's and the system's.
        home: The user's home folder.
        run: Runs OpenSSH.

    Raises:
        WayError: OpenSSH does not say.
    """
    files = ("-F", config) if config else ()
    command = ("ssh", *files, *options, "-G", "--", name)
    settings = parse(run(command))
    home = home or Path.home()
    address, port = _one(settings, "hostname", name), int(_one(settings, "port", "22"))
    user = _one(settings, "user", "")
    alias = _one(settings, "hostkeyalias", "")
    tokens = {"h": address, "p": str(port), "r": user, "n": name, "%": "%"}
    key_name = alias if alias not in _NONE else address if port == 22 else f"[{address}]:{port}"
    known = (*settings.get("userknownhostsfile", ()), *settings.get("globalknownhostsfile", ()))
    identities = [_expanded(text, home) for text in settings.get("identityfile", ())]
    return Way(
        address=address,
        port=port,
        user=user,
        key_name=key_name,
        identities=tuple(path for path in identities if Path(path).is_file()),
        agent=_one(settings, "identityagent", "") != "none" and _one(settings, "identitiesonly", "no") != "yes",
        known_hosts=tuple(_expanded(path, home) for line in known for path in line.split() if path not in _NONE),
        proxy=_proxy(settings, tokens, files),
    )


def parse(text: str) -> dict[str, list[str]]:
    """The output of ``ssh -G``: keywords in lower case, each with all of its values."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        found.setdefault(keyword.lower(), []).append(value)
    return found


def _one(settings: Mapping[str, Sequence[str]], keyword: str, default: str) -> str:
    return settings.get(keyword, (default,))[0]


def _expanded(path: str, home: Path) -> str:
    return str(home / path[2:]) if path.startswith("~/") else path


def _proxy(settings: Mapping[str, Sequence[str]], tokens: Mapping[str, str], files: Sequence[str]) -> tuple[str, ...]:
    """The program that carries the connection; what ssh makes of ProxyJump is another ssh."""
    jump = _one(settings, "proxyjump", "")
    if jump not in _NONE:
        *before, near = jump.split(",")
        earlier = ("-J", ",".join(before)) if before else ()
        target = f"[{tokens['h']}]:{tokens['p']}"
        return ("ssh", *files, "-o", "BatchMode=yes", *earlier, *_jump(near), "-W", target, "--", _jump_host(near))
    command = _one(settings, "proxycommand", "")
    if command in _NONE:
        return ()
    return ("/bin/sh", "-c", f"exec {_with_tokens(command, tokens)}")


def _jump(text: str) -> tuple[str, ...]:
    """Options of ssh for ``[ssh://][user@]host[:port]``."""
    user, at, rest = text.removeprefix("ssh://").rpartition("@")
    _, port = _host_port(rest)
    return (*(("-l", user) if at else ()), *(("-p", port) if port else ()))


def _jump_host(text: str) -> str:
    return _host_port(text.removeprefix("ssh://").rpartition("@")[2])[0]


def _host_port(text: str) -> tuple[str, str]:
    """Host and port of ``host``, ``host:port``, ``[2001:db8::1]:port``; a bare IPv6 address has no port."""
    if text.startswith("["):
        host, _, port = text[1:].partition("]")
        return host, port.removeprefix(":")
    host, colon, port = text.rpartition(":")
    return (host, port) if colon and ":" not in host else (text, "")


def _with_tokens(command: str, tokens: Mapping[str, str]) -> str:
    """`command` with its %-tokens; one that is not known stays, as nothing is known of it."""
    parts = command.split("%")
    found = [parts[0]]
    rest = iter(parts[1:])
    for part in rest:
        if not part:  # two in a row
            found.append("%" + next(rest, ""))
        else:
            found.append(tokens.get(part[0], f"%{part[0]}") + part[1:])
    return "".join(found)
