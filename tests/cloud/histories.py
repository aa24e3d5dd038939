"""Random histories of a fleet on Compute Engine: faults, kills, and interruptions at any point."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.fleets.up import RETRY_FIRST_S
from fleet.errors import FleetError
from fleet.events import Event, ZoneTried
from fleet.state import Store
from tests.cloud.access_modes import MODES, allow, write_credentials
from tests.cloud.customer import FLEET, Customer, Quiet, patched
from tests.cloud.fuses import Delayed, Fuse, Killed, arrival, fused
from tests.cloud.moves import CHECKS, COMMANDS, EVENTS, INVARIANTS, QUEUED, RETRIED, STARTS, SUDDEN
from tests.emulator import Emulator
from tests.emulator import cloud as emulated
from tests.emulator.client import Gcloud
from tests.emulator.faults import Rule

BUCKET = "gs://training-data"
ZONES: tuple[tuple[str, ...], ...] = ((), ("us-central1-a",), ("us-central1", "europe-west1-b"), ("us-west4",))
CREATING = ("compute.*bulkInsert", "compute.instances.bulkInsert", "compute.instances.insert")
CALLS = (
    "compute.*",
    "compute.instances.*",
    "compute.firewalls.*",
    "compute.*Operations.*",
    "storage.*",
    "cloudresourcemanager.*",
)
OF_CREATION = (
    *("stockout", "stockout-plain", "preempted", "quota", "disk-left"),
    *("partial", "partial-left", "operation-error"),
)
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


class Story:
    """The commands of one user for one fleet, and what happens meanwhile; the same seed gives the same history.

    Args:
        seed: Seed of everything that is random.
        customer: The user.
        patch: Of the process.
        sudden: Changes of the cloud that happen between two calls of a command.
    """

    def __init__(
        self,
        seed: int,
        customer: Customer,
        patch: pytest.MonkeyPatch,
        sudden: Sequence[Callable[[], object]],
    ) -> None:
        self.random = random.Random(seed)
        self.customer = customer
        self.emulator = customer.emulator
        self.patch = patch
        self.delayed = Delayed(clock=self.emulator.clock.now)
        self.told: list[str] = []
        self._sudden = sudden
        customer.sink = lambda: Queued(self)

    def play(self) -> None:
        """Play it.

        Raises:
            Exception: it violates a rule.
        """
        raise NotImplementedError

    def fuse(self) -> Fuse:
        """Return what happens during a command."""
        chance, fuse = self.random.random(), Fuse(delayed=self.delayed)
        if chance < 0.5:
            fuse.left, fuse.after = self.random.randint(1, 50), self.random.random() < 0.5
            fuse.error = Killed if chance < 0.35 else KeyboardInterrupt
        elif chance < 0.7:
            fuse.left, fuse.arrives_at = self.random.randint(1, 4), lambda: arrival(self.customer.store)
        if self.random.random() < 0.3:
            fuse.acts[self.random.randint(1, 40)] = self.random.choice(self._sudden)
        return fuse

    def attempt(self, name: str, act: Callable[[], object], fuse: Fuse) -> bool:
        """Run a command, during which something happens; return whether it reports success."""
        self.told.append(f"fleet {name}, {fuse}")
        with fused(fuse, self.patch):
            try:
                act()
            except (Killed, KeyboardInterrupt) as error:
                self.told.append(type(error).__name__)
            except FleetError as error:
                self.told.append(f"{type(error).__name__}: {error.message} | {error.cause}")
            else:
                self.told.append("success")
                return True
        return False


class Queued(Quiet):
    """A sink of a history; when instances wait for capacity, something happens."""

    def __init__(self, history: Story) -> None:
        super().__init__()
        self._history = history

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, ZoneTried) and "in the queue" in event.step:
            self._history.random.choice(QUEUED)(self._history, event.zone)


def random_options(chosen: random.Random) -> dict[str, Any]:
    """Return options of a fleet, without those of the access to it."""
    gpu, model = chosen.choice(("", "", "t4", "t4:2")), chosen.choice(("", "spot", "flex-start", "reservation"))
    is_compact = not gpu and model != "reservation" and chosen.random() < 0.8
    is_queued = model == "flex-start" and bool(gpu)
    max_cost_usd = 0.0 if is_compact else chosen.choice((0.0, 0.0, 0.0, 20.0))  # the price is unknown
    powers_off = not (is_queued or max_cost_usd)
    return {
        "provider": "gce",
        "project": "proj-1",
        "gpu": gpu,
        "machine_type": "n2-standard-4" if is_compact else "",
        "placement": "compact" if is_compact else "",
        "spot": model == "spot",
        "flex_start": is_queued,
        "wait_s": 7200 if is_queued else 0,
        "reservation": "r1" if model == "reservation" else "",
        "zones": chosen.choice(ZONES),
        "anywhere": chosen.choice((False, True)),
        "max_price_usd_h": 0.0 if is_compact else chosen.choice((0.0, 0.0, 1.3)),
        "max_cost_usd": max_cost_usd,
        "idle_timeout_s": chosen.choice((0, 1800)) if powers_off else 0,
        "bucket": BUCKET if chosen.random() < 0.4 else "",
        "firewall": chosen.random() < 0.9,
        "labels": chosen.choice(((), ("team=a",))),
        "tags": chosen.choice(((), ("ssh",))),
        "python": "/usr/bin/python3",
        "setup": "true",
    }


def play_histories(seeds: Iterable[int], emulator: Emulator, directory: Path) -> None:
    """Play the histories of these seeds; a violation names the seed and what was done."""
    with pytest.MonkeyPatch.context() as patch:
        patched(patch, emulator)
        gcloud = Gcloud(directory / "gcloud")
        gcloud.log_in()
        patch.setenv("PATH", gcloud.path())
        play_each(seeds, lambda seed: History(seed, emulator, directory / str(seed), patch), emulator)


def play_each(seeds: Iterable[int], make: Callable[[int], Story], emulator: Emulator) -> None:
    """Play the history of each seed on an emulator that was reset; a violation names the seed and what was done."""
    for seed in seeds:
        emulator.reset()
        history = make(seed)
        try:
            history.play()
        except Exception as error:
            raise AssertionError(f"history {seed}: {error}\n" + "\n".join(history.told)) from error


class History(Story):
    """Commands under faults, from `fleet up` to `fleet gc`."""

    def __init__(self, seed: int, emulator: Emulator, root: Path, patch: pytest.MonkeyPatch) -> None:
        sudden = [partial(act, self) for act in SUDDEN]
        super().__init__(seed, Customer(emulator, root), patch, sudden)
        self.root = root
        self.images: set[str] = set()
        self.kept: dict[str, tuple[str, str]] = {}  # ids and addresses of the instances that must not be lost
        self.promised: dict[str, str] = {}  # ids of the instances of a complete fleet, whose disks must not be lost
        self.rules: list[Rule] = []  # the faults of the last command
        self.is_disturbed = False  # something ended or began during the last command
        allow(emulator)
        access = self.random.choice(("external", "external", "external", *MODES))
        # Only OS Login needs an account; calls without credentials are faster.
        credentials = write_credentials(root.parent, emulator.url) if access == "os-login" else ""
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
        self.customer.options |= {**random_options(self.random), **MODES[access]}
        self.workers = self.random.choice((1, 2, 3, 8))
        self.customer.sleep = self.sleep

    @property
    def workers(self) -> int:
        """Return the number of workers that the user requests."""
        return int(self.customer.options["workers"])

    @workers.setter
    def workers(self, number: int) -> None:
        self.customer.options["workers"] = number

    @property
    def given(self) -> Mapping[str, Any]:
        """Return the options of the cloud."""
        return self.customer.settings().of("gce")

    @property
    def deletes(self) -> bool:
        """Return whether Compute Engine deletes the instances of the fleet at the end of their lifetime."""
        return bool(self.given["max_cost_usd"] or self.given["flex_start"])

    def instances(self, fleet: str = FLEET) -> list[emulated.Instance]:
        """Return the instances of a fleet."""
        existing = list(self.emulator.cloud.instances.values())  # operations may run
        return [instance for instance in existing if instance.body["labels"].get("fleet") == fleet]

    def sleep(self, seconds: float) -> None:
        """Advance the clock; before `fleet up` requests capacity again, something happens."""
        self.emulator.clock.advance(seconds)
        if seconds >= RETRY_FIRST_S:
            self.random.choice(RETRIED)(self)

    def play(self) -> None:
        """Run some commands under faults, then delete the fleet without faults; no resource may remain."""
        for act in STARTS:
            act(self)
        for _ in range(self.random.randint(2, 6)):
            self.some_faults()
            verbs = list(COMMANDS) if self.is_ready() else ["up"] * 8 + ["bake", "down", "gc"]
            [verb] = self.random.choices(verbs, [COMMANDS[verb][1] for verb in verbs])
            self.command(verb)
            for chance, act in EVENTS:
                if self.random.random() < chance:
                    act(self)
        self.emulator.faults.clear()
        self.emulator.set_outage()
        self.customer.unprepared = False
        self.end()

    def is_ready(self) -> bool:
        """Return whether the fleet was complete before."""
        directory = self.customer.store.fleet(FLEET)
        record = directory.read() if directory.exists() else None
        return record is not None and record.ready

    def some_faults(self) -> None:
        self.emulator.faults.clear()
        self.rules.clear()
        for _ in range(self.random.choice((0, 1, 1, 2, 3))):
            creating = self.random.random() < 0.5
            rule = self.emulator.faults.add(
                self.random.choice(OF_CREATION if creating else OF_CALLS),
                match=self.random.choice(CREATING if creating else CALLS),
                nth=self.random.randint(1, 4 if creating else 25),
                times=self.random.choice((1, 1, 2, 5)),
                seconds=0.02,
                zones_available=self.random.choice(("", "us-central1-f")),
            )
            self.rules.append(rule)
            self.told.append(f"fault {rule}")

    def command(self, verb: str) -> None:
        self.customer.unprepared = self.random.random() < 0.15
        if self.customer.unprepared:
            self.told.append("hosts cannot be prepared")
        self.run(verb, self.fuse())

    def run(self, verb: str, fuse: Fuse | None = None) -> bool:
        """Run a command; if it reports success, check that it succeeded."""
        fuse, arrived = fuse or Fuse(delayed=self.delayed), self.delayed.arrived
        self.is_disturbed = bool(fuse.acts)
        is_successful = self.attempt(verb, partial(COMMANDS[verb][0], self), fuse)
        self.is_disturbed |= self.delayed.arrived > arrived
        for act in [*(CHECKS.get(verb, ()) if is_successful else ()), *INVARIANTS]:
            act(self)
        return is_successful

    def end(self) -> None:
        self.emulator.settle()
        if self.random.random() < 0.3:
            shutil.rmtree(self.root / "fleets", ignore_errors=True)
            if self.random.random() < 0.5:
                shutil.rmtree(self.root, ignore_errors=True)
            self.customer.store = Store(self.root)
            self.told.append("state lost")
            self.promised = {}
            self.delayed.arrive()
            self.emulator.settle()
            assert self.run("gc")
        else:
            assert self.run("down")
            self.delayed.arrive()
            self.emulator.settle()
            for act in CHECKS["down"]:
                act(self)
        assert self.run("gc --images")
        assert not [violation for violation in self.emulator.state()["violations"] if "client" in violation]
