"""A command line as it was typed, how to repeat it with changes, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fleet.errors import UsageError
from fleet.steps import Change, Step

SCRIPT = "SCRIPT"  # the first operand, in a Change
_ENV = "--env"
_NUMBER = re.compile(r"-[0-9]+")
_URLS = ("--index-url", "--pip-proxy")
_LOGIN = re.compile(r"(?<=://)[^/@$]*@")
_SECRET = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)


@dataclass(frozen=True)
class Option:
    """An option that a command takes.

    Attributes:
        names: Its spellings; the first is its name. ``--spot`` and ``--no-spot`` are one option.
        takes_value: Whether a value follows.
    """

    names: tuple[str, ...]
    takes_value: bool


@dataclass(frozen=True)
class Word:
    """A part of a command line.

    Attributes:
        text: The arguments as typed, one or two.
        option: Name of the option that it sets; empty if it is an operand.
    """

    text: tuple[str, ...]
    option: str = ""

    @property
    def is_operand(self) -> bool:
        """True if it neither is nor looks like an option."""
        return not self.option and not self.text[0].startswith("-")


@dataclass(frozen=True)
class CommandLine:
    """A command line.

    Attributes:
        command: The subcommand, ``train``.
        words: Options and operands, in the order typed.
        program: Arguments after ``--``.
        option_names: Names of the options that the command takes.
    """

    command: str
    words: tuple[Word, ...] = ()
    program: tuple[str, ...] = ()
    option_names: frozenset[str] = frozenset()

    def changed(self, change: Change, program: tuple[str, ...] | None = None) -> CommandLine:
        """Return the command line with options added, removed, or replaced, and another program unless it is None."""
        words = [word for word in self.words if word.option not in change]
        if SCRIPT in change:
            at = next((index for index, word in enumerate(words) if word.is_operand), len(words))
            words[at : at + 1] = [Word((str(change[SCRIPT]),))] if change[SCRIPT] else []
        options = {name: value for name, value in change.items() if name != SCRIPT}
        return replace(
            self, words=(*make_words(options), *words), program=self.program if program is None else program
        )

    def takes(self, change: Change) -> bool:
        """Return whether the command has all options of `change`."""
        return (self.option_names | {SCRIPT}).issuperset(change)

    def asks_for(self, option: str, value: str) -> bool:
        """Return whether an option is set to a value."""
        return any(word.option == option and word.text[-1].endswith(value) for word in self.words)

    def step(self) -> Step:
        """Return the line as a step.

        A value of ``--env`` whose name looks like that of a secret is left out: the variable is then copied from the
        environment. So is a login in a URL that does not come from variables.
        """
        words = [part for word in self.words for part in _hide_secret(word)]
        return Step(self.command, *words, *(["--", *self.program] if self.program else []))


def parse(command: str, arguments: Sequence[str], options: Iterable[Option]) -> CommandLine:
    """Split the arguments of a command.

    Args:
        command: The subcommand.
        arguments: The arguments after the subcommand.
        options: Options that the command takes; any other word that begins with a dash is kept unchanged.
    """
    by_name = {name: option for option in options for name in option.names}
    end = arguments.index("--") if "--" in arguments else len(arguments)
    words: list[Word] = []
    rest = list(arguments[:end])
    while rest:
        given = rest.pop(0)
        name, sign, _ = given.partition("=")
        option = by_name.get(name) or by_name.get(given[:2])
        if option is None:
            words.append(Word((given,)))
            continue
        attached = bool(sign) or name not in by_name
        value = [rest.pop(0)] if option.takes_value and not attached and rest else []
        words.append(Word((given, *value), option.names[0]))
    names = frozenset(option.names[0] for option in by_name.values())
    return CommandLine(command, tuple(words), tuple(arguments[end + 1 :]), names)


def separate_jobs(arguments: Sequence[str], options: Iterable[Option]) -> list[str]:
    """Return the arguments of a command with all operands behind ``--`` if one of them is a number such as ``-1``.

    Args:
        arguments: The arguments after the subcommand.
        options: Options that the command takes.
    """
    typed = parse("", arguments, options)
    if not any(map(_is_number, typed.words)):
        return list(arguments)
    operands = [word for word in typed.words if word.is_operand or _is_number(word)]
    others = [part for word in typed.words if word not in operands for part in word.text]
    return [*others, "--", *(word.text[0] for word in operands), *typed.program]


def _is_number(word: Word) -> bool:
    return not word.option and bool(_NUMBER.fullmatch(word.text[0]))


def make_words(change: Change) -> tuple[Word, ...]:
    """Return the options that a change adds to a command line."""
    return tuple(
        Word((name,) if value is True else (name, str(value)), name)
        for name, value in change.items()
        if value is not None and value is not False
    )


def _hide_secret(word: Word) -> tuple[str, ...]:
    if word.option in _URLS:
        return tuple(_LOGIN.sub("", part) for part in word.text)
    if word.option != _ENV:
        return word.text
    given = word.text[1] if len(word.text) > 1 else word.text[0].removeprefix(f"{_ENV}=").removeprefix("-e")
    name = given.partition("=")[0]
    return (_ENV, name) if _SECRET.search(name) else word.text


# --- mistakes ---

_WITH_SCRIPT = ("train", "check", "agent")
_SUGGESTION = re.compile(r"\.? (?:Did you mean |\(Possible options: )(.*)[?)]$")
_MISTAKES = (  # pattern in a message of Typer, replacement
    (r"^No such option: (\S+)", r"no such option: '\1'"),
    (r"^No such command", "unknown command"),
    (r"Got unexpected extra argument\(s\) \((.*)\)$", r"unexpected argument '\1'"),
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
