"""Explain command lines that cannot be parsed, and suggest what was most likely meant."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches

from fleet.cli.command_line import SCRIPT, CommandLine, Word
from fleet.errors import UsageError
from fleet.steps import Again, NextStep, Step

_WITH_SCRIPT = ("train", "check", "agent")
_CLOSE = 0.75  # of difflib: trani is train, but exec is not extend
_COMMAND_HABITS = {  # words of other tools
    "apply": "up",
    "attach": "logs -f",
    "cancel": "stop",
    "cp": "pull",
    "create": "up",
    "delete": "down",
    "deploy": "up",
    "describe": "status",
    "destroy": "down",
    "download": "pull",
    "fetch": "pull",
    "get": "pull",
    "help": "--help",
    "history": "jobs",
    "info": "status",
    "init": "up",
    "kill": "stop",
    "launch": "up",
    "list": "status",
    "log": "logs",
    "ls": "status",
    "prune": "jobs --prune",
    "ps": "status",
    "put": "push",
    "queue": "jobs",
    "results": "jobs",
    "rm": "down",
    "run": "train",
    "shell": "ssh",
    "start": "up",
    "submit": "train",
    "tail": "logs -f",
    "teardown": "down",
    "terminate": "down",
    "top": "status",
    "upload": "push",
    "version": "--version",
}
_OPTION_HABITS = {  # options of other tools
    "--accelerator": "--gpu",
    "--accelerators": "--gpu",
    "--background": "--detach",
    "--count": "--workers",
    "--dest": "--to",
    "--force": "--yes",
    "--instance-type": "--machine-type",
    "--num-nodes": "--workers",
    "--num-workers": "--workers",
    "--nodes": "--workers",
    "--preemptible": "--spot",
    "--region": "--zone",
    "--replicas": "--workers",
    "--scale": "--workers",
    "--tail": "--lines",
    "-n": "--workers",
}
_UNEXPECTED = "unexpected argument"
_MISTAKES = (  # pattern in a message of Typer, replacement
    (r"Got unexpected extra argument\(s\) \((.*)\)$", rf"{_UNEXPECTED} '\1'"),
    (r"is not a valid int(eger)?( range)?$", "is not a whole number"),
    (r"is not a valid float( range)?$", "is not a number"),
    (r"is not in the range x>=(\d+)$", r"is less than \1"),
    (r"is not in the range (\d+)<=x<=(\d+)$", r"is not between \1 and \2"),
    (r"requires an argument$", "requires a value"),
)


def explain_mistake(message: str, command: str, typed: CommandLine | None) -> UsageError:
    """Return the error for a message of Typer, in the style of all errors.

    Args:
        message: The message.
        command: The command that was typed; empty: none.
        typed: The command line; None if it has no command.
    """
    text = " ".join(message.split()).removesuffix(".").replace(" Value error,", "")
    for pattern, replacement in _MISTAKES:
        text = re.sub(pattern, replacement, text)
    steps = [Step(*filter(None, [command]), "--help")]
    if typed is not None and text.startswith(_UNEXPECTED):
        steps = [*_name_operand(typed), *steps]
    return UsageError(text[:1].lower() + text[1:], next_steps=steps)


def _name_operand(typed: CommandLine) -> list[Step]:
    """Return the command with its only operand as the job or fleet that it most likely is."""
    operands = [word.text[0] for word in typed.words if word.is_operand]
    options = [name for name in ("--job", "--fleet") if name in typed.option_names]
    if len(operands) == 1 and operands[0].isdigit() and "--workers" in typed.option_names:
        return [typed.changed({"--workers": operands[0], SCRIPT: None}).step()]
    if len(operands) != 1 or not options or any(word.option == options[0] for word in typed.words):
        return []
    return [typed.changed({options[0]: operands[0], SCRIPT: None}).step()]


def explain_unknown_command(name: str, commands: Collection[str]) -> UsageError:
    """Return the error of a command that does not exist.

    Args:
        name: The word that was typed.
        commands: Existing commands.
    """
    meant = _COMMAND_HABITS.get(name.lower()) or next(iter(get_close_matches(name, commands, n=1, cutoff=_CLOSE)), "")
    hint = f"did you mean fleet {meant}?" if meant else ""
    if meant.startswith("-"):
        step = Step(meant)
    else:
        step = Step(meant.partition(" ")[0], "--help") if meant else Step("--help")
    return UsageError(f"unknown command {name!r}", hint=hint, next_steps=[step])


def explain_unknown_option(name: str, typed: CommandLine, takers: Mapping[str, Collection[str]]) -> UsageError:
    """Return the error of an option that the command does not have.

    An option after SCRIPT belongs to the script, whose arguments follow ``--``.

    Args:
        name: The option, ``--epochs``.
        typed: The command line.
        takers: Options of each command by its name, ``train``; includes the command of `typed`.
    """
    command = typed.command
    hints: list[str] = []
    steps: list[NextStep] = []
    options = takers.get(command, ())
    habit = _OPTION_HABITS.get(name, "")
    others = sorted((other for other, names in takers.items() if name in names), key=lambda other: other != "up")
    is_elsewhere = bool(others) and name.startswith("--")
    close = habit if habit in options else "" if is_elsewhere else _closest(name, options)
    if close:
        hints.append(f"did you mean {close}?")
        words = tuple(_rename(word, name, close) for word in typed.words)
        steps.append(CommandLine(typed.command, words, typed.program, typed.option_names).step())
    elif name.startswith("--"):
        similar = "" if others[:1] == ["up"] else _closest(name, takers["up"])
        hints += [f"fleet up has {similar}"] if similar else [f"{name} is an option of fleet {x}" for x in others[:1]]
        if (value := _value_of(name, typed)) and others[:1] == ["up"]:
            steps.append(Again({name: value}, command="up"))
    if command in _WITH_SCRIPT:
        hints.append("arguments of the script go after SCRIPT and --")
        separated = separate(typed)
        steps += [separated.step()] if separated is not None else []
    return UsageError(
        f"fleet {typed.command} has no option {name!r}",
        hint=" ".join(hints) if close else "; ".join(hints),
        next_steps=steps or [Step(typed.command, "--help")],
    )


def _closest(name: str, options: Iterable[str]) -> str:
    """Return the option with one letter more, less, or changed; empty if there is none."""
    alike = [option for option in options if abs(len(option) - len(name)) <= 1]
    return next(iter(get_close_matches(name, alike, n=1, cutoff=_CLOSE)), "")


def _value_of(name: str, typed: CommandLine) -> str:
    """Return the value that was typed for an unknown option; empty if it has none."""
    parts = [part for word in typed.words for part in word.text]
    at = next((at for at, part in enumerate(parts) if part.partition("=")[0] == name), len(parts))
    attached = parts[at].partition("=")[2] if at < len(parts) else ""
    return attached or next((part for part in parts[at + 1 : at + 2] if not part.startswith("-")), "")


def separate(typed: CommandLine) -> CommandLine | None:
    """Return the line with the words after the script moved after ``--``, except options of the command.

    None if no script was given, or if an unknown option, which may have a value, comes before it.
    """
    for at, word in enumerate(typed.words):
        if word.option == "-m" or word.is_operand:
            rest = typed.words[at + 1 :]
            kept = (*typed.words[: at + 1], *(word for word in rest if word.option))
            moved = [part for word in rest if not word.option for part in word.text]
            return CommandLine(typed.command, kept, (*moved, *typed.program), typed.option_names)
        if not word.option:
            return None
    return None


def _rename(word: Word, name: str, meant: str) -> Word:
    first, sign, value = word.text[0].partition("=")
    return Word((f"{meant}{sign}{value}", *word.text[1:]), meant) if first == name and not word.option else word
