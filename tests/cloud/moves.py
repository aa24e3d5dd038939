"""Commands, events, and checks of the random histories; tables at the end list them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import requests
from google.cloud import compute_v1

from fleet.errors import FleetError
from fleet.events import ImageBaked
from fleet.state import BAKING
from provision.gce.api.client import from_json
from provision.gce.api.prices import table
from provision.gce.api.resources import IAP_RANGE, our_name
from provision.gce.catalog.names import continent_of
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.names import instance_name
from tests.cloud.access_modes import EMAIL, HOST
from tests.cloud.customer import FLEET, Customer
from tests.cloud.fuses import Killed
from tests.emulator import lifecycle
from tests.emulator.blueprint import project_of
from tests.emulator.catalog import NEW_PROJECT_QUOTAS, ZONES
from tests.emulator.client import Client

if TYPE_CHECKING:
    from tests.cloud.histories import History, Story


def worker_of(body: dict[str, Any]) -> str:
    """Return the name within its fleet of an instance of the emulator."""
    return our_name(from_json(compute_v1.Instance, body))


# --- a fleet from `fleet up` to `fleet down` or `fleet gc`


def run_up(history: History) -> None:
    history.customer.up(retry=history.random.random() < 0.3)


def run_down(history: History) -> None:
    history.kept, history.promised = {}, {}
    history.customer.down()


def run_gc(history: History) -> None:
    history.customer.gc()


def check_all_run_in_one_zone(history: History) -> None:
    if history.is_disturbed:
        return
    running = history.customer.running()
    assert len(running) == history.workers
    assert len({instance.blueprint.zone for instance in running}) == 1


def check_nothing_is_left(history: History) -> None:
    history.emulator.settle()  # a deletion that takes long is requested twice
    state = history.emulator.state()
    names = [name for key in ("instances", "disks", "firewalls", "addresses", "policies") for name in state[key]]
    assert not [name for name in names if name.startswith(f"{FLEET}-")], names


# --- changes of a fleet that exists: another number of workers, another deadline, and the replacement of lost hosts


LIFETIME_S = 4 * 3600


def request_other_number(history: History) -> None:
    if not history.kept:  # those that `fleet down --keep-disks` has stopped are compared after the next start
        history.workers = history.random.choice((1, 2, 3, 4))
        names = {*map(instance_name, range(history.workers))}
        history.promised = {name: number for name, number in history.promised.items() if name in names}
        history.told.append(f"{history.workers} workers are requested")


def run_extend(history: History) -> None:
    if not history.kept:
        history.customer.extend(LIFETIME_S)


def run_repair(history: History) -> None:
    """Replace lost hosts, as commands do that follow a job."""
    if not history.kept:
        history.customer.repair()


def check_all_are_replaced(history: History) -> None:
    # Otherwise nothing was repaired, and another computer may have started the instances.
    if not history.kept and not history.is_disturbed:
        assert len({instance.blueprint.zone for instance in history.customer.running()}) == 1


# --- a fleet that is stopped with its disks, and started again


def run_stop(history: History) -> None:
    history.kept = {}
    history.customer.down(keep_disks=True)
    names = map(instance_name, range(history.workers))  # the next start deletes others
    stopped = {worker_of(each.body): each for each in history.instances()}
    history.kept = {name: (stopped[name].body["id"], stopped[name].address) for name in names if name in stopped}


def forget_stop(history: History) -> None:
    """Let another program start the stopped instances, as a user does in the console."""
    for instance in list(history.emulator.cloud.instances.values()):
        if instance.status == "TERMINATED":
            url = f"{history.emulator.url}/compute/v1/{instance.blueprint.path}/start"
            with contextlib.suppress(requests.ConnectionError):  # a fault of the history
                requests.post(url, timeout=60)
    history.emulator.settle()
    history.told.append("all instances were started elsewhere")


def check_nothing_runs(history: History) -> None:
    assert history.kept
    assert history.is_disturbed or not history.customer.running()


def check_disks_are_kept(history: History) -> None:
    """Check that the instances which `fleet down --keep-disks` stopped are those that run now."""
    current = history.instances() if history.is_disturbed else history.customer.running()
    now = {worker_of(each.body): (each.body["id"], each.address) for each in current}
    assert {name: now.get(name) for name in history.kept} == history.kept
    history.kept = {}


# --- images of prepared hosts


def run_bake(history: History) -> None:
    [baked] = history.customer.bake().of(ImageBaked)
    history.images.add(baked.image)


def bake_first(history: History) -> None:
    """In some histories, let the user bake on another computer before the first command."""
    if history.random.random() < 0.15:
        bake_elsewhere(history)


def bake_elsewhere(history: History) -> None:
    """Let the user bake on another computer, without faults."""
    history.emulator.faults.clear()
    other = Customer(history.emulator, history.root / "elsewhere", **history.customer.options)
    with contextlib.suppress(FleetError):  # a killed command may have left an image that is not ready
        [baked] = other.bake().of(ImageBaked)
        history.images.add(baked.image)
        history.told.append(f"baked {baked.image} elsewhere")


def check_hosts_boot_from_images_that_exist(history: History) -> None:
    disks = list(history.emulator.cloud.disks.values())  # operations may run
    booted = {disk["sourceImage"].rpartition("/")[2] for disk in disks}
    assert {name for name in booted if name.startswith("fleet-")} <= {*history.emulator.state()["images"]}


def run_gc_of_images(history: History) -> None:
    history.customer.gc(images=True)
    history.images.clear()


def check_no_host_of_an_image_is_left(history: History) -> None:
    assert not history.instances(BAKING)


def check_images_are_kept(history: History) -> None:
    assert history.images <= set(history.emulator.state()["images"])


def check_no_image_is_left(history: History) -> None:
    history.emulator.settle()
    state = history.emulator.state()
    held = {key: state[key] for key in ("instances", "disks", "firewalls", "addresses", "images")}
    assert not any(held.values()), held


# --- ends of instances that no command requested; their disks are kept


def fail_host(history: History) -> None:
    """Let the machine of an instance fail; Compute Engine starts instances on demand again."""
    for instance in history.customer.running()[:1]:
        with contextlib.suppress(LookupError):
            history.emulator.fail_host(instance.blueprint.name)
            history.told.append(f"the machine of {instance.blueprint.name} fails")


def power_off(history: History) -> None:
    """Let an instance power itself off, as its agent does when it is idle or its lifetime is over."""
    for instance in history.customer.running()[-1:]:
        with history.emulator.clock.changed:
            lifecycle.power_off(history.emulator.cloud, instance)
        history.told.append(f"{instance.blueprint.name} powers itself off")


def maintain(history: History) -> None:
    """Let Compute Engine maintain the machine of an instance, which stops for that if it has GPUs."""
    for instance in history.customer.running()[:1]:
        with history.emulator.clock.changed:
            lifecycle.maintain(history.emulator.cloud, instance)
        history.emulator.clock.advance(3600.0)
        history.told.append(f"the machine of {instance.blueprint.name} is maintained")


def promise_disks(history: History) -> None:
    """Remember the instances of the complete fleet; those that Compute Engine deletes by itself are left out."""
    if not history.deletes:
        present = {worker_of(each.body): each.body["id"] for each in history.instances()}
        names = map(instance_name, range(history.workers))  # `fleet up` deletes others
        history.promised = {name: present[name] for name in names if name in present}


def check_no_disk_is_lost(history: History) -> None:
    ids = {each.body["id"] for each in history.instances()}
    lost = [name for name, number in history.promised.items() if number not in ids]
    assert not lost, f"lost with their disks: {', '.join(lost)}"


# --- preemption of instances


def preempt(history: History) -> None:
    for instance in history.customer.running()[:1]:
        with contextlib.suppress(LookupError, ValueError):
            history.emulator.preempt(instance.blueprint.name, 0.0)
            if history.random.random() < 0.5:
                history.emulator.advance(1.0)
            history.kept = {}
            history.promised.pop(worker_of(instance.body), None)
            history.told.append(f"preempted {instance.blueprint.name}")


# --- zones that do not answer for a time; no command may take their instances as missing or deleted


def change_outage(history: History) -> None:
    used = sorted({instance.blueprint.zone for instance in history.instances()})
    zones = history.random.choice(((), used[:1], used[:1], ("us-west4-a",)))
    history.emulator.set_outage(*zones)
    history.told.append(f"zones that do not answer: {', '.join(zones) or 'none'}")


# --- zones that a fleet may be created in: one continent, and the limit of the price


def fill_regions(history: History) -> None:
    region = history.random.choice(("us-", "us-central1-", "europe-"))
    for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f", "us-west4-a", "europe-west1-b"):
        if zone.startswith(region):
            history.emulator.set_capacity(zone, 0)
    history.told.append(f"no capacity in {region}*")


def change_quotas(history: History) -> None:
    """Let the project have the quotas of a new one, or others again."""
    limits = history.random.choice((NEW_PROJECT_QUOTAS, dict.fromkeys(NEW_PROJECT_QUOTAS, 1000.0)))
    for metric, limit in limits.items():
        history.emulator.set_quota(metric, limit)
    history.told.append(f"quotas: {limits['CPUS_ALL_REGIONS']:g} vCPUs, {limits['GPUS_ALL_REGIONS']:g} GPUs")


def free_zones(history: History) -> None:
    for zone in ZONES:
        history.emulator.set_capacity(zone, 100)
    change_quotas(history)
    history.told.append("capacity in all zones")


def check_price_and_continent(history: History) -> None:
    given = history.given
    machine = {key: given[key] for key in ("gpu", "machine_type", "spot") if given[key]}
    cloud = GceProvider.change(GceOptions(), machine)
    prices = {zone: usd_h for zone in ZONES if (usd_h := table().usd_h(cloud, zone)) is not None}
    # If the price is unknown, the continent depends on the zones that answer.
    home = continent_of(min(prices, key=lambda each: prices[each])) if prices else ""
    for zone in {instance.blueprint.zone for instance in history.customer.running()}:
        assert not given["max_price_usd_h"] or prices[zone] <= given["max_price_usd_h"]
        if home and not given["zones"] and not given["anywhere"] and not history.is_disturbed:
            assert continent_of(zone) == home


# --- flex-start VMs that wait for capacity


def make_scarce(history: Story, workers: int) -> None:
    """Let the zones have capacity for fewer workers, so that Flex-start VMs must wait."""
    limit = history.random.randrange(workers)
    for zone in ZONES:
        history.emulator.set_capacity(zone, limit)
    history.told.append(f"capacity for {limit} in each zone")


def limit_capacity(history: History) -> None:
    """Make capacity scarce before the first command of many histories with Flex-start VMs."""
    if history.given["flex_start"] and history.random.random() < 0.7:
        make_scarce(history, history.workers)


def free_capacity(history: Story, zone: str) -> None:
    history.told.append(f"capacity in {zone}")
    history.emulator.set_capacity(zone, 100)


def expire(history: Story, zone: str) -> None:
    history.told.append(f"the queue of {zone} expires")
    history.emulator.clock.advance(7200)


def kill(history: Story, zone: str) -> None:
    history.told.append("killed while it waits for capacity")
    raise Killed


def interrupt(history: Story, zone: str) -> None:
    history.told.append("interrupted while it waits for capacity")
    raise KeyboardInterrupt


def check_none_is_queued(history: History) -> None:
    assert not [each for each in list(history.emulator.cloud.instances.values()) if each.status == "PENDING"]


# --- instances in a reservation


def reserve(history: History) -> None:
    """Reserve instances of the history's machine, sometimes too few."""
    given = history.given
    if not given["reservation"]:
        return
    count = history.workers + history.random.choice((-1, 0, 0, 1))
    name, _, gpus = given["gpu"].partition(":")
    accelerators = [{"acceleratorType": f"nvidia-tesla-{name}", "acceleratorCount": int(gpus or 1)}] if name else []
    Client(history.emulator).reserve(
        "r1",
        max(1, count),
        machineType="n1-standard-8" if gpus == "2" else "n1-standard-4",
        guestAccelerators=accelerators,
    )
    history.told.append(f"reservation for {max(1, count)} in us-central1-a")


