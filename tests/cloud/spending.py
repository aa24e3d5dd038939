"""Random histories of a fleet whose cost is limited; what it costs is what the emulator recorded."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import requests

from fleet.fleets.instances import list_instances
from provision.gce.api.prices import Prices, from_catalog, rates_of
from provision.gce.api.resources import seconds
from provision.gce.options import GceOptions
from tests.cloud.customer import FLEET, Customer, patched
from tests.cloud.histories import Story, play_each
from tests.cloud.moves import make_scarce
from tests.emulator import Emulator
from tests.emulator.catalog import compute_skus
from tests.emulator.cloud import Charge, Instance

LATE_S = 30.0
"""Time by which Compute Engine may be late with a deletion."""
BILLED_MIN_S = 60.0
FAULTS = (
    "stockout",
    "preempted",
    "partial",
    "partial-left",
    "operation-error",
    "disk-left",
    "fails-after",
    "lost",
    "503",
)
YEAR_S = 365 * 86400.0
PRICES = from_catalog(rates_of(compute_skus()), "")


def cost_usd(charges: Iterable[Charge], prices: Prices, until: float) -> float:
    """Return what the emulator billed until a time, in US dollars."""
    return sum(_usd_h(charge, prices) * _billed_s(charge, until) / 3600 for charge in charges)


def _billed_s(charge: Charge, until: float) -> float:
    passed_s = min(charge.end or until, until) - charge.start
    if passed_s <= 0:
        return 0.0
    return max(passed_s, BILLED_MIN_S) if charge.blueprint else passed_s


def _usd_h(charge: Charge, prices: Prices) -> float:
    if charge.disk is not None:
        kind, zone = (charge.disk[key].rsplit("/", 1)[-1] for key in ("type", "zone"))
        price = prices.price(GceOptions(disk_type=kind, disk_gb=int(charge.disk["sizeGb"])), zone)
        assert price is not None
        return price.disk
    drawn = charge.blueprint
    assert drawn is not None
    price = prices.price(
        GceOptions(
            machine_type=drawn.machine_type.name,
            gpu=drawn.gpu,
            gpus=drawn.gpus,
            spot=drawn.spot,
            flex_start=drawn.is_flex_start,
            external=drawn.external,
            local_ssds=drawn.local_ssds - drawn.machine_type.local_ssds,
        ),
        drawn.zone,
    )
    assert price is not None
    return price.machine + price.gpu + price.address


class Spender(Customer):
    """A user whose fleet changes without commands, too."""

    reads_prices = True

    def observe(self) -> None:
        """List the instances, as `fleet status` does if a host does not answer."""
        services = self.services()
        _, record = services.store.need(FLEET)
        list_instances(FLEET, services.provider(record.spec.options), services)

    def deadlines(self) -> list[float]:
        """Return the times at which they are deleted."""
        schedules = [each.body["resourceStatus"]["scheduling"] for each in self.running()]
        return [seconds(each["terminationTimestamp"]) for each in schedules]

    def halt(self, instance: Instance) -> None:
        """Stop an instance, as a user does in the console, or Compute Engine after a failure of its host."""
        self._post(instance, "stop")

    def _post(self, instance: Instance, method: str) -> None:
        with contextlib.suppress(requests.ConnectionError):  # a fault of the history
            requests.post(f"{self.emulator.url}/compute/v1/{instance.blueprint.path}/{method}", timeout=60)
        self.emulator.settle()

    def wait(self, passed_s: float) -> None:
        """Advance the clock."""
        self.emulator.clock.advance(passed_s)
        self.emulator.settle()

    def cost_usd(self) -> float:
        """Return what all fleets have cost so far."""
        return cost_usd(self.emulator.cloud.charges, PRICES, self.emulator.clock.now())


def play(seeds: Iterable[int], emulator: Emulator, directory: Path) -> None:
    """Play the histories of these seeds; a violation names the seed and what was done."""
    emulator.cloud.late_s = LATE_S
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, emulator)
        play_each(seeds, lambda seed: SpendingHistory(seed, emulator, directory / str(seed), patch), emulator)


class SpendingHistory(Story):
    """One user's commands for one fleet with --max-cost; the same seed gives the same history."""

    def __init__(self, seed: int, emulator: Emulator, root: Path, patch: pytest.MonkeyPatch) -> None:
        customer = Spender(emulator, root, python="/usr/bin/python3")
        super().__init__(seed, customer, patch, (self.preempt, self.fail_host))
        self.spender = customer
        self.limit_usd = self.random.choice((0.6, 2.0, 5.0, 20.0))
        self.workers = self.random.choice((1, 2, 3))
        self.since = 0.0
        self.stopped = False
        options: dict[str, Any] = {
            "gpu": self.random.choice(("", "t4")),
            "spot": self.random.choice((False, True)),
            "zones": self.random.choice(((), ("us-central1-a",), ("us-central1", "europe-west1-b"))),
            "max_cost_usd": self.limit_usd,
            "max_duration_s": self.random.choice((0, 1800, 8 * 3600)),
        }
        if options["gpu"] and options["max_duration_s"] and not options["spot"]:
            options["flex_start"] = self.random.choice((False, True))
        if options.get("flex_start"):
            options["wait_s"] = 7200
            make_scarce(self, self.workers)
        customer.options |= options

    def play(self) -> None:
        """Run some commands, then never again; no instance may run when the limit is reached."""
        moves: list[tuple[Callable[[], None], int]] = [
            (lambda: self.command("up", self.up), 4),
            (lambda: self.command("up --workers", self.resize), 2),
            (lambda: self.command("repair", self.customer.repair), 2),
            (lambda: self.command("extend", self.extend), 2),
            (lambda: self.command("status", self.spender.observe), 2),
            (lambda: self.command("down", self.customer.down), 1),
            (lambda: self.command("down --keep-disks", lambda: self.customer.down(keep_disks=True)), 2),
            (self.preempt, 3),
            (self.stop, 1),
            (self.fail_host, 1),
            (self.wait, 5),
        ]
        self.command("up", self.up)
        for _ in range(self.random.randint(2, 8)):
            [move] = self.random.choices([move for move, _ in moves], [weight for _, weight in moves])
            move()
            self.check()
        self.emulator.faults.clear()
        self.delayed.arrive()
        self.spender.wait(YEAR_S)
        self.check()
        assert not [charge for charge in self.charges() if charge.blueprint and not charge.end], "an instance runs"

    def command(self, name: str, act: Callable[[], object]) -> None:
        """Run a command under faults; it may be killed at any call."""
        self.emulator.faults.clear()
        if self.random.random() < 0.4:
            kind, match = self.random.choice(FAULTS), self.random.choice(("compute.*bulkInsert", "compute.*"))
            nth = self.random.randint(1, 6)
            self.told.append(f"fault {kind} of {match}, {nth}")
            self.emulator.faults.add(kind, match=match, nth=nth, times=1, seconds=0.02)
        self.attempt(name, act, self.fuse())
        if not self.customer.store.fleet(FLEET).exists():  # the limit is that of one fleet
            self.check()
            self.since, self.stopped = self.emulator.clock.now(), False

    def up(self) -> None:
        self.customer.up(workers=self.workers, unprepared=self.random.random() < 0.15)

    def resize(self) -> None:
        self.workers = self.random.choice((1, 2, 3, 4))
        self.up()

    def extend(self) -> None:
        self.customer.extend(self.random.choice((1200, 3600, 4 * 3600, 86400)))

    def preempt(self) -> None:
        """Let Compute Engine preempt a Spot VM."""
        for instance in [each for each in self.customer.running()[:1] if each.blueprint.spot]:
            with contextlib.suppress(LookupError):
                self.emulator.preempt(instance.blueprint.name, 0.0)
            self.told.append(f"preempted {instance.blueprint.name}")

    def stop(self) -> None:
        if running := self.customer.running():
            self.spender.halt(self.random.choice(running))
            self.told.append("stopped an instance")

    def fail_host(self) -> None:
        for instance in self.customer.running()[-1:]:
            with contextlib.suppress(LookupError):
                self.emulator.fail_host(instance.blueprint.name)
                self.told.append(f"the machine of {instance.blueprint.name} fails")

    def wait(self) -> None:
        passed_s = self.random.choice((30, 300, 1800, 7200, 6 * 3600))
        self.delayed.arrive()
        self.spender.wait(passed_s)
        self.told.append(f"{passed_s} s later")

    def charges(self) -> list[Charge]:
        """Return the charges of the present fleet."""
        return [charge for charge in self.emulator.cloud.charges if charge.start >= self.since]

    def check(self) -> None:
        """Check that no instance ran at a cost above the limit; later, only disks of stopped ones can cost more."""
        self.stopped |= any(each.status == "TERMINATED" for each in self.emulator.cloud.instances.values())
        now, charges, prices = self.emulator.clock.now(), self.charges(), PRICES
        ran_until = max((charge.end or now for charge in charges if charge.blueprint), default=0.0)
        cost = cost_usd(charges, prices, ran_until if self.stopped else now)
        assert cost <= self.limit_usd, f"cost ${cost:.4f} of ${self.limit_usd}"
