"""Buckets that instances use, which are the user's: no command changes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import STARTS, event, invariant
from tests.emulator.governance import DEFAULT_ACCOUNT

if TYPE_CHECKING:
    from tests.cloud.histories import History

_USED, _OTHER = "training-data", "backups"
_OBJECTS = {_USED: {"data/words.txt"}, _OTHER: {"2024.tar"}}


def create_buckets(history: History) -> None:
    """Create the bucket of the fleet and another one, sometimes without roles for the instances."""
    storage = history.emulator.cloud.storage
    roles = history.random.choice(({}, {"objectUser": f"serviceAccount:{DEFAULT_ACCOUNT}"}))
    history.objects = {bucket: set(names) for bucket, names in _OBJECTS.items()}
    for bucket, names in history.objects.items():
        storage.create(bucket, **roles)
        for name in names:
            storage.put(bucket, name, b"kept", {}, history.emulator.clock.stamp())
    history.policies = policies(history)


STARTS.append(create_buckets)


@event(0.3)
def write_result(history: History) -> None:
    """Let a job write a result to the bucket of the fleet."""
    if history.running() and history.settings.of("gce")["bucket"]:
        name = f"run/{len(history.objects[_USED])}"
        history.objects[_USED].add(name)
        history.emulator.cloud.storage.put(_USED, name, b"kept", {}, history.emulator.clock.stamp())
        history.told.append(f"a job wrote {name}")


def policies(history: History) -> list[dict[str, list[str]]]:
    """Return copies of who may use the project and each bucket."""
    storage, governance = history.emulator.cloud.storage, history.emulator.cloud.governance
    members = [governance.members, *(each.members for each in storage.buckets.values())]
    return [{role: sorted(given) for role, given in each.items()} for each in members] + [dict(governance.roles)]


@invariant
def check_nothing_of_the_user_changes(history: History) -> None:
    buckets = history.emulator.cloud.storage.buckets
    assert {name: {*bucket.objects} for name, bucket in buckets.items()} == history.objects
    assert all(each.content == b"kept" for bucket in buckets.values() for each in bucket.objects.values())
    assert policies(history) == history.policies
    accounts = history.emulator.cloud.governance.service_accounts
    assert all(accounts.values())
