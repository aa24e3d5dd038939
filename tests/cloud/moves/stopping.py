"""A fleet that is stopped with its disks, and started again."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import requests

from fleet.cli.fleets import down
from provision.names import instance_name
from tests.cloud.moves import check, command, event, worker_of

if TYPE_CHECKING:
    from tests.cloud.histories import History


@command("down --keep-disks", weight=3)
def run_stop(history: History) -> None:
    history.kept = {}
    down.run(down.DownRequest(history.fleet, keep_disks=True), history.services(), history.sink())
    names = map(instance_name, range(history.workers))  # the next start deletes others
    stopped = {worker_of(each.body): each for each in history.instances(history.fleet)}
    history.kept = {name: (stopped[name].body["id"], stopped[name].address) for name in names if name in stopped}


@event(0.2)
def forget_stop(history: History) -> None:
    """Let another program start the stopped instances, as a user does in the console."""
    for instance in list(history.emulator.cloud.instances.values()):
        if instance.status == "TERMINATED":
            url = f"{history.emulator.url}/compute/v1/{instance.blueprint.path}/start"
            with contextlib.suppress(requests.ConnectionError):  # a fault of the history
                requests.post(url, timeout=60)
    history.emulator.settle()
    history.told.append("all instances were started elsewhere")


@check("down --keep-disks")
def check_nothing_runs(history: History) -> None:
    assert history.kept
    assert history.is_disturbed or not history.running()


@check("up")
def check_disks_are_kept(history: History) -> None:
    """Check that the instances which `fleet down --keep-disks` stopped are those that run now."""
    current = history.instances(history.fleet) if history.is_disturbed else history.running()
    now = {worker_of(each.body): (each.body["id"], each.address) for each in current}
    assert {name: now.get(name) for name in history.kept} == history.kept
    history.kept = {}
