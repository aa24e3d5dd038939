"""The route to a host in the user's SSH configuration, and its known keys, exactly as `ssh` itself would use them.

``ssh -G`` evaluates Host, Match, Include and the defaults: ssh_config(5). ``ssh-keygen -F`` reads known_hosts files,
hashed names included.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from provision.directories import home_directory
from provision.openssh import install_openssh
from provision.provider import ErrorKind, ProviderError
from provision.ssh_config.programs import programs_of_ssh

ANSWER_TIMEOUT_S = 30.0
DEFAULT_AGENT = "SSH_AUTH_SOCK"
_NONE = ("", "none")
_PLAIN = re.compile(r"[\w.@:%+\[\]-]*", re.ASCII)
_JUMP = re.compile(r"(?:(.*)@)?(?:\[(.*)\]|(.*?))(?::(\d+))?$")  # as ssh -G prints the last of ProxyJump
_VARIABLE = re.compile(r"\$\{(\w+)\}")
# The first known type is pinned; a host presents this type when the client requests it.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_CHECKING = {"true": "yes", "false": "no", "off": "no"}

RunSsh = Callable[[Sequence[str]], str]
"""Runs a command and returns its output. Raises SshConfigError."""


class SshConfigError(ProviderError):
    """The OpenSSH configuration does not give a supported route to a host."""


@dataclass(frozen=True)
class Route:
    """The SSH route to a host.

    Attributes:
        address: Address that TCP connects to.
        port: TCP port.
        user: Login name.
        key_name: Name of the host in known_hosts files.
        bare_name: Name in these files without the port, used if `key_name` is unknown; empty: none.
        identities: Key files, in the order in which they are offered; only those with an existing private key or, for
            the agent, public key.
        certificates: Existing certificate files for these keys.
        agent: Socket of the user's SSH agent; ``SSH_AUTH_SOCK`` or ``$NAME``: the value of this variable; empty: no
            agent is used.
        identities_only: Offer only those keys of the agent that are in `identities`.
        known_hosts: Files with host keys.
        checking: Handling of a host with an unknown key: ``ask``, ``yes`` (refuse), ``accept-new``, ``no``.
        proxy: Words of the command that carries the connection; empty: plain TCP.
    """

    address: str
    port: int
    user: str
    key_name: str
    bare_name: str
    identities: tuple[str, ...]
    certificates: tuple[str, ...]
    agent: str
    identities_only: bool
    known_hosts: tuple[str, ...]
    checking: str
    proxy: tuple[str, ...]


def run_openssh(*command: str) -> subprocess.CompletedProcess[str]:
    """Run an OpenSSH program that reads files of the user, and return its result.

    Raises:
        SshConfigError: it is missing, or does not answer within ANSWER_TIMEOUT_S.
    """
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=ANSWER_TIMEOUT_S
        )
    except (OSError, ValueError) as error:
        if not isinstance(error, FileNotFoundError):
            raise SshConfigError(ErrorKind.USAGE, f"{command[0]} cannot be started: {error}") from None
        raise SshConfigError(
            ErrorKind.MISSING,
            f"{command[0]} is not installed on this computer",
            cause="OpenSSH reads your SSH configuration and known_hosts files",
            hint="install the OpenSSH client",
            next_steps=install_openssh("client"),
        ) from None
    except subprocess.TimeoutExpired:
        raise SshConfigError(
            ErrorKind.USAGE,
            f"{shlex.join(command)} did not answer within {ANSWER_TIMEOUT_S:g} s",
            cause="a `Match exec` of your SSH configuration may be blocked" if command[0] == "ssh" else "",
            next_steps=_repeat(command),
        ) from None


def _repeat(command: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the command to try, unless a file names a program that it would run."""
    return [] if programs_of_ssh("", command) else [tuple(command)]


def read_configuration(command: Sequence[str]) -> str:
    """Return the output of ``ssh -G``.

    Raises:
        SshConfigError: ssh is missing, fails, or does not answer.
    """
    done = run_openssh(*command)
    if done.returncode:
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise SshConfigError(
            ErrorKind.USAGE,
            f"your SSH configuration cannot be read: {words[0] if words else 'ssh -G failed'}",
            cause="; ".join(words[1:]),
            next_steps=_repeat(command),
        )
    return done.stdout