def check_all_use_the_reservation(history: History) -> None:
    reservation = history.given["reservation"]
    assert all(instance.blueprint.reservation == reservation for instance in history.customer.running())


def create_bucket(history: History) -> None:
    history.emulator.cloud.storage.create("training-data")


# --- access from a computer that moves


def move_caller(history: History) -> None:
    address = history.random.choice(("198.51.100.7", "203.0.113.9"))
    history.emulator.set_caller(address)
    history.told.append(f"the caller is at {address}")


def check_rule_admits_caller(history: History) -> None:
    if any("firewalls" in rule.match and rule.struck for rule in history.rules):
        return  # SSH may still work, so that the command only warns
    cloud, given = history.emulator.cloud, history.given
    source = f"{cloud.caller}/32" if given.get("external", True) else IAP_RANGE
    names = [name for name in cloud.firewalls if name.startswith(f"{FLEET}-")]
    rules = [cloud.firewalls[name] for name in names if cloud.firewalls[name].get("sourceRanges") == [source]]
    projects = [HOST if "network" in given else cloud.project] if given["firewall"] else []
    assert [project_of(rule["network"]) for rule in rules] == projects


def check_no_key_is_left(history: History) -> None:
    profile = history.emulator.cloud.profiles.get(EMAIL)
    assert not [key for key in profile.keys.values() if f"made by fleet for {FLEET}," in str(key)]


