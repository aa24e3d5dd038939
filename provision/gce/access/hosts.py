"""The hosts that SSH reaches: addresses, host keys, and the way to instances without an external address."""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.access import iap, os_login
from provision.gce.access.host_keys import fetch_keys
from provision.gce.account import Account
from provision.gce.options import GceOptions
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.metadata import is_os_login
from provision.gce.rest.resources import addresses, our_name
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.provider import ErrorKind, ProviderError


def hosts(account: Account, spec: FleetSpec, cloud: GceOptions, instances: Sequence[Instance]) -> list[Host]:
    """Return the hosts of `instances`, in their order; the host keys are from their guest attributes.

    Raises:
        ApiError: a call failed.
        ProviderError: an instance does not run, or has not published its host key.
    """
    existing = {str(resource["id"]): resource for resource in account.resources(spec.name)}
    pairs = [(worker, existing.get(worker.id)) for worker in instances]
    running = [resource for _, resource in pairs if resource is not None and resource.get("status") == "RUNNING"]
    for worker, resource in pairs:
        if resource not in running:
            raise _not_running(worker)
    late = fetch_keys(account, running)
    if late:
        names = ", ".join(our_name(resource) for resource in late)
        raise ProviderError(
            ErrorKind.UNREACHABLE,
            f"{names} in fleet {spec.name} has not published a host key yet",
            again={},
        )
    return [_host(account, resource, cloud, spec) for resource in running]


def _host(account: Account, resource: Json, cloud: GceOptions, spec: FleetSpec) -> Host:
    inside, outside = addresses(resource)
    external = cloud.external and outside
    return Host(
        name=our_name(resource),
        address=outside if external else inside,
        port=cloud.ssh_port,
        user=_login_name(account, resource, cloud, spec),
        host_key=account.keys[str(resource["id"])],
        key_alias=f"compute.{resource['id']}",
        private_address=inside,
        python=spec.python,
        proxy=() if external else iap.tunnel(account, resource, cloud.ssh_port),
    )


def _login_name(account: Account, resource: Json, cloud: GceOptions, spec: FleetSpec) -> str:
    if not is_os_login(resource.get("metadata", {})):
        return cloud.ssh_user
    if spec.name not in account.logins:
        account.logins[spec.name] = os_login.grant(account, spec, cloud)
    return account.logins[spec.name]


def _not_running(worker: Instance) -> ProviderError:
    state = worker.state.value if worker.state is not InstanceState.RUNNING else "gone"
    return ProviderError(
        ErrorKind.UNREACHABLE,
        f"{worker.name} in fleet {worker.fleet} is not running: it is {state}",
        next_steps=[("fleet", "up")],
    )
