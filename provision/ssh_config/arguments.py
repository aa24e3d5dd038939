"""Options of ssh in an inventory, as words that are valid in every working directory; ssh itself interprets them."""

from __future__ import annotations

import getopt
import re
import shlex
from pathlib import Path

_LETTERS = "1246ab:c:e:fgi:kl:m:no:p:qstvxyAB:CD:E:F:GI:J:KL:MNO:P:Q:R:S:TVw:W:XY"  # of ssh(1)
_TUNING = frozenset("CMSTakqntvx")
_PATHS = frozenset({"certificatefile", "identityagent", "identityfile", "userknownhostsfile"})
_UNUSED = re.compile(
    "addressfamily|bind(address|interface)|canonicalizehostname|(dynamic|local|remote)forward|forward(agent|x11)"
    "|hostname|(knownhosts|local|remote)command|permitlocalcommand|(pkcs11|securitykey)provider|proxyusefdpass|tunnel"
)
"""Options of ssh_config(5) that connections do not honour; the value ``no`` is the default of most."""
_PLAIN = re.compile(r"[\w/.~%+@:,=-]+")


def ssh_words(text: str) -> list[str]:
    """Return the options of `text`, which is split like a shell command, except those that only tune a connection.

    Returns:
        Two words for each option, in their order: ``-o name=value``, or -F, -J, -i, -l, -p with its value.

    Raises:
        ValueError: an option is not supported or malformed; the text is a clause for the user.
    """
    try:
        options, rest = getopt.getopt(shlex.split(text), _LETTERS)
    except getopt.GetoptError as error:
        reason = "has no value" if "requires" in error.msg else "is not supported"
        raise ValueError(f"the option -{error.opt} of ssh {reason}") from None
    except ValueError:
        raise ValueError("unbalanced quotes") from None
    if rest:
        raise ValueError(f"{rest[0]!r} is not an option of ssh")
    words: list[str] = []
    for option, value in options:
        if option == "-o":
            words += ("-o", _named(value))
        elif option in ("-F", "-i"):
            words += (option, absolute_path(value))
        elif option in ("-J", "-l", "-p"):
            words += (option, value)
        elif option[1] not in _TUNING:
            raise ValueError(f"the option {option} of ssh is not supported")
    return words


def ssh_option(name: str, path: str) -> list[str]:
    """Return the words of an option whose value is a path, with tokens of ssh and with ``~`` as they are."""
    return ["-o", f"{name}={_quoted(absolute_path(path))}"]


def absolute_path(path: str) -> str:
    """Return a path that is valid in every working directory; ssh resolves ``~``, ``none``, variables, and tokens."""
    return path if path in ("", "none") or path[0] in "~/$%" else str(Path(path).absolute())


def quoted_path(path: str) -> str:
    """Return a path as ssh_config parses it, with its spaces, quotes and percent signs."""
    return _quoted(path.replace("%", "%%"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return text if _PLAIN.fullmatch(text) else f'"{escaped}"'


def _named(text: str) -> str:
    """Return ``name=value`` of an ``-o`` option: ``Name=value`` or ``Name value``."""
    match = re.fullmatch(r"\s*(\w+)(?:\s*=\s*|\s+)(.*\S)\s*", text, re.DOTALL)
    if not match:
        raise ValueError(f"-o {text!r} is not NAME=VALUE")
    name, value = match[1].lower(), match[2]
    if _UNUSED.fullmatch(name) and value.lower() != "no":
        raise ValueError(f"the option {name}={value} of ssh is not supported")
    if name in _PATHS and (name != "identityagent" or "/" in value):
        try:
            [path] = shlex.split(value)
        except ValueError:
            raise ValueError(f"{value!r} must be one word; quote a word that contains spaces") from None
        return ssh_option(name, path)[1]
    return f"{name}={value}"
