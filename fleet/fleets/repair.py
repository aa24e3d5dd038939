"""What a rented fleet has lost is made again, under the same names; nothing else of it is touched."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from fleet.errors import FleetError, NotFoundError, NotReadyError
from fleet.events import Event, Level, Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import open_agents, opened
from fleet.fleets.connect import progress_to, reach
from fleet.fleets.rejoin import rejoin
from fleet.ports import Ports
from fleet.state import FleetDirectory, FleetRecord, with_hosts
from fleet.steps import Step
from fleet.translation import translated
from provision.model import Host, Instance, InstanceState, Plan
from provision.planner import plan
from provision.provider import Provider

if TYPE_CHECKING:
    from fleet.remote.channel import AgentChannel

FIRST_LOOK_S = 1.0
"""How long after a host is lost its provider is asked for it."""

_LONGEST_PAUSE_S = 30.0
_WORTH_S = 600.0  # a fleet that lives no longer is not repaired
_CLOSE_S = 2.0
_STOPPING_S = 180.0  # Compute Engine gives a spot instance thirty, others ninety
_STOPPING_PAUSE_S = 3.0


@dataclass(frozen=True)
class Rented:
    """A fleet that was there when a command began.

    Attributes:
        record: As it was written down.
        directory: Its files.
        ports: The outside world.
        command: What the user typed after ``fleet``, for others who wait for the fleet.
    """

    record: FleetRecord
    directory: FleetDirectory
    ports: Ports
    command: str


def fix(fleet: Rented, sink: Sink) -> FleetRecord:
    """Replace what a fleet has lost, and let its hosts take their places in the job that runs.

    To be called when a host does not answer: a fleet that rents nothing is left alone, and of one that does the
    provider is asked what is there.

    Returns:
        The fleet as it is now.

    Raises:
        NotFoundError: the fleet was deleted.
        NotReadyError: another command holds the fleet, or nothing is left of it.
        FleetError: an instance could not be made or reached; what is there stays, and a repeat goes on.
    """
    record = fleet.record
    if not record.spec.options.rents:
        return record
    with fleet.ports.store.lock(record.spec.name, fleet.command):
        now = fleet.directory.read() if fleet.directory.exists() else None
        if now is None:
            raise NotFoundError(f"fleet {record.spec.name!r} was deleted", next_steps=[Step("up")])
        Access(now.spec, fleet.ports, sink).let_in()
        record = repaired(now, fleet.directory, fleet.ports, sink)
    if record.last_job:
        rejoin(record, fleet.directory, sink)
    return record


def repaired(record: FleetRecord, directory: FleetDirectory, ports: Ports, sink: Sink) -> FleetRecord:
    """Replace what a rented fleet has lost, its lock being held.

    Returns:
        The fleet as it is now, and as it is written down.

    Raises:
        NotReadyError: nothing is left of it, or nothing will be soon: replacing all of it is for the user to say.
        FleetError: an instance could not be made or reached; what is there stays, and a repeat goes on.
    """
    spec = record.spec
    provider = ports.provider(spec.options)
    there = at_rest(spec.name, provider, ports)
    steps = plan(spec, there)
    if steps.create:
        _check_worth(record, steps, ports)
        _make(record, steps, directory, provider, sink)
        with translated():
            there = provider.list(spec.name)
    known = {one.id for one in record.instances}
    new = [one for one in there if one.name in steps.create or one.name in record.kept or one.id not in known]
    if not new:
        return record
    if record.kept:
        with translated():
            provider.stop_at(new, 0)
    answering = {host.name: host for host in reach(spec, new, provider, directory, ports, sink)}
    record = with_hosts(record, [answering.get(host.name, host) for host in record.hosts], there)
    directory.write(record)
    return record


def at_rest(fleet: str, provider: Provider, ports: Ports) -> list[Instance]:
    """All instances of a fleet, once none is on its way down any more, as one is for a while that was taken."""
    deadline = time.monotonic() + _STOPPING_S
    while True:
        with translated():
            there = provider.list(fleet)
        stopping = [one.name for one in there if one.state is InstanceState.STOPPING]
        if not stopping:
            return there
        if time.monotonic() > deadline:
            raise NotReadyError(
                f"{', '.join(stopping)} of fleet {fleet!r} did not stop within {_STOPPING_S:g} s",
                next_steps=[Step("up")],
            )
        ports.sleep(_STOPPING_PAUSE_S)


def _check_worth(record: FleetRecord, steps: Plan, ports: Ports) -> None:
    name = record.spec.name
    if not steps.keep:
        raise NotReadyError(f"no instance of fleet {name!r} is left", next_steps=[Step("up")])
    if record.delete_at and ports.clock() > record.delete_at - _WORTH_S:
        at = time.strftime("%H:%M", time.localtime(record.delete_at))
        raise NotReadyError(
            f"{', '.join(steps.create)} of fleet {name!r} is gone, and the others are deleted at {at}",
            next_steps=[Step("extend", "4h"), Step("up")],
        )


def _make(record: FleetRecord, steps: Plan, directory: FleetDirectory, provider: Provider, sink: Sink) -> None:
    spec = record.spec
    reasons: Mapping[str, str] = {}
    with contextlib.suppress(FleetError), translated():
        reasons = provider.termination_reasons(spec.name, steps.create)
    for name in steps.create:
        sink.emit(Note(f"{name} {reasons.get(name, 'is gone')}; it is being replaced", Level.WARNING))
    half_made = [one for one in steps.delete if one.name in steps.create]
    progress = progress_to(sink, "ready")
    with translated():
        if half_made:
            directory.intend("delete", instances=[[one.name, one.id] for one in half_made])
            provider.delete(half_made, progress)
        options = asdict(spec.options)
        directory.intend("create", instances=list(steps.create), provider=spec.provider, options=options)
        provider.create(spec, steps.create, progress)


@contextlib.contextmanager
def open_whole(fleet: Rented, sink: Sink) -> Iterator[tuple[FleetRecord, list[AgentChannel]]]:
    """An agent on every host, in their order, and the fleet as it is now, whose lock must be held.

    Where a host of a rented fleet does not answer, what is lost is replaced first.

    Raises:
        FleetError: a host could not be reached, or not be replaced; all of these are named.
    """
    record, key = fleet.record, fleet.directory.key
    access = Access(record.spec, fleet.ports, sink)
    with opened(record.places, key, access) as outcomes:
        from fleet.remote.fanout import raise_failures

        if not record.spec.options.rents or all(outcome.error is None for outcome in outcomes):
            yield record, raise_failures(outcomes, "reach the fleet")
            return
    record = repaired(record, fleet.directory, fleet.ports, sink)
    with open_agents(record.places, key, access) as channels:
        yield record, channels


@contextlib.contextmanager
def mending(fleet: Rented, sink: Sink, patience_s: float) -> Iterator[Mender | None]:
    """What replaces the hosts that a rented fleet loses, in a thread beside; None where it rents none."""
    if not fleet.record.spec.options.rents:
        yield None
        return
    with Mender(fleet, sink, patience_s) as mender:
        yield mender


class _Serial:
    """A sink for events from several threads."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._lock = threading.Lock()

    def emit(self, event: Event) -> None:
        """Take one event."""
        with self._lock:
            self._sink.emit(event)

    def close(self) -> None:
        """No event comes after this."""
        with self._lock:
            self._sink.close()


