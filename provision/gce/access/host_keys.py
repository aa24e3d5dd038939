"""The hosts that SSH reaches: addresses, host keys, and the way to instances without an external address.

Host keys are from guest attributes, or from serial consoles if a policy hides these. Only the API is asked, never the
network between this computer and the instances.
"""

from __future__ import annotations

from collections.abc import Sequence

from google.cloud import compute_v1

from provision.gce.access import iap, os_login
from provision.gce.account import Account
from provision.gce.api.batch import Answer
from provision.gce.api.messages import ApiError, from_json
from provision.gce.api.requests import is_os_login
from provision.gce.api.resources import GUEST_ATTRIBUTE, addresses, console_host_key, host_key, our_name, zone_of
from provision.gce.options import GceOptions
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.provider import ErrorKind, Progress, ProviderError

_HIDDEN = "disableGuestAttributesAccess"
"""Organization policy under which the API does not return guest attributes:
https://cloud.google.com/compute/docs/metadata/manage-guest-attributes."""


def fetch_keys(account: Account, resources: Sequence[compute_v1.Instance]) -> list[compute_v1.Instance]:
    """Fetch the host keys that are not known yet, all in one request.

    Returns:
        The instances that have not published theirs.

    Raises:
        ApiError: an instance is gone, or its guest attributes cannot be read.
    """
    unknown = [resource for resource in resources if str(resource.id) not in account.keys]
    if not unknown:
        return []
    hidden = []
    for resource, answer in zip(unknown, account.guest_attributes(unknown, "hostkeys"), strict=True):
        failures = answer.failures
        if _is_hidden(answer):
            hidden.append(resource)
        elif failures and not (answer.status == 404 and GUEST_ATTRIBUTE in failures[0].message):
            raise ApiError(failures)
        elif key := host_key(from_json(compute_v1.GuestAttributes, answer.body)):
            account.keys[str(resource.id)] = key
    _read_consoles(account, hidden)
    return [resource for resource in unknown if str(resource.id) not in account.keys]


def _is_hidden(answer: Answer) -> bool:
    return any(_HIDDEN in failure.message for failure in answer.failures)


def _read_consoles(account: Account, resources: Sequence[compute_v1.Instance]) -> None:
    for resource, answer in zip(resources, account.consoles(resources) if resources else (), strict=True):
        if failures := answer.failures:
            raise ApiError(failures)
        if key := console_host_key(str(answer.body.get("contents", ""))):
            account.keys[str(resource.id)] = key


def await_keys(account: Account, resources: Sequence[compute_v1.Instance], progress: Progress) -> None:
    """Wait until each instance has booted and published its host key.

    Raises:
        ProviderError: an instance does not publish its host key in time.
        ApiError: an instance is gone; or a policy hides guest attributes, and the image prints no host keys.
    """
    waiting = {our_name(resource) for resource in resources}
    for name in waiting:
        progress(name, "booting")
    timing = account.api.timing
    for _ in timing.polls(timing.boot_s):
        left = {our_name(resource) for resource in fetch_keys(account, resources)}
        for name in sorted(waiting - left):
            progress(name, "ready")
        waiting &= left
        if not left:
            return
    late = [resource for resource in resources if str(resource.id) not in account.keys]
    [answer] = account.guest_attributes(late[:1], "hostkeys")
    if _is_hidden(answer):
        raise ApiError(answer.failures)
    names = ", ".join(our_name(resource) for resource in late)
    first = late[0]
    serial_port = ("gcloud", "compute", "instances", "get-serial-port-output", first.name)
    raise ProviderError(
        ErrorKind.UNREACHABLE,
        f"{names} did not publish a host key within {timing.boot_s:g} s",
        cause="the image may have no guest agent, or its boot failed",
        next_steps=[(*serial_port, "--zone", zone_of(first), "--project", account.api.project)],
    )


def hosts(account: Account, spec: FleetSpec, cloud: GceOptions, instances: Sequence[Instance]) -> list[Host]:
    """Return the hosts of `instances`, in their order; the host keys are from their guest attributes.

    Raises:
        ApiError: a call failed.
        ProviderError: an instance does not run, or has not published its host key.
    """
    existing = {str(resource.id): resource for resource in account.resources(spec.name)}
    pairs = [(worker, existing.get(worker.id)) for worker in instances]
    running = [resource for _, resource in pairs if resource is not None and resource.status == "RUNNING"]
    for worker, resource in pairs:
        if resource not in running:
            raise _not_running(worker)
    late = fetch_keys(account, running)
    if late:
        names = ", ".join(our_name(resource) for resource in late)
        message = f"{names} in fleet {spec.name} has not published a host key yet"
        raise ProviderError(ErrorKind.UNREACHABLE, message, again={})
    return [_host(account, resource, cloud, spec) for resource in running]


def _host(account: Account, resource: compute_v1.Instance, cloud: GceOptions, spec: FleetSpec) -> Host:
    inside, outside = addresses(resource)
    external = cloud.external and outside
    return Host(
        name=our_name(resource),
        address=outside if external else inside,
        port=cloud.ssh_port,
        user=_login_name(account, resource, cloud, spec),
        host_key=account.keys[str(resource.id)],
        key_alias=f"compute.{resource.id}",
        private_address=inside,
        python=spec.python,
        proxy=() if external else iap.tunnel(account, resource, cloud.ssh_port),
    )


def _login_name(account: Account, resource: compute_v1.Instance, cloud: GceOptions, spec: FleetSpec) -> str:
    if not is_os_login(resource.metadata):
        return cloud.ssh_user
    if spec.name not in account.logins:
        account.logins[spec.name] = os_login.grant(account, spec, cloud)
    return account.logins[spec.name]


def _not_running(worker: Instance) -> ProviderError:
    state = worker.state.value if worker.state is not InstanceState.RUNNING else "gone"
    message = f"{worker.name} in fleet {worker.fleet} is not running: it is {state}"
    return ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])
