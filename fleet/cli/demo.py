"""`fleet demo`: start a fleet on this computer, train on it, pull the results, and delete it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fleet.cli.application import command
from fleet.cli.fleets import down, up
from fleet.cli.jobs import train
from fleet.cli.options import OUTPUT, RAW, Output, option, parse_count
from fleet.cli.runtime import session
from fleet.errors import CancelledError, FleetError, JobNotFinished, NotReadyError
from fleet.events import Event, Note, ResultsFound, Sink
from fleet.fleets.agents import ExistingFleet
from fleet.fleets.plan import PACKAGES, UpRequest, active_environment
from fleet.jobs.pull import PullRequest, pull_results
from fleet.jobs.results import LOAD_NOTE
from fleet.services import Services
from fleet.settings import Settings
from fleet.steps import Again, Shell, Step

FLEET = "demo"
EPOCHS = 3


def run(workers: int, services: Services, sink: Sink, *, startup: bool = False) -> str:
    """Start a fleet called ``demo``, train a small model on it, pull its results, and delete the fleet.

    Args:
        workers: Number of workers.
        services: Services outside the program.
        sink: Takes the events.
        startup: Show TensorFlow's startup messages, too.

    Raises:
        NotReadyError: TensorFlow is not installed here.
        CancelledError: Ctrl-C; the fleet was deleted.
        FleetError: as the commands that it calls.
    """
    _need_tensorflow()
    script = examples() / "keras_fit.py"
    try:
        with _fleet(workers, services, sink):
            _announce(f"train {script.name} -- --epochs {EPOCHS}", sink)
            arguments = ("--epochs", str(EPOCHS))
            train_request = train.TrainRequest(
                fleet=FLEET, script=str(script), arguments=arguments, requirements="", startup=startup
            )
            job = train.run(train_request, services, _WithoutAdvice(sink))
            _announce("pull", sink)
            pulled = pull_results(ExistingFleet.find(FLEET, services, sink), PullRequest(job))
    except (KeyboardInterrupt, JobNotFinished):
        raise CancelledError("the demo was interrupted; its fleet was deleted", next_steps=[Again({})]) from None
    sink.emit(Note(f"results: {pulled.directory}"))
    sink.emit(Note(f"next: {Step('up', '--workers', str(workers)).text()}"))
    return job


def _announce(command: str, sink: Sink) -> None:
    """Report the command that follows, below the last screen of the command before."""
    sink.close()
    sink.emit(Note(f"$ fleet {command}"))


class _WithoutAdvice:
    """Passes events on, except the results on the hosts, and how to copy and load them: `fleet pull` follows."""

    def __init__(self, inner: Sink) -> None:
        self._inner = inner
        self.interval_s: float = getattr(inner, "interval_s", 0.0)

    def emit(self, event: Event) -> None:
        """Take one event."""
        if not isinstance(event, ResultsFound) and event != LOAD_NOTE:
            self._inner.emit(event)

    def close(self) -> None:
        """Write pending output."""
        self._inner.close()


def examples() -> Path:
    """Return the directory of the examples."""
    from train import examples as package

    return Path(package.__path__[0])


def _need_tensorflow() -> None:
    from importlib.util import find_spec

    if find_spec("tensorflow") is None and not active_environment():
        raise NotReadyError(
            "the demo requires TensorFlow, which is not installed",
            next_steps=[Shell(shlex.join([sys.executable, "-m", "pip", "install", *PACKAGES]))],
        )


@contextmanager
def _fleet(workers: int, services: Services, sink: Sink) -> Iterator[None]:
    _announce(f"up --workers {workers}", sink)
    settings = Settings(provider="local", workers=workers)
    up.run(UpRequest(FLEET, settings, advises=False), services, sink)
    try:
        yield
    finally:
        _announce("down", sink)
        try:
            down.run(FLEET, services, sink)
        except FleetError as error:
            sink.emit(Note(error.message))
            raise


@command("Start")
def demo(
    workers: int = option(2, "--workers", "Number of workers.", "N", short="-w", parser=parse_count),
    raw: bool = RAW,
    output: Output = OUTPUT,
) -> None:
    """Run a complete example on this computer.

    Starts two workers, trains a small model on them, pulls its results, and deletes the workers.

    Examples:
      fleet demo
      fleet demo --workers 4
    """
    with session(FLEET, output, yes=True, raw=raw) as running:
        run(workers, running.services, running, startup=raw or output is Output.JSON)