class Mender:
    """Replaces what a rented fleet loses while its job is followed, in a thread beside.

    Args:
        fleet: The fleet.
        sink: Takes the events.
        patience_s: How long to try, in seconds, from the loss of a host on.

    Attributes:
        sink: For all who tell events as long as this lives.
        patience_s: As given.
    """

    def __init__(self, fleet: Rented, sink: Sink, patience_s: float) -> None:
        self.sink: Sink = _Serial(sink)
        self._fleet = fleet
        self.patience_s = patience_s
        self._hosts = {host.name: host for host in fleet.record.places}
        self._lost: dict[str, float] = {}  # and since when
        self._given_up: set[str] = set()
        self._change = threading.Condition()
        self._closed = threading.Event()
        self._busy = False
        self._bug: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="mender", daemon=True)
        self._thread.start()

    def __enter__(self) -> Mender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def where(self, host: Host) -> Host:
        """How SSH reaches a host now."""
        return self._hosts.get(host.name, host)

    def lost(self, name: str) -> None:
        """A host does not answer, or its instance was taken."""
        with self._change:
            if name in self._hosts and name not in self._given_up:
                self._lost.setdefault(name, time.monotonic())
                self._change.notify()

    def back(self, name: str) -> None:
        """A host answers, and takes part."""
        with self._change:
            self._lost.pop(name, None)
            self._given_up.discard(name)

    def close(self) -> None:
        """Replace nothing any more; what is being made is left to the next command."""
        self._closed.set()
        with self._change:
            self._change.notify()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive() and self._busy:
            command = Step("logs", "-f").text(self._fleet.record.spec.name)
            self.sink.emit(Note(f"an instance is still being replaced; continue with `{command}`"))
        if self._bug is not None:
            raise self._bug

    def _run(self) -> None:
        try:
            self._fix_what_is_lost()
        except OSError:  # nobody reads any more, as whoever follows the job finds out, too
            return
        except Exception as error:  # noqa: BLE001 - raised again by close()
            self._bug = error

    def _fix_what_is_lost(self) -> None:
        pause_s = FIRST_LOOK_S
        told = ""
        while not self._closed.is_set():
            with self._change:
                self._change.wait_for(lambda: self._lost or self._closed.is_set())
            if self._closed.wait(pause_s) or not self._still_lost():
                pause_s, told = FIRST_LOOK_S, ""
                continue
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            told = self._try(pause_s, told)

    def _try(self, pause_s: float, told: str) -> str:
        """Mend once; what hinders it, which is told where it is not what was told last."""
        self._busy = True
        try:
            record = fix(self._fleet, self.sink)
        except FleetError as error:
            if error.message != told and not self._closed.is_set():
                self.sink.emit(Note(f"{error.message}; retrying in {pause_s:.0f} s", Level.WARNING))
            return error.message
        finally:
            self._busy = False
        self._hosts = {host.name: host for host in record.places}
        return told

    def _still_lost(self) -> bool:
        """Whether anything is to be mended; what has been tried for too long is given up."""
        with self._change:
            late = [name for name, since in self._lost.items() if time.monotonic() - since > self.patience_s]
            for name in late:
                del self._lost[name]
                self._given_up.add(name)
        for name in late:
            self.sink.emit(Note(f"{name} could not be replaced within {self.patience_s:g} s", Level.WARNING))
        return bool(self._lost)
