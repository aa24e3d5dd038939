"""Run a command: its terminal, its services outside the program, and its failures."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

from fleet.cli.options import Output
from fleet.errors import FleetError, UsageError, explain_interrupt, translate_errors
from fleet.state import state_root
from fleet.steps import DEFAULT_FLEET, Again, Step

if TYPE_CHECKING:
    from fleet.events import Event, Sink
    from fleet.fleets.agents import ExistingFleet
    from fleet.services import Services
    from fleet.settings import Settings


def is_attended() -> bool:
    """Return True if a user can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def _answer(question: str) -> str:
    """Ask a question and return the answer in lower case; empty after Ctrl-C, and at the end of the input."""
    from fleet.console.formatting import read_size

    width = read_size(sys.stderr).columns - 1
    lines = [textwrap.fill(line, width, break_on_hyphens=False) for line in question.rstrip().split("\n")]
    typer.echo("\n".join(lines) + " ", nl=False, err=True)
    try:
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        answer = ""
    if not answer.endswith("\n"):  # what follows begins in the next line
        typer.echo(err=True)
    return answer.strip().lower() or answer[-1:]


def make_services(sink: Sink | None = None, *, yes: bool = False) -> Services:
    """Return the services of a command; `sink` releases the terminal while a question is asked."""
    from fleet.events import Note
    from fleet.services import Services
    from fleet.state import Store

    def ask(question: str) -> str:
        if sink is not None:
            sink.close()
        return _answer(question)

    def is_agreed(question: str) -> bool:
        return ask(f"{question} [y/N] ") in ("y", "yes")

    def report(text: str) -> None:
        if sink is not None:
            sink.emit(Note(text))
        else:
            typer.echo(text, err=True)

    attended = is_attended()
    store = Store(state_root())
    store.check()
    return Services(
        store=store,
        # The end of the input does not count as an answer.
        confirm=lambda question: yes or not attended or ask(f"{question} [Y/n] ") in ("\n", "y", "yes"),
        consent=lambda question: yes or (attended and is_agreed(question)),
        attended=yes or attended,
        confirm_keys=is_agreed if attended else None,
        unread=lambda: getattr(sink, "unread", False),
        report=report,
    )


def open_sink(output: Output, *, prefix: bool = True, raw: bool = False) -> Sink:
    """Return the sink that prints the events of a command."""
    from fleet.console import make_sink

    return make_sink(
        output.value,
        stdout=sys.stdout,
        stderr=sys.stderr,
        prefix=prefix,
        raw=raw,
        hint="Ctrl-C detaches; the job keeps running",
    )


def read_settings(provider: str | None = None) -> Settings:
    """Return the settings of the environment, completed by a fleet.toml in this directory or above.

    Args:
        provider: Provider that the command line names; None: the one that fleet.toml names.
    """
    from fleet import settings

    file = settings.find(Path.cwd())
    defaults = settings.load(file) if file else settings.Settings()
    return settings.read_environment(os.environ, provider or defaults.provider).over(defaults)


def resolve_fleet(given: str) -> str:
    """Return the name of the fleet: the given one, that of fleet.toml, or the default."""
    from provision.names import validate_fleet_name

    name = given or read_settings().name or DEFAULT_FLEET
    try:
        return validate_fleet_name(name)
    except ValueError as error:
        raise UsageError(str(error), next_steps=[Step("up", "--fleet", "my-fleet")]) from None


class Session:
    """A command that runs, and the sink of its events: one at a time, from all threads.

    After ``| head -1``, a command continues to its end; one that only follows a job detaches.

    Args:
        fleet: Name of the fleet on which it works.
        inner: Shows the events.
        yes: The user has agreed to all questions in advance.

    Attributes:
        fleet: As given.
        unread: Whether the reader of the output is gone.
        interval_s: Time between two updates of what `inner` shows, in seconds; 0: it shows everything at once.
    """

    def __init__(self, fleet: str, inner: Sink, *, yes: bool = False) -> None:
        self.fleet = fleet
        self.unread = False
        self.interval_s: float = getattr(inner, "interval_s", 0.0)
        self._inner = inner
        self._yes = yes
        self._lock = threading.Lock()

    @cached_property
    def services(self) -> Services:
        """Return the services outside the program."""
        return make_services(self, yes=self._yes)

    def find_fleet(self, command: str = "") -> ExistingFleet:
        """Return the fleet, which must be up; `command` is shown to other commands that wait for it."""
        from fleet.fleets.agents import ExistingFleet

        return ExistingFleet.find(self.fleet, self.services, self, command)

    def emit(self, event: Event) -> None:
        """Show an event."""
        try:
            with self._lock:
                self._inner.emit(event)
        except BrokenPipeError:
            self.unread = True

    def close(self) -> None:
        """Write pending output."""
        with self._lock, suppress(BrokenPipeError):
            self._inner.close()

    def note(self, text: str) -> None:
        """Show a sentence."""
        from fleet.events import Note

        self.emit(Note(text))


@contextmanager
def session(
    fleet: str, output: Output, *, yes: bool = False, prefix: bool = True, raw: bool = False, live: bool = True
) -> Iterator[Session]:
    """Run a command in this context; a failure is raised as `CommandFailed`.

    Args:
        fleet: Name of the fleet.
        output: Format of the output.
        yes: The user has agreed to all questions in advance.
        prefix: Show which host wrote a line.
        raw: Show each byte.
        live: Show a live view on a terminal.
    """
    inner = open_sink(Output.LINES if output is Output.AUTO and not live else output, prefix=prefix, raw=raw)
    running = Session(fleet, inner, yes=yes)
    try:
        with failures_of(fleet, inner):
            yield running
    finally:
        with suppress(KeyboardInterrupt):  # the command has ended, and its result is reported
            running.close()
        if running.unread:
            discard_output()


def print_result(fleet: str, command: Callable[[TextIO], object]) -> None:
    """Run a command that prints its result to the standard output; a failure is raised as `CommandFailed`."""
    try:
        with failures_of(fleet):
            command(sys.stdout)
            sys.stdout.flush()
    except BrokenPipeError:
        discard_output()


@contextmanager
def failures_of(fleet: str, sink: Sink | None = None) -> Iterator[None]:
    """Raise errors and Ctrl-C as `CommandFailed`."""
    try:
        with translate_errors(), explain_interrupt("interrupted; nothing was changed", Again({})):
            yield  # commands that change something describe what an interrupt leaves
    except FleetError as error:
        raise CommandFailed(error, sink, fleet) from None


class CommandFailed(Exception):  # carries an error to where the typed command line is known
    """Carries an error to where the typed command line is known."""

    def __init__(self, error: FleetError, sink: Sink | None, fleet: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.sink = sink
        self.fleet = fleet


class CommandEnded(Exception):  # not an error; typer.Exit(130) would be taken for Ctrl-C
    """Ends a command with the exit code of a program that it ran."""

    def __init__(self, code: int) -> None:
        super().__init__(str(code))
        self.code = code


def discard_output() -> int:
    """Discard all further output, at exit too: its reader has gone."""
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    return 0
