"""The hosts that SSH reaches: addresses, host keys, and tunnels to instances without an external address.

Host keys are from guest attributes, or from serial consoles if a policy hides these. Only the API is asked, never the
network between this computer and the instances.

gcloud opens the tunnels of Identity-Aware Proxy. The protocol between it and Google is documented only by its source,
and no maintained library on PyPI implements it. gcloud has its own login, which can be another account than that of
the credentials: https://cloud.google.com/iap/docs/using-tcp-forwarding.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence

from google.cloud import compute_v1

from provision.gce.access import accounts
from provision.gce.account import Account
from provision.gce.api.client import ApiError
from provision.gce.api.iam import account_of, is_enabled, permitted_tunnels
from provision.gce.api.resources import (
    GUEST_ATTRIBUTE,
    addresses,
    console_host_key,
    host_key,
    is_os_login,
    our_name,
    zone_of,
)
from provision.gce.catalog.names import Fleet
from provision.gce.diagnosis import UNKNOWN_MEMBER, Failure, missing_permission
from provision.model import Host, Instance, InstanceState
from provision.provider import ErrorKind, Progress, ProviderError

API = "iap.googleapis.com"
USE = "iap.tunnelInstances.accessViaIAP"
_TIMEOUT_S = 60.0
_HIDDEN = "disableGuestAttributesAccess"
"""Organization policy under which the API does not return guest attributes:
https://cloud.google.com/compute/docs/metadata/manage-guest-attributes."""


