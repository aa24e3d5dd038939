"""Hosts that start each other again with the code of the agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.cloud.moves import STARTS, check, event, sudden, worker_of
from tests.emulator.cloud import Instance
from tests.emulator.governance import account_metadata
from train.agent.peers import revive

if TYPE_CHECKING:
    from tests.cloud.histories import History

_ROLE = "projects/proj-1/roles/fleetRestart"
_PERMISSIONS = ["compute.instances.get", "compute.instances.start"]


class Host(revive.Cloud):
    """The API as an instance without a guest calls it.

    Args:
        instance: The instance.
    """

    def __init__(self, instance: Instance) -> None:
        super().__init__("")
        self._instance = instance

    def _read(self, path: str, default: str | None = None) -> str:
        body, items = self._instance.body, self._instance.metadata()
        if path.startswith("instance/attributes/"):
            key = path.rpartition("/")[2]
            if key not in items and default is None:
                raise OSError(f"{path} is not set")
            return items.get(key, default or "")
        token = account_metadata(body["serviceAccounts"][0])["default"]["token"]
        return str(
            {
                "instance/name": body["name"],
                "instance/zone": body["zone"],
                "project/project-id": "proj-1",
                "instance/service-accounts/default/token": token,
            }[path]
        )


def grant_role(history: History) -> None:
    """Grant the role with which hosts start each other to their account, in most histories."""
    account = history.settings.of("gce")["service_account"]
    if not account:
        return
    history.emulator.cloud.governance.service_accounts[account] = True
    if history.random.random() < 0.95:
        history.emulator.cloud.governance.roles[_ROLE] = _PERMISSIONS
        history.emulator.cloud.governance.members[_ROLE] = {f"serviceAccount:{account}"}


STARTS.insert(0, grant_role)


@sudden
@event(0.6)
def revive_lost(history: History) -> None:
    """Let each running host start those that have stopped, as it does while a job runs."""
    for host in history.running():
        for number, lost in enumerate(history.instances(history.fleet)):
            if lost.status == "TERMINATED" and start(host, lost, number):
                history.told.append(f"{host.blueprint.name} starts {lost.blueprint.name}")


def start(host: Instance, lost: Instance, count: int) -> bool:
    """Let a host start another one; return whether it called the API."""
    try:
        return Host(host).start(worker_of(host.body), worker_of(lost.body), count)
    except (OSError, ValueError, LookupError):  # no scope, no role, no capacity, or a fault
        return False


@check("up")
def check_hosts_may_start_each_other(history: History) -> None:
    expected = history.settings.of("gce")["unattended"]
    assert all((revive.SERVER in each.metadata()) is expected for each in history.running())


@check("down --keep-disks")
def check_no_host_starts_another(history: History) -> None:
    if any(rule.kind == "404" and rule.struck for rule in history.rules):
        return  # an instance that does not exist needs no change
    instances = history.instances(history.fleet)
    assert not [each.blueprint.name for each in instances if revive.SERVER in each.metadata()]
    assert not any(start(host, lost, 0) for host in instances for lost in instances if host is not lost)