def resolve_route(name: str, *, options: Sequence[str] = (), run: RunSsh = read_configuration) -> Route:
    """Return the route that `ssh [options] name` would use.

    Args:
        name: The host as the user writes it.
        options: Options of ssh(1): ``-F file -p 2222 -l me -i key -o ProxyCommand=…``.
        run: Runs OpenSSH.

    Raises:
        SshConfigError: OpenSSH gives no route, or one that is not supported.
    """
    settings = parse(run(("ssh", *options, "-G", "--", name)))
    address, port = _first(settings, "hostname", name), int(_first(settings, "port", "22"))
    user, alias = _first(settings, "user", ""), _first(settings, "hostkeyalias", "")
    tokens = {
        "h": address,
        "p": str(port),
        "r": user,
        "n": name,
        "%": "%",
        "k": alias if alias not in _NONE else name,
    }
    checking = _first(settings, "stricthostkeychecking", "ask")
    has_other_port = port != 22 and alias in _NONE
    home = home_directory()
    paths = {**tokens, **_of_this_computer(home), "j": _first(settings, "proxyjump", "")}
    lines = (*settings.get("userknownhostsfile", ()), *settings.get("globalknownhostsfile", ()))
    keys = _first(settings, "pubkeyauthentication", "true") in ("true", "yes", "unbound", "host-bound")
    return Route(
        address=address,
        port=port,
        user=user,
        key_name=alias if alias not in _NONE else f"[{address}]:{port}" if has_other_port else address,
        bare_name=address if has_other_port else "",
        identities=tuple(path for path in _paths(settings, "identityfile", paths) if keys and _is_key(path)),
        certificates=tuple(
            path for path in _paths(settings, "certificatefile", paths) if keys and Path(path).is_file()
        ),
        agent=_agent(settings, paths) if keys else "",
        identities_only=_first(settings, "identitiesonly", "no") == "yes",
        known_hosts=tuple(expanded(path, home) for line in lines for path in _files(line) if path not in _NONE),
        checking=_CHECKING.get(checking, checking),
        proxy=_proxy(settings, tokens, options),
    )


def agent_socket(agent: str) -> str:
    """Return the path of the socket of `Route.agent`; empty if there is none."""
    return os.environ.get(agent.removeprefix("$"), "") if agent == DEFAULT_AGENT or agent.startswith("$") else agent


