"""Write docs/cli.md from the help texts of the program.

Run: .venv/bin/python -m tests.docs.reference
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from fleet.cli.app import run
from fleet.cli.application import root_command

FILE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = tuple(root_command().commands)
SHARED_BY = 3
"""Number of commands from which on an option is described once for all of them."""
HEAD = """# Command line

The help texts of all commands, as printed by `fleet COMMAND --help-all`; `--help` leaves rare options out. Options of
several commands are described at the end. Exit codes are listed in [failures.md](failures.md), JSON events in
[json.md](json.md).
"""


def help_of(*command: str) -> str:
    """Return the help of the program or of one command, 80 columns wide."""
    env = {**{key: value for key, value in os.environ.items() if not key.startswith("FLEET_")}, "COLUMNS": "80"}
    options = "--help-all" if command else "--help"
    with mock.patch.dict(os.environ, env, clear=True), contextlib.redirect_stdout(io.StringIO()) as out:
        assert run([*command, options]) == 0
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


class Option(NamedTuple):
    """An option in a help text: the title of its section, its declaration, its description, and the text itself."""

    section: str
    declaration: str
    description: str
    text: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Return what makes it the same option in the help of two commands."""
        return self.section, self.declaration, self.description

    @property
    def name(self) -> str:
        """Return its long name."""
        return next(word for word in self.declaration.replace(",", "").split() if word.startswith("--"))


def options_of(text: str) -> list[Option]:
    """Return the options of a help text."""
    options = []
    for section in re.split(r"\n\n(?=\S)", text):
        title = section.split("\n", 1)[0]
        for entry in re.findall(r"^  -.*\n(?:    .*\n)*", section + "\n", re.MULTILINE):
            declaration, *description = re.split(r" {2,}|\n *", entry.strip())
            options.append(Option(title, declaration, " ".join(description), entry))
    return options


def without(text: str, omitted: Collection[tuple[str, str, str]]) -> str:
    """Return a help text without the descriptions of some options, which the last lines name."""
    names = []
    for option in options_of(text):
        if option.key in omitted:
            text = (text + "\n").replace(option.text, "", 1).rstrip("\n")
            names.append(option.name)
    text = re.sub(r"\n\n[A-Z][^\n]*:\n*(?=\n\n|$)", "", text)  # sections that became empty
    return f"{text}\n\n" + textwrap.fill(f"Also: {', '.join(names)}", 80, break_on_hyphens=False) if names else text


def described(options: Iterable[Option]) -> str:
    """Return the descriptions of options by section."""
    parts = []
    for section, members in itertools.groupby(
        sorted(options, key=lambda option: option.section), lambda o: o.section
    ):
        lines = [section]
        for option in sorted(members, key=lambda option: option.name):
            first = f"  {option.declaration:31} "
            lines += [first.rstrip()] if len(first) > 34 else []
            indent = " " * 34 if lines[-1] == first.rstrip() else first
            lines += textwrap.wrap(option.description, 80, initial_indent=indent, subsequent_indent=" " * 34)
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def reference() -> str:
    """Return the whole page."""
    helps = {command: help_of(command) for command in COMMANDS}
    options = [option for text in helps.values() for option in options_of(text)]
    counts = Counter(option.key for option in options)
    shared = {option.key: option for option in options if counts[option.key] >= SHARED_BY}
    parts = [HEAD, f"```text\n{help_of()}\n```\n"]
    parts += [f"## fleet {command}\n\n```text\n{without(text, shared)}\n```\n" for command, text in helps.items()]
    parts.append(f"## Options of several commands\n\n```text\n{described(shared.values())}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(reference())
