"""Random histories of a fleet on Compute Engine: faults, kills, and interruptions at any point."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from fleet.cli.fleets.up import RETRY_FIRST_S
from fleet.errors import FleetError
from fleet.events import Event, ZoneTried
from fleet.state import Store
from tests.cloud.access_modes import MODES, allow, write_credentials
from tests.cloud.customer import QuickServices, Quiet, patched
from tests.cloud.fuses import Delayed, Fuse, Killed, arrival, fused
from tests.cloud.moves import CHECKS, COMMANDS, EVENTS, INVARIANTS, QUEUED, RETRIED, STARTS, SUDDEN
from tests.emulator import Emulator
from tests.emulator import cloud as emulated
from tests.emulator.client import Gcloud
from tests.emulator.faults import Rule
from tests.settings import settings

if TYPE_CHECKING:
    from tests.cloud.moves import Story

BUCKET = "gs://training-data"
SERVICE_ACCOUNT = "trainer@proj-1.iam.gserviceaccount.com"
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


def random_options(chosen: random.Random) -> dict[str, Any]:
    """Return options of a fleet, without those of the access to it."""
    gpu, model = chosen.choice(("", "", "t4", "t4:2")), chosen.choice(("", "spot", "flex-start", "reservation"))
    is_compact = not gpu and model != "reservation" and chosen.random() < 0.8
    is_unattended = model == "spot" and chosen.random() < 0.8
    is_queued = model == "flex-start" and bool(gpu)
    max_cost_usd = 0.0 if is_compact else chosen.choice((0.0, 0.0, 0.0, 20.0))  # the price is unknown
    powers_off = is_unattended or not (is_queued or max_cost_usd)
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
        "unattended": is_unattended,
        "service_account": SERVICE_ACCOUNT if is_unattended else "",
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
        self.fleet = "history"
        self.random = random.Random(seed)
        self.emulator = emulator
        self.root = root
        self.patch = patch
        self.told: list[str] = []
        self.images: set[str] = set()
        self.unprepared = False
        self.kept: dict[str, tuple[str, str]] = {}  # ids and addresses of the instances that must not be lost
        self.promised: dict[str, str] = {}  # ids of the instances of a complete fleet, whose disks must not be lost
        self.rules: list[Rule] = []  # the faults of the last command
        self.delayed = Delayed()
        self.is_disturbed = False  # something ended or began during the last command
        self.workers = self.random.choice((1, 2, 3, 8))
        allow(emulator)
        access = self.random.choice(("external", "external", "external", *MODES))
        # Only OS Login needs an account; calls without credentials are faster.
        credentials = write_credentials(root.parent, emulator.url) if access == "os-login" else ""
        patch.setenv("GOOGLE_APPLICATION_CREDENTIALS", credentials)
        options = {**random_options(self.random), **MODES[access]}
        self.settings = settings(endpoint=emulator.url, workers=self.workers, **options)

    @property
    def deletes(self) -> bool:
        """Return whether Compute Engine deletes the instances of the fleet at the end of their lifetime."""
        cloud = self.settings.of("gce")
        return bool((cloud["max_cost_usd"] or cloud["flex_start"]) and not cloud["unattended"])

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
        return QuickServices(
            Store(self.root), lambda _: True, consent=lambda _: True, sleep=self.sleep, unprepared=self.unprepared
        )

    def sleep(self, seconds: float) -> None:
        """Advance the clock; before `fleet up` requests capacity again, something happens."""
        self.emulator.clock.advance(seconds)
        if seconds >= RETRY_FIRST_S:
            for act in self.random.choices(RETRIED):
                act(self)

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
        self.unprepared = False
        self.end()

    def is_ready(self) -> bool:
        """Return whether the fleet was complete before."""
        directory = Store(self.root).fleet(self.fleet)
        record = directory.read() if directory.exists() else None
        return record is not None and record.ready

    def some_faults(self) -> None:
        self.emulator.faults.clear()
        self.rules.clear()
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
            self.rules.append(rule)
            self.told.append(f"fault {rule}")

    def command(self, verb: str) -> None:
        fuse = self.fuse()
        self.unprepared = self.random.random() < 0.15
        self.told.append(f"fleet {verb}, {fuse}{', hosts cannot be prepared' if self.unprepared else ''}")
        arrived = self.delayed.arrived
        self.is_disturbed = bool(fuse.acts)
        with fused(fuse, self.patch):
            self.run(verb, lambda: self.delayed.arrived > arrived)

    def fuse(self) -> Fuse:
        """Return what happens during a command."""
        chance = self.random.random()
        fuse = Fuse(delayed=self.delayed)
        if chance < 0.5:
            fuse.left, fuse.after = self.random.randint(1, 40), self.random.random() < 0.5
            fuse.error = Killed if chance < 0.35 else KeyboardInterrupt
        elif chance < 0.7:
            fuse.left, fuse.arrives_at = self.random.randint(1, 3), lambda: arrival(Store(self.root))
        if self.random.random() < 0.3:
            [act] = self.random.choices(SUDDEN)
            fuse.acts[self.random.randint(1, 40)] = lambda: act(self)
        return fuse

    def run(self, verb: str, is_late: Callable[[], bool] = lambda: False) -> bool:
        """Run a command; if it reports success, check that it succeeded.

        Args:
            verb: Name of the command.
            is_late: Returns whether a delayed call has arrived during the command.
        """
        is_successful = False
        try:
            COMMANDS[verb][0](self)
            is_successful = True
            self.told.append("success")
        except Killed:
            self.told.append("killed")
        except FleetError as error:
            self.told.append(f"{type(error).__name__}: {error.message} | {error.cause}")
        except KeyboardInterrupt:
            self.told.append("interrupted")
        self.is_disturbed |= is_late()
        for act in [*(CHECKS.get(verb, ()) if is_successful else ()), *INVARIANTS]:
            act(self)
        return is_successful

    def end(self) -> None:
        self.emulator.settle()
        self.is_disturbed = False
        if self.random.random() < 0.3:
            shutil.rmtree(self.root / "fleets", ignore_errors=True)
            if self.random.random() < 0.5:
                shutil.rmtree(self.root, ignore_errors=True)
            self.told.append("state lost")
            self.promised = {}
            self.delayed.arrive()
            self.emulator.settle()
            assert self.run("gc"), self.story()
        else:
            with fused(Fuse(delayed=self.delayed), self.patch):
                assert self.run("down"), self.story()
            self.delayed.arrive()
            self.emulator.settle()
            for act in CHECKS["down"]:
                act(self)
        assert self.run("gc --images"), self.story()
        assert not [violation for violation in self.emulator.state()["violations"] if "client" in violation], (
            self.story()
        )

    def story(self) -> str:
        return "\n".join(self.told)