def parse(text: str) -> dict[str, list[str]]:
    """Return the output of ``ssh -G``: keywords in lower case, each with all of its values."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        keyword, _, value = line.partition(" ")
        settings.setdefault(keyword.lower(), []).append(value)
    return settings


def _first(settings: Mapping[str, Sequence[str]], keyword: str, default: str) -> str:
    return settings.get(keyword, (default,))[0]


def _agent(settings: Mapping[str, Sequence[str]], tokens: Mapping[str, str]) -> str:
    value = _first(settings, "identityagent", DEFAULT_AGENT)
    if value == "none":
        return ""
    if value == DEFAULT_AGENT or (value.startswith("$") and not value.startswith("${")):
        return value
    return _path(value, tokens)


# --- files ------------------------------------------------------------------------------------------------------


def _of_this_computer(home: Path) -> dict[str, str]:
    """Return the path tokens that do not depend on the host."""
    name = socket.gethostname()
    try:
        user = pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        user = str(os.getuid())
    return {"d": str(home), "i": str(os.getuid()), "L": name.partition(".")[0], "l": name, "u": user}


def _paths(settings: Mapping[str, Sequence[str]], keyword: str, tokens: Mapping[str, str]) -> Iterator[str]:
    return (_path(text, tokens) for text in settings.get(keyword, ()) if text not in _NONE)


def _path(text: str, tokens: Mapping[str, str]) -> str:
    """Return a path with its variables and tokens replaced; an unset variable stays, and leads to a missing path."""
    text = _VARIABLE.sub(lambda match: os.environ.get(match[1], match[0]), text)
    return expanded(_with_tokens(text, tokens), Path(tokens["d"]))


def expanded(path: str, home: Path) -> str:
    """Return `path` as an absolute path; a ``~`` at its start is a home directory.

    Args:
        path: Path as written by a user or in an SSH configuration.
        home: Home directory of the user.
    """
    if path == "~" or path.startswith("~/"):
        path = str(home / path[2:])
    elif path.startswith("~"):
        with contextlib.suppress(RuntimeError):  # an unknown user: the path does not exist
            path = str(Path(path).expanduser())
    return str(Path(path).absolute())


def _is_key(path: str) -> bool:
    return Path(path).is_file() or Path(f"{path}.pub").is_file()


def _files(line: str) -> Iterator[str]:
    """Yield the files of a list that are separated by spaces, even if the name of an existing file has spaces."""
    words = line.split(" ")
    while words:
        count = next((n for n in range(len(words), 1, -1) if Path(" ".join(words[:n])).is_file()), 1)
        yield " ".join(words[:count])
        words = words[count:]


# --- proxies ----------------------------------------------------------------------------------------------------


def _proxy(
    settings: Mapping[str, Sequence[str]], tokens: Mapping[str, str], options: Sequence[str]
) -> tuple[str, ...]:
    """Return the program that carries the connection; for ProxyJump it is another ssh."""
    jump = _first(settings, "proxyjump", "")
    if jump not in _NONE:
        before, _, near = jump.rpartition(",")
        user, ipv6, host, port = _JUMP.findall(near)[0]
        given = [("-J", before), ("-l", user), ("-p", port), ("-W", f"[{tokens['h']}]:{tokens['p']}")]
        config = next((each for each in itertools.pairwise(options) if each[0] == "-F"), ())
        words = (word for name, value in given if value for word in (name, value))
        return ("ssh", *config, "-o", "BatchMode=yes", *words, "--", ipv6 or host)
    command = _first(settings, "proxycommand", "")
    if command in _NONE:
        return ()
    if _first(settings, "proxyusefdpass", "no") == "yes":
        raise SshConfigError(
            ErrorKind.USAGE,
            f"ProxyUseFdpass is not supported for {tokens['n']}",
            cause="your SSH configuration sets ProxyUseFdpass yes",
            hint="remove it, and let the ProxyCommand carry the connection",
        )
    _check_plain(command, tokens)
    return (os.environ.get("SHELL") or "/bin/sh", "-c", f"exec {_with_tokens(command, tokens)}")


def _check_plain(command: str, tokens: Mapping[str, str]) -> None:
    """Raise SshConfigError if `command` needs a name that has characters with a meaning to a shell."""
    for letter in "hnrk":
        if f"%{letter}" in command and not _PLAIN.fullmatch(tokens[letter]):
            raise SshConfigError(
                ErrorKind.USAGE,
                f"{tokens[letter]!r} cannot be inserted into the ProxyCommand of {tokens['n']}",
                cause="it contains special characters of the shell",
                hint=f"write it into the command in quotes, instead of %{letter}",
            )


def _with_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """Return `text` with its %-tokens replaced; unknown tokens stay."""
    return re.sub("%(.)", lambda match: tokens.get(match[1], match[0]), text)


@dataclass(frozen=True)
class KnownKeys:
    """Entries of known_hosts files for a host.

    Attributes:
        keys: Keys of the host, ``ssh-ed25519 AAAA…``, the one to pin first; empty: unknown.
        authority: File that names a certificate authority for it; empty: none.
        revoked: Keys that are never accepted for the host.
    """

    keys: tuple[str, ...] = ()
    authority: str = ""
    revoked: tuple[str, ...] = ()


def known_keys(name: str, files: Sequence[str]) -> KnownKeys:
    """Return the entries of `files` for `name`; its keys are those of the first file that has any.

    Raises:
        SshConfigError: ssh-keygen is missing, or does not read a file.
    """
    lines = [(file, *entry) for file in files if Path(file).is_file() for entry in _matching_lines(name, file)]
    revoked = tuple(key for _, marker, key in lines if marker == "@revoked")
    usable = [
        (file, key)
        for file, marker, key in lines
        if not marker and key not in revoked and key.split()[0] in _PREFERRED
    ]
    keys = [key for file, key in usable if file == usable[0][0]]
    return KnownKeys(
        keys=tuple(sorted(keys, key=lambda key: _PREFERRED.index(key.split()[0]))),
        authority=next((file for file, marker, _ in lines if marker == "@cert-authority"), ""),
        revoked=revoked,
    )


def _matching_lines(name: str, file: str) -> Iterator[tuple[str, str]]:
    """Yield the marker and the key of each line of `file` for `name`."""
    for line in run_openssh("ssh-keygen", "-F", name, "-f", file).stdout.splitlines():
        words = line.split()
        if not words or words[0] == "#":
            continue
        marker = words.pop(0) if words[0].startswith("@") else ""
        if len(words) >= 3:
            yield marker, f"{words[1]} {words[2]}"