# --- instances that were kept after a failure


def check_no_instance_powers_off_before_its_lifetime_ends(history: History) -> None:
    for instance in history.customer.running():
        items = instance.metadata()
        assert items["fleet-stop-at"] == ("0" if history.deletes else items["fleet-end-at"])


Act = Callable[["History"], None]
COMMANDS: dict[str, tuple[Act, int]] = {
    "up": (run_up, 3),
    "down": (run_down, 1),
    "gc": (run_gc, 1),
    "extend": (run_extend, 2),
    "repair": (run_repair, 2),
    "down --keep-disks": (run_stop, 3),
    "bake": (run_bake, 1),
    "gc --images": (run_gc_of_images, 0),
}
"""The commands, each with its weight among the random ones."""
STARTS: list[Act] = [
    bake_first,
    limit_capacity,
    reserve,
    create_bucket,
]
"""Changes of the cloud before the first command."""
EVENTS: list[tuple[float, Act]] = [
    (0.2, request_other_number),
    (0.2, forget_stop),
    (0.05, bake_elsewhere),
    (0.2, fail_host),
    (0.1, power_off),
    (0.1, maintain),
    (0.4, preempt),
    (0.3, change_outage),
    (0.2, fill_regions),
    (0.2, change_quotas),
    (0.2, move_caller),
]
"""Changes of the cloud after a command, each with its probability."""
SUDDEN: list[Act] = [fail_host, power_off, preempt, change_outage, fill_regions]
"""Events that happen between two calls of a command, too."""
QUEUED: list[Callable[[Story, str], None]] = [free_capacity, expire, kill, interrupt]
"""Events while instances wait for capacity in a zone; one happens whenever their number changes."""
RETRIED: list[Act] = [free_zones, lambda history: kill(history, ""), lambda history: interrupt(history, "")]
"""Events before ``fleet up --retry-until-up`` requests capacity again; one happens each time."""
INVARIANTS: list[Act] = [check_no_disk_is_lost]
"""Checks after each command, whether it succeeds or not."""
CHECKS: dict[str, list[Act]] = {
    "up": [
        check_all_run_in_one_zone,
        check_rule_admits_caller,
        promise_disks,
        check_hosts_boot_from_images_that_exist,
        check_images_are_kept,
        check_no_instance_powers_off_before_its_lifetime_ends,
        check_none_is_queued,
        check_all_use_the_reservation,
        check_disks_are_kept,
        check_price_and_continent,
    ],
    "down": [check_nothing_is_left, check_no_key_is_left, check_images_are_kept],
    "gc": [check_images_are_kept],
    "repair": [check_all_are_replaced, promise_disks],
    "bake": [check_no_host_of_an_image_is_left, check_images_are_kept],
    "gc --images": [check_no_image_is_left],
}
"""Checks after each of these commands that reports success."""
