"""Every next step in the sources is a command line that works when pasted into a shell."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.application import root_command
from fleet.steps import FLEET_COMMANDS, Step

ROOT = Path(__file__).parents[3]
PROGRAMS = {
    "fleet", "gcloud", "ssh", "ssh-add", "ssh-keygen", "chmod", "chsh", "usermod", "export", "pip", "python3", "sudo",
    "curl", "jupyter", "ansible-inventory", "ulimit", "df", "ls", "mv", "unset", "cp", "sed",
}  # fmt: skip
PLACEHOLDER = re.compile(r"…|\.\.\.|(?<![\w$-])[A-Z]{3,}(?![\w.])|<\w+>")
COMMANDS: dict[str, Any] = root_command().commands


@cache
def sources() -> list[tuple[Path, ast.Module, list[ast.Call]]]:
    """Return all modules of the product, parsed, with the calls in each."""
    paths = [path for directory in ("fleet", "provision", "train") for path in (ROOT / directory).rglob("*.py")]
    trees = [(path, ast.parse(path.read_text("utf-8"))) for path in sorted(paths) if "examples" not in path.parts]
    return [(path, tree, [node for node in ast.walk(tree) if isinstance(node, ast.Call)]) for path, tree in trees]


def texts(node: ast.expr, names: dict[str, list[ast.expr]]) -> list[str]:
    """Return all values that an expression of literals may have; ``x`` replaces a value that is not literal."""
    alternatives: list[str] = []
    match node:
        case ast.Constant():
            alternatives = [str(node.value)]
        case ast.JoinedStr():
            parts = [texts(part, names) if isinstance(part, ast.Constant) else ["x"] for part in node.values]
            alternatives = ["".join(choice) for choice in product(*parts)]
        case ast.IfExp():
            alternatives = [*texts(node.body, names), *texts(node.orelse, names)]
        case ast.Name():
            values = [value for value in names.get(node.id, []) if not isinstance(value, ast.Name)]
            alternatives = [text for value in values for text in texts(value, names)]
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=words)]):
            alternatives = [shlex.join(literals(words, names))]
    return alternatives


def assigned(tree: ast.AST) -> dict[str, list[ast.expr]]:
    names: dict[str, list[ast.expr]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            names.setdefault(node.targets[0].id, []).append(node.value)
    return names


def keywords(calls: list[ast.Call], name: str) -> Iterator[ast.expr]:
    for node in calls:
        yield from (word.value for word in node.keywords if word.arg == name)


def next_steps() -> list[tuple[str, str]]:
    """Return all command lines that the sources recommend, each with its file and line."""
    steps = []
    for path, tree, calls in sources():
        names = assigned(tree)
        lines = [
            (command.lineno, line)
            for value in keywords(calls, "next_steps")
            for command in commands(value)
            for line in command_lines(command, names)
        ]
        for value in keywords(calls, "next_step"):
            lines += [(value.lineno, line) for text in texts(value, names) for line in text.split("\n") if line]
        for call in named(calls, "Step", "Shell"):
            words = list(literals(call.args, names))
            if words and words[0] != "x":
                lines.append((call.lineno, Step(*words).text() if call.func.id == "Step" else words[0]))  # type: ignore[attr-defined]
        steps += [(f"{path.relative_to(ROOT)}:{number}", line) for number, line in lines]
    return steps


def commands(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the elements of a list of next steps; both lists of an alternative."""
    match node:
        case ast.List() | ast.Tuple():
            yield from node.elts
        case ast.IfExp():
            yield from commands(node.body)
            yield from commands(node.orelse)


def command_lines(command: ast.expr, names: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the lines of a command that is given as a tuple of its words, as text for a shell, or by its name."""
    match command:
        case ast.Tuple():
            words = list(literals(command.elts, names))
            if words[:1] != ["x"]:
                yield shlex.join(words)
        case ast.Constant() | ast.JoinedStr():
            yield from texts(command, names)
        case ast.Name():
            for value in names.get(command.id, []):
                yield from command_lines(value, names)


def literals(words: Sequence[ast.expr], names: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield the words of a command, with those of named tuples; ``x`` replaces a word that is not literal."""
    for word in words:
        match word:
            case ast.Starred(value=ast.Name(id=name)) if isinstance(named := names.get(name, [None])[0], ast.Tuple):
                yield from literals(named.elts, names)
            case ast.Starred():
                pass
            case _:
                yield next(iter(texts(word, names)), "x")


def named(calls: list[ast.Call], *names: str) -> Iterator[ast.Call]:
    for node in calls:
        if isinstance(node.func, ast.Name) and node.func.id in names:
            yield node


def changes() -> list[tuple[str, tuple[str, ...]]]:
    """Return the options of every literal change to a typed command line."""
    changed = []
    for path, tree, _ in sources():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Dict):
                continue
            options = tuple(str(key.value) for key in node.keys if isinstance(key, ast.Constant))
            if options and all(option.startswith("--") for option in options):
                changed.append((f"{path.relative_to(ROOT)}:{node.lineno}", options))
    return changed


def wrong(line: str) -> str:
    """Return why a line does not work when pasted; empty if it does."""
    try:
        words = shlex.split(line)
    except ValueError as error:
        return str(error)
    if words[0] not in PROGRAMS and words[:3] != ["x", "-m", "pip"]:  # of the interpreter that runs the program
        return f"{words[0]!r} is not a program: prose goes into the hint"
    if PLACEHOLDER.search(line):
        return "it has a placeholder"
    if re.search(r"\s{2}|&&|;|`|\s\(", line):
        return "it is more than one command, or has a comment: one command a line"
    return _refused(words[1:]) if words[0] == "fleet" else ""


def _refused(words: list[str]) -> str:
    """Return the usage error for the arguments of fleet, which are parsed and not run; empty if they are valid."""
    if words[0] in ("--help", "x"):
        return ""
    if words[0] not in COMMANDS:
        return f"unknown command {words[0]!r}"
    words = [re.sub(r"^x(?=[smhd]$)", "1", word) for word in words if word != "--help"]  # a duration
    words = ["1" if before == "--workers" else word for before, word in zip(["", *words], words, strict=False)]
    try:
        COMMANDS[words[0]].make_context(f"fleet {words[0]}", words[1:])
    except Exception as error:
        if not hasattr(error, "format_message"):  # not an error of Typer; its classes moved between versions
            raise
        return str(error)
    return ""


@pytest.mark.parametrize(
    "line",
    [
        "fleet up   repairs it",
        "fleet train --dryrun",
        "check the path",
        "fleet up --zone REGION",
        "fleet logs -f to come back",
        "fleet down && fleet up",
        "gcloud compute networks list --project P (shows them)",
        "fleet agent --rank 0 …",
    ],
)
def test_prose_and_placeholders_are_found(line: str) -> None:
    assert wrong(line)


def test_every_next_step_works_when_pasted() -> None:
    steps = next_steps()
    assert len(steps) > 100
    assert [f"{place}: {line!r}: {why}" for place, line in steps if (why := wrong(line))] == []


def test_every_change_names_options_of_a_command() -> None:
    options_of = [{name for param in command.params for name in param.opts} for command in COMMANDS.values()]
    bad = [(place, options) for place, options in changes() if not any(set(options) <= names for names in options_of)]
    assert bad == []


def test_all_commands_that_take_a_fleet_are_known() -> None:
    takes = {name for name, command in COMMANDS.items() if any("--fleet" in param.opts for param in command.params)}
    assert takes == FLEET_COMMANDS