def fetch_keys(account: Account, resources: Sequence[compute_v1.Instance]) -> list[compute_v1.Instance]:
    """Fetch the host keys that are not known yet.

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
        if not isinstance(answer, ApiError):
            _keep(account, resource, host_key(answer))
        elif _is_hidden(answer):
            hidden.append(resource)
        elif answer.status != 404 or GUEST_ATTRIBUTE not in answer.failures[0].message:
            raise answer
    for resource, console in zip(hidden, account.read(hidden, "serialPort", port="1"), strict=True):
        if isinstance(console, ApiError):
            raise console
        _keep(account, resource, console_host_key(str(console.get("contents", ""))))
    return [resource for resource in unknown if str(resource.id) not in account.keys]


def _keep(account: Account, resource: compute_v1.Instance, key: str) -> None:
    if key:
        account.keys[str(resource.id)] = key


def _is_hidden(error: ApiError) -> bool:
    return any(_HIDDEN in failure.message for failure in error.failures)


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
    if isinstance(answer, ApiError) and _is_hidden(answer):
        raise answer
    names = ", ".join(our_name(resource) for resource in late)
    first = late[0]
    serial_port = ("gcloud", "compute", "instances", "get-serial-port-output", first.name)
    raise ProviderError(
        ErrorKind.UNREACHABLE,
        f"{names} did not publish a host key within {timing.boot_s:g} s",
        cause="the image may have no guest agent, or its boot failed",
        next_steps=[(*serial_port, "--zone", zone_of(first), "--project", account.api.project)],
    )


def hosts(account: Account, fleet: Fleet, instances: Sequence[Instance]) -> list[Host]:
    """Return the hosts of `instances`, in their order; the host keys are from their guest attributes.

    Raises:
        ApiError: a call failed.
        ProviderError: an instance does not run, or has not published its host key.
    """
    existing = {str(resource.id): resource for resource in account.resources(fleet.name)}
    pairs = [(worker, existing.get(worker.id)) for worker in instances]
    running = [resource for _, resource in pairs if resource is not None and resource.status == "RUNNING"]
    for worker, resource in pairs:
        if resource not in running:
            raise _not_running(worker)
    late = fetch_keys(account, running)
    if late:
        names = ", ".join(our_name(resource) for resource in late)
        message = f"{names} in fleet {fleet.name} has not published a host key yet"
        raise ProviderError(ErrorKind.UNREACHABLE, message, again={})
    return [_host(account, resource, fleet) for resource in running]


def _host(account: Account, resource: compute_v1.Instance, fleet: Fleet) -> Host:
    inside, outside = addresses(resource)
    external, port = fleet.cloud.external and outside, fleet.cloud.ssh_port
    return Host(
        name=our_name(resource),
        address=outside if external else inside,
        port=port,
        user=_login_name(account, resource, fleet),
        host_key=account.keys[str(resource.id)],
        key_alias=f"compute.{resource.id}",
        private_address=inside,
        python=fleet.spec.python,
        proxy=() if external else tunnel(account, resource, port),
    )


def _login_name(account: Account, resource: compute_v1.Instance, fleet: Fleet) -> str:
    if not is_os_login(resource.metadata):
        return fleet.cloud.ssh_user
    if fleet.name not in account.logins:
        account.logins[fleet.name] = accounts.import_key(account, fleet)
    return account.logins[fleet.name]


def _not_running(worker: Instance) -> ProviderError:
    state = worker.state.value if worker.state is not InstanceState.RUNNING else "gone"
    message = f"{worker.name} in fleet {worker.fleet} is not running: it is {state}"
    return ProviderError(ErrorKind.UNREACHABLE, message, next_steps=[("fleet", "up")])


def tunnel(account: Account, resource: compute_v1.Instance, port: int) -> tuple[str, ...]:
    """Return the command whose input and output are a connection to a TCP port of an instance."""
    start = ("gcloud", "compute", "start-iap-tunnel", resource.name, str(port), "--listen-on-stdin")
    return (*start, f"--project={account.api.project}", f"--zone={zone_of(resource)}")


def find_gcloud() -> str:
    """Return the path of gcloud.

    Raises:
        ProviderError: it is not installed.
    """
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        hint = "install it from https://cloud.google.com/sdk/docs/install, or remove --iap"
        cause = "without external addresses, SSH goes through Identity-Aware Proxy, which requires gcloud"
        raise ProviderError(ErrorKind.MISSING, "gcloud is not installed on this computer", cause=cause, hint=hint)
    return gcloud


def access_token() -> str:
    """Return an access token of the account that is logged in to gcloud.

    Raises:
        ProviderError: gcloud is not installed, or has no valid login.
    """
    command = [find_gcloud(), "auth", "print-access-token"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_login(str(error)) from error
    if done.returncode or not done.stdout.strip():
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise _no_login(lines[0] if lines else f"exit code {done.returncode}")
    return done.stdout.strip()


def _no_login(reason: str) -> ProviderError:
    message = "gcloud, which opens the tunnels of Identity-Aware Proxy, is not logged in"
    hint = "gcloud does not use the credentials of 'gcloud auth application-default login'"
    return ProviderError(
        ErrorKind.CREDENTIALS, message, cause=reason, hint=hint, next_steps=[("gcloud", "auth", "login")]
    )


def check_tunnels(account: Account) -> str:
    """Check that the account of gcloud can open tunnels; return its address, empty if it cannot be determined.

    Raises:
        ProviderError: the API is not enabled, gcloud is not logged in, or its account lacks the permission.
    """
    project = account.api.project
    token = access_token()
    if _is_disabled(account):
        failure = Failure("SERVICE_DISABLED", f"tunnels to instances without external addresses use {API}", 403)
        raise account.diagnosis([failure], "use Identity-Aware Proxy")
    email = account_of(account.api, token)
    try:
        is_allowed = USE in permitted_tunnels(account.api, token, [USE])
    except ApiError:  # the tunnel will show it
        return email
    if not is_allowed:
        kind = "serviceAccount" if email.endswith(".gserviceaccount.com") else "user"
        member = shlex.quote(f"{kind}:{email}") if email else UNKNOWN_MEMBER
        raise missing_permission(USE, project, doing="open tunnels with the account of gcloud", member=member)
    return email


def _is_disabled(account: Account) -> bool:
    """Return whether the API is certainly not enabled; the caller may lack the permission to ask."""
    try:
        return not is_enabled(account.api, API)
    except ApiError:
        return False
