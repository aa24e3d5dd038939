"""A user who runs commands on the emulator, without SSH, which is tested elsewhere, and without delays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
import requests

from fleet.cli.fleets import bake, down, extend, gc, up
from fleet.errors import NotReadyError, translate_errors
from fleet.events import Event
from fleet.fleets.agents import ExistingFleet
from fleet.fleets.plan import UpRequest
from fleet.fleets.repair import repair_fleet
from fleet.jobs.results import Survey
from fleet.services import Services
from fleet.settings import Settings
from fleet.state import BAKING, FleetDirectory, Store, caller
from provision.gce.api.client import Timing
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec, Host
from provision.model import Instance as Provided
from provision.options import ProviderOptions
from provision.provider import Provider
from tests.cloud.fuses import DELAY_S, sending
from tests.emulator import Emulator
from tests.emulator.cloud import Instance
from tests.settings import settings

E = TypeVar("E")
FLEET = "demo"
QUICK = Timing(
    first_poll_s=0.005,
    longest_poll_s=0.05,
    retry_s=0.2,
    operation_s=20.0,
    boot_s=10.0,
    settle_s=0.1,
    lingering_s=2 * DELAY_S,
    again_s=0.2,
    confirm_s=10.0,
    prices_s=60.0,
)


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


@dataclass(frozen=True)
class QuickServices(Services):
    """The services of the commands, without delays; the provider has their clock.

    Attributes:
        unprepared: Whether the preparation of each host fails.
        timing: Timeouts and intervals of the provider.
        reads_prices: Whether the provider reads the price list of Google; otherwise it has its own prices.
    """

    unprepared: bool = False
    timing: Timing = QUICK
    reads_prices: bool = False

    def open_provider(self, options: ProviderOptions, *, keep: bool) -> Provider:
        if not isinstance(options, GceOptions):
            return super().open_provider(options, keep=keep)
        owner, prices = self.store.owner(keep=keep), self.store.root / "prices.json" if self.reads_prices else None
        return GceProvider(owner, caller(), self.store, options, self.timing, self.clock, prices)


def reached(
    spec: FleetSpec,
    instances: list[Provided],
    provider: Provider,
    directory: FleetDirectory,
    services: Services,
    sink: Any,
    **_: Any,
) -> list[Host]:
    """Return the hosts as the provider reports them, without SSH, which is tested elsewhere."""
    assert isinstance(services, QuickServices)
    if services.unprepared:
        raise NotReadyError("worker-0 cannot be prepared")
    with translate_errors():
        return list(provider.hosts(spec, instances))


def store_nothing(*_: Any, **__: Any) -> Survey:
    """In place of the question what the hosts store: nothing. No host could answer."""
    return Survey((), (), {})


def patched(patch: pytest.MonkeyPatch, emulator: Emulator) -> None:
    """Let commands work without SSH, which is tested elsewhere."""
    for module in ("cli.fleets.up", "cli.fleets.bake", "cli.fleets.extend", "fleets.repair"):
        patch.setattr(f"fleet.{module}.reach", reached)
    for module in ("fleets.agents", "cli.fleets.extend"):
        patch.setattr(f"fleet.{module}.running_job", lambda *_: "")
    patch.setattr("fleet.jobs.deletion.survey", store_nothing)
    patch.setattr(requests.Session, "send", sending(emulator))
    patch.setattr("requests.sessions.get_environ_proxies", lambda *_, **__: {})
    patch.setenv("FLEET_ADDRESS_URL", f"{emulator.url}/emulator/address")


class Customer:
    """A user with one fleet.

    Attributes:
        reads_prices: Whether the user's programs read the price list of Google.
        unprepared: Whether the preparation of each host fails.

    Args:
        emulator: Where the fleet is.
        root: State directory.
        timing: Timeouts and intervals of the provider.
        options: Options of each command in addition to those that every fleet on the emulator needs.
    """

    reads_prices = False

    def __init__(self, emulator: Emulator, root: Path, timing: Timing = QUICK, **options: Any) -> None:
        self.emulator = emulator
        self.options: dict[str, Any] = {"provider": "gce", "project": "proj-1", "endpoint": emulator.url, **options}
        self.store = Store(root)
        self.sleep: Callable[[float], None] = emulator.clock.advance
        self.sink: Callable[[], Quiet] = Quiet
        self.unprepared = False
        self._timing = timing

    def services(self, *, unprepared: bool = False) -> QuickServices:
        """Return services with the emulator's clock; `unprepared`: the preparation of each host fails."""
        return QuickServices(
            self.store,
            lambda _: True,
            consent=lambda _: True,
            clock=self.emulator.clock.now,
            sleep=self.sleep,
            unprepared=unprepared or self.unprepared,
            timing=self._timing,
            reads_prices=self.reads_prices,
        )

    def settings(self, **changes: Any) -> Settings:
        """Return the settings with some options changed."""
        return settings(**{**self.options, **changes})

    def up(
        self, sink: Quiet | None = None, *, retry: bool = False, unprepared: bool = False, **changes: Any
    ) -> Quiet:
        """Run `fleet up` with some options changed, and return its events."""
        sink = sink or self.sink()
        request = UpRequest(FLEET, self.settings(**changes), retry_until_up=retry)
        up.run(request, self.services(unprepared=unprepared), sink)
        return sink

    def bake(self, *, unprepared: bool = False, dry_run: bool = False, **changes: Any) -> Quiet:
        """Run `fleet bake` with some options changed, and return its events."""
        sink = self.sink()
        request = UpRequest(BAKING, self.settings(**changes), dry_run=dry_run)
        bake.run(request, self.services(unprepared=unprepared), sink)
        return sink

    def extend(self, lifetime_s: float, sink: Quiet | None = None) -> None:
        """Run `fleet extend`."""
        extend.run(FLEET, lifetime_s, self.services(), sink or self.sink())

    def repair(self) -> None:
        """Replace lost hosts, as commands do that follow a job."""
        services = self.services()
        directory, record = services.store.need(FLEET)
        repair_fleet(ExistingFleet(record, directory, services, self.sink(), "logs"))

    def down(self, *, keep_disks: bool = False) -> Quiet:
        """Run `fleet down`, and return its events."""
        sink = self.sink()
        down.run(FLEET, self.services(), sink, keep_disks=keep_disks)
        return sink

    def gc(self, *, images: bool = False) -> Quiet:
        """Run `fleet gc`, and return its events."""
        sink, place = self.sink(), settings(project="proj-1", endpoint=self.emulator.url)
        gc.run(gc.GcRequest(place, images=images), self.services(), sink)
        return sink

    def statuses(self) -> list[str]:
        """Return the status of each instance."""
        return sorted(instance.status for instance in self.emulator.cloud.instances.values())

    def running(self) -> list[Instance]:
        """Return the instances of the fleet that run."""
        existing = list(self.emulator.cloud.instances.values())  # operations may run
        return [each for each in existing if each.status == "RUNNING" and each.body["labels"].get("fleet") == FLEET]

    def zones(self) -> set[str]:
        """Return the zones that have instances."""
        return {zone for zone, _ in self.emulator.cloud.instances}

    def held(self) -> list[str]:
        """Return the names of all that exists in the cloud, except images."""
        state = self.emulator.state()
        return [
            name for kind in ("instances", "disks", "firewalls", "addresses", "operations") for name in state[kind]
        ]
