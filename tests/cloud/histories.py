"""Random histories of a fleet on Compute Engine: faults, kills, and interruptions at any point."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest
import requests

from fleet.config import caller
from fleet.errors import FleetError, NotReadyError
from fleet.events import Event, ZoneTried
from fleet.jobs.results import Survey
from fleet.services import Services
from fleet.state import FleetDirectory, Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.gce.rest.api import Timing
from provision.model import FleetSpec, Host, Instance
from provision.options import ProviderOptions
from provision.provider import Provider
from tests.cloud.access_modes import MODES, allow, write_credentials
from tests.cloud.moves import CHECKS, COMMANDS, EVENTS, QUEUED, STARTS, WEIGHTS, load
from tests.emulator import Emulator
from tests.emulator import cloud as emulated
from tests.emulator.gcloud import Gcloud
from tests.settings import settings

if TYPE_CHECKING:
    from tests.cloud.moves import Story

QUICK = Timing(
    first_poll_s=0.005,
    longest_poll_s=0.05,
    retry_s=0.2,
    operation_s=5.0,
    boot_s=2.0,
    settle_s=0.1,
    again_s=0.2,
    confirm_s=1.0,
    prices_s=60.0,
)
ZONES: tuple[tuple[str, ...], ...] = ((), ("us-central1-a",), ("us-central1", "europe-west1-b"), ("us-west4",))
CREATING = (
    *("compute.*bulkInsert", "compute.regionInstances.bulkInsert"),
    *("compute.instances.bulkInsert", "compute.instances.insert"),
)
CALLS = (
    "compute.*",
    "batch",
    "batch.compute.*",
    "compute.instances.*",
    "compute.firewalls.*",
    "compute.*Operations.*",
)
OF_CREATION = ("stockout", "stockout-plain", "quota", "disk-left", "partial", "partial-left", "operation-error")
OF_CALLS = (
    "403-rate",
    "403-forbidden",
    "404",
    "409",
    "412",
    "429",
    "500",
    "503",
    "quota-http",
    "reset",
    "lost",
    "slow",
)


E = TypeVar("E")


class Killed(BaseException):
    """The program was killed; no code catches this."""


class Quiet:
    """A sink that stores the events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of a kind."""
        return [event for event in self.events if isinstance(event, kind)]


class Queued(Quiet):
    """A sink of a history; when instances wait for capacity, something happens."""

    def __init__(self, history: Story) -> None:
        super().__init__()
        self._history = history

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, ZoneTried) and "in the queue" in event.step:
            for act in self._history.random.choices(QUEUED):
                act(self._history, event.zone)


@dataclass(frozen=True)
class QuickServices(Services):
    """The services of the commands, without delays.

    Attributes:
        unprepared: Whether the preparation of each host fails.
        timing: Timeouts and intervals of the provider.
    """

    unprepared: bool = False
    timing: Timing = QUICK

    def open_provider(self, options: ProviderOptions, *, keep: bool) -> Provider:
        if not isinstance(options, GceOptions):
            return super().open_provider(options, keep=keep)
        return GceProvider(self.store.owner(keep=keep), caller(), self.store.journal, options, self.timing)


def reached(
    spec: FleetSpec,
    instances: list[Instance],
    provider: Provider,
    directory: FleetDirectory,
    services: Services,
    sink: Any,
    **_: Any,
) -> list[Host]:
    """Return the hosts as the provider reports them, without SSH, which is tested elsewhere."""
    from fleet.translation import translate_errors

    assert isinstance(services, QuickServices)
    if services.unprepared:
        raise NotReadyError("worker-0 cannot be prepared")
    with translate_errors():
        return list(provider.hosts(spec, instances))


def store_nothing(*_: Any, **__: Any) -> Survey:
    """In place of the question what the hosts store: nothing. There are no hosts that could answer."""
    return Survey((), (), {})


@dataclass
class Fuse:
    """Ends the program before or after one of its calls."""

    left: int = -1  # calls until it ends the program; negative: never
    after: bool = False
    error: type[BaseException] = Killed

    def send(self, original: Any, session: Any, request: Any, **options: Any) -> Any:
        if not request.url.startswith("http://127.0.0.1"):
            raise requests.ConnectionError("histories use no network")  # of a background thread of Google's library
        self.left -= 1
        if self.left == 0 and not self.after:
            raise self.error
        answer = original(session, request, **options)
        if self.left == 0:
            answer.close()
            raise self.error
        return answer


@contextlib.contextmanager
def fused(fuse: Fuse, patch: pytest.MonkeyPatch) -> Iterator[None]:
    original = requests.Session.send
    with patch.context() as inner:
        inner.setattr(
            requests.Session,
            "send",
            lambda session, request, **options: fuse.send(original, session, request, **options),
        )
        yield


def patched(patch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    """Let commands work without SSH, which is tested elsewhere."""
    for module in ("commands.fleets.up", "commands.fleets.bake", "commands.fleets.extend", "fleets.repair"):
        patch.setattr(f"fleet.{module}.reach", reached)
    for module in ("fleets.agents", "commands.fleets.extend"):
        patch.setattr(f"fleet.{module}.running_job", lambda *_: "")
    patch.setattr("fleet.jobs.deletion.risk.survey", store_nothing)
    patch.setenv("FLEET_ADDRESS_URL", f"{emulator.url}/emulator/address")


def play_histories(seeds: Iterable[int], emulator: Emulator, directory: Path) -> None:
    """Play the histories of these seeds; a violation names the seed and what was done."""
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, emulator)
        gcloud = Gcloud(directory / "gcloud")
        gcloud.log_in()
        patch.setenv("PATH", gcloud.path())
        play_each(seeds, lambda seed: History(seed, emulator, directory / str(seed), patch), emulator)


class Playable(Protocol):
    """A history of random commands."""

    def play(self) -> None:
        """Play it.

        Raises:
            Exception: it violates a rule.
        """

    def story(self) -> str:
        """Return what was done so far."""


def play_each(seeds: Iterable[int], make: Callable[[int], Playable], emulator: Emulator) -> None:
    """Play the history of each seed on an emulator that was reset; a violation names the seed and what was done."""
    for seed in seeds:
        emulator.reset()
        history = make(seed)
        try:
            history.play()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error}\n{history.story()}") from error


class History:
    """One user's commands for one fleet, and the faults that occur; the same seed gives the same history."""

    def __init__(self, seed: int, emulator: Emulator, root: Path, patch: pytest.MonkeyPatch) -> None:
        load()
        self.fleet = "history"
        self.random = random.Random(seed)
        self.emulator = emulator
        self.root = root
        self.patch = patch
        self.told: list[str] = []
        self.images: set[str] = set()
        self.unprepared = False
        self.kept: dict[str, tuple[str, str]] = {}  # ids and addresses of the instances that must not be lost
        self.workers = self.random.choice((1, 2, 3, 8))
        allow(emulator)
        access = self.random.choice(("external", "external", "external", *MODES))
        # Only OS Login needs an account; calls without credentials are faster.
        credentials = write_credentials(root.parent, emulator.url) if access == "os-login" else ""
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
        gpu, model = (
            self.random.choice(("", "", "t4", "t4:2")),
            self.random.choice(("", "spot", "flex-start", "reservation")),
        )
        compact = not gpu and model != "reservation" and self.random.random() < 0.8
        self.settings = settings(
            provider="gce",
            project="proj-1",
            endpoint=emulator.url,
            gpu=gpu,
            machine_type="n2-standard-4" if compact else "",
            placement="compact" if compact else "",
            spot=model == "spot",
            flex_start=model == "flex-start" and bool(gpu),
            wait_s=7200 if model == "flex-start" and gpu else 0,
            reservation="r1" if model == "reservation" else "",
            zones=self.random.choice(ZONES),
            anywhere=self.random.choice((False, True)),
            max_price_usd_h=0.0 if compact else self.random.choice((0.0, 0.0, 1.3)),
            python="/usr/bin/python3",
            setup="true",
            workers=self.workers,
            **MODES[access],
        )

    def instances(self, fleet: str) -> list[emulated.Instance]:
        """Return the instances of a fleet."""
        existing = list(self.emulator.cloud.instances.values())  # operations may run
        return [instance for instance in existing if instance.body["labels"].get("fleet") == fleet]

    def running(self) -> list[emulated.Instance]:
        """Return the instances of the fleet that run."""
        return [instance for instance in self.instances(self.fleet) if instance.status == "RUNNING"]

    def sink(self) -> Quiet:
        """Return a sink for a command."""
        return Queued(self)

    def services(self) -> QuickServices:
        return QuickServices(Store(self.root), lambda _: True, consent=lambda _: True, unprepared=self.unprepared)

    def play(self) -> None:
        """Run some commands under faults, then delete the fleet without faults; no resource may remain."""
        for act in STARTS:
            act(self)
        for number in range(self.random.randint(1, 4)):
            self.some_faults()
            [verb] = self.random.choices(list(WEIGHTS), list(WEIGHTS.values()))
            if not number and self.random.random() < 0.8:
                verb = "up"
            self.command(verb)
            for chance, act in EVENTS:
                if self.random.random() < chance:
                    act(self)
        self.emulator.faults.clear()
        self.emulator.set_outage()
        self.unprepared = False
        self.end()

    def some_faults(self) -> None:
        self.emulator.faults.clear()
        for _ in range(self.random.choice((0, 1, 1, 2, 3))):
            creating = self.random.random() < 0.5
            kind = self.random.choice(OF_CREATION if creating else OF_CALLS)
            rule = self.emulator.faults.add(
                kind,
                match=self.random.choice(CREATING if creating else CALLS),
                nth=self.random.randint(1, 4 if creating else 25),
                times=self.random.choice((1, 1, 2, 5)),
                seconds=0.02,
                zones_available=self.random.choice(("", "us-central1-f")),
            )
            self.told.append(f"fault {rule}")

    def command(self, verb: str) -> None:
        chance = self.random.random()
        fuse = Fuse()
        if chance < 0.5:
            fuse = Fuse(
                self.random.randint(1, 40),
                self.random.random() < 0.5,
                Killed if chance < 0.35 else KeyboardInterrupt,
            )
        self.unprepared = self.random.random() < 0.15
        self.told.append(f"fleet {verb}, {fuse}{', hosts cannot be prepared' if self.unprepared else ''}")
        with fused(fuse, self.patch):
            self.run(verb)

    def run(self, verb: str) -> bool:
        """Run a command; if it reports success, check that it succeeded."""
        try:
            COMMANDS[verb](self)
        except Killed:
            self.told.append("killed")
            return False
        except FleetError as error:
            self.told.append(f"{type(error).__name__}: {error.message} | {error.cause}")
            return False
        except KeyboardInterrupt:
            self.told.append("interrupted")
            return False
        self.told.append("success")
        for act in CHECKS.get(verb, ()):
            act(self)
        return True

    def end(self) -> None:
        self.emulator.settle()
        if self.random.random() < 0.3:
            shutil.rmtree(self.root / "fleets", ignore_errors=True)
            if self.random.random() < 0.5:
                shutil.rmtree(self.root, ignore_errors=True)
            self.told.append("state lost")
            assert self.run("gc"), self.story()
        else:
            assert self.run("down"), self.story()
        assert self.run("gc --images"), self.story()
        assert not [violation for violation in self.emulator.state()["violations"] if "client" in violation], (
            self.story()
        )

    def story(self) -> str:
        return "\n".join(self.told)
