"""SSH host keys of instances, from their guest attributes, or from their serial consoles if a policy hides these.

Only the API is asked, never the network between this computer and the instances.
"""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.account import Account
from provision.gce.rest.api import ApiError, Json, answer_failures
from provision.gce.rest.batch import Answer
from provision.gce.rest.resources import GUEST_ATTRIBUTE, console_host_key, host_key, our_name, zone_of
from provision.provider import ErrorKind, Progress, ProviderError

_HIDDEN = "disableGuestAttributesAccess"
"""Organization policy under which the API does not return guest attributes:
https://cloud.google.com/compute/docs/metadata/manage-guest-attributes."""


def fetch_keys(account: Account, resources: Sequence[Json]) -> list[Json]:
    """Fetch the host keys that are not known yet, all in one request.

    Returns:
        The instances that have not published theirs.

    Raises:
        ApiError: an instance is gone, or its guest attributes cannot be read.
    """
    unknown = [resource for resource in resources if str(resource["id"]) not in account.keys]
    if not unknown:
        return []
    hidden = []
    for resource, answer in zip(unknown, account.guest_attributes(unknown, "hostkeys"), strict=True):
        failures = answer_failures(answer)
        if _is_hidden(answer):
            hidden.append(resource)
        elif failures and not (answer.status == 404 and GUEST_ATTRIBUTE in failures[0].message):
            raise ApiError(failures)
        elif key := host_key(answer.body):
            account.keys[str(resource["id"])] = key
    _read_consoles(account, hidden)
    return [resource for resource in unknown if str(resource["id"]) not in account.keys]


def _is_hidden(answer: Answer) -> bool:
    return any(_HIDDEN in failure.message for failure in answer_failures(answer))


def _read_consoles(account: Account, resources: Sequence[Json]) -> None:
    for resource, answer in zip(resources, account.consoles(resources) if resources else (), strict=True):
        if failures := answer_failures(answer):
            raise ApiError(failures)
        if key := console_host_key(str(answer.body.get("contents", ""))):
            account.keys[str(resource["id"])] = key


def await_keys(account: Account, resources: Sequence[Json], progress: Progress) -> None:
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
    late = [resource for resource in resources if str(resource["id"]) not in account.keys]
    [answer] = account.guest_attributes(late[:1], "hostkeys")
    if _is_hidden(answer):
        raise ApiError(answer_failures(answer))
    names = ", ".join(our_name(resource) for resource in late)
    first = late[0]
    serial_port = ("gcloud", "compute", "instances", "get-serial-port-output", str(first["name"]))
    raise ProviderError(
        ErrorKind.UNREACHABLE,
        f"{names} did not publish a host key within {timing.boot_s:g} s",
        cause="the image may have no guest agent, or its boot failed",
        next_steps=[(*serial_port, "--zone", zone_of(first), "--project", account.api.project)],
    )
