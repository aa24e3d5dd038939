"""Quote text from hosts as one line of bounded length. A host can be broken, or controlled by an attacker."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

LONGEST = 600  # characters


def one_line(text: str, longest: int = LONGEST) -> str:
    """Return `text` without line breaks and control characters, which are escaped, and cut if it is longer.

    Args:
        text: Text from a host.
        longest: Maximum length in characters.
    """
    kept = " ".join(text[: 2 * longest].split())
    line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in kept)
    return line if len(line) <= longest and len(text) <= 2 * longest else f"{line[: longest - 1]}…"


def last_line(text: str) -> str:
    """Return the last line of a program's output that is not empty, such as the one that says why it ended."""
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


def show_command(words: Iterable[str]) -> str:
    """Return a command line for a shell in which control characters are visible, as escapes in ANSI-C quotes."""
    return " ".join(shlex.quote(word) if word.isprintable() else f"$'{_escaped(word)}'" for word in words)


def _escaped(word: str) -> str:
    plain = word.replace("\\", "\\\\").replace("'", "\\'")
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in plain)
