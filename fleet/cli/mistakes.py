"""Explain command lines that Typer cannot parse, in the style of all errors."""

from __future__ import annotations

import re

from fleet.cli.command_line import CommandLine
from fleet.errors import UsageError
from fleet.steps import Step

_WITH_SCRIPT = ("train", "check", "agent")
_SUGGESTION = re.compile(r"\.? (?:Did you mean |\(Possible options: )(.*)[?)]$")
_MISTAKES = (  # pattern in a message of Typer, replacement
    (r"^No such option: (\S+)", r"no such option: '\1'"),
    (r"^No such command", "unknown command"),
    (r"Got unexpected extra argument\(s\) \((.*)\)$", r"unexpected argument '\1'"),
    (r"is not a valid int(eger)?( range)?$", "is not a whole number"),
    (r"is not a valid float( range)?$", "is not a number"),
    (r"is not in the range x>=(\d+)$", r"is less than \1"),
    (r"is not in the range (\d+)<=x<=(\d+)$", r"is not between \1 and \2"),
    (r"requires an argument$", "requires a value"),
)


def explain_mistake(message: str, command: str, typed: CommandLine | None) -> UsageError:
    """Return the error for a message of Typer.

    An option after SCRIPT most likely belongs to the script, whose arguments follow ``--``.

    Args:
        message: The message, with what was most likely meant.
        command: The command that was typed; empty: none.
        typed: The command line; None if it has no command.
    """
    text = " ".join(message.split()).removesuffix(".").replace(" Value error,", "")
    suggestion = _SUGGESTION.search(text)
    text = text[: suggestion.start()] if suggestion else text
    for pattern, replacement in _MISTAKES:
        text = re.sub(pattern, replacement, text)
    hints = [f"did you mean {suggestion[1]}?"] if suggestion else []
    steps = [Step(*filter(None, [command]), "--help")]
    if typed is not None and command in _WITH_SCRIPT and text.startswith("no such option"):
        hints.append("arguments of the script go after SCRIPT and --")
        separated = separate(typed)
        steps = [separated.step(), *steps] if separated is not None else steps
    return UsageError(text[:1].lower() + text[1:], hint="; ".join(hints), next_steps=steps)


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
