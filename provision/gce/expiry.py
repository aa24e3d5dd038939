"""Change metadata of instances that their startup script follows: when they power off, and what root runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.gce.account import Account
from provision.gce.catalog.series import FLEX_START
from provision.gce.options import GceOptions
from provision.gce.options.time import END_AT, POWER_OFF_S, STOP_AT
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.metadata import (
    STARTUP,
    deadlines,
    items_of,
    restarts,
    runs_scripts,
    scripts,
    startup_script,
)
from provision.gce.rest.resources import our_name, seconds
from provision.provider import ErrorKind, ProviderError

_ACTIVITY = "setting the stop time of the instances"


def stop_at(account: Account, targets: Sequence[Json], at: int) -> bool:
    """Let running instances power off at a time; their startup script does it without this computer.

    Returns:
        True if every instance has confirmed the time, which is in seconds since the epoch by the cloud's clock.

    Raises:
        ApiError: a call failed.
    """
    set_items(account, targets, {STOP_AT: str(at)}, _ACTIVITY)
    return confirmed(account, targets, "stop-at", str(at))


def release(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> None:
    """Let running instances power off only at the end of their lifetime, and correct that of Flex-start VMs.

    With ``--unattended``, they start each other again, also if they were stopped and not started by a command.

    Raises:
        ApiError: a call failed.
    """
    ends = [items_of(resource).get(END_AT, "0") if cloud.powers_off else "0" for resource in targets]
    changes = [
        (each, {STOP_AT: end, **restarts(cloud), **_queued_end(each)})
        for each, end in zip(targets, ends, strict=True)
    ]
    _change(account, changes, _ACTIVITY)


def correct_ends(account: Account, targets: Sequence[Json]) -> None:
    """Let the lifetime of running Flex-start VMs begin with their start, not with the request that was queued.

    Raises:
        ApiError: a call failed.
    """
    _change(account, [(each, _queued_end(each)) for each in targets], _ACTIVITY)


def _queued_end(resource: Json) -> dict[str, str]:
    """Return the metadata item with the end of the jobs of a Flex-start VM; empty for other instances."""
    scheduling = resource.get("scheduling", {})
    delete_at = seconds(resource.get("resourceStatus", {}).get("scheduling", {}).get("terminationTimestamp", ""))
    if scheduling.get("provisioningModel") != FLEX_START or not delete_at:
        return {}
    lifetime_s = int(scheduling.get("maxRunDuration", {}).get("seconds", 0))
    return {END_AT: str(round(delete_at) - min(POWER_OFF_S, lifetime_s // 4))}


def set_deadlines(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> None:
    """Let the lifetime of instances begin now; with ``--unattended``, they start each other again from now on.

    Raises:
        ApiError: a call failed.
    """
    set_items(account, targets, {**deadlines(cloud, account.cloud_time()), **restarts(cloud)}, _ACTIVITY)


def set_items(account: Account, targets: Sequence[Json], values: Mapping[str, str], activity: str) -> None:
    """Set metadata items of those instances that have other values; an empty value removes an item.

    Raises:
        ApiError: a call failed; `activity` names it in the message.
    """
    _change(account, [(resource, values) for resource in targets], activity)


def _change(account: Account, changes: Sequence[tuple[Json, Mapping[str, str]]], activity: str) -> None:
    """Set metadata items of instances, as `set_items` does, to values of their own."""
    calls = []
    for resource, values in changes:
        before = items_of(resource)
        items = {key: value for key, value in {**before, **values}.items() if value}
        if items != before:
            body = {
                "fingerprint": resource.get("metadata", {}).get("fingerprint", ""),
                "items": [{"key": key, "value": value} for key, value in items.items()],
            }
            calls.append(account.call(resource, "setMetadata", body))
    account.change(calls, activity)


def update_scripts(account: Account, cloud: GceOptions, targets: Sequence[Json]) -> None:
    """Let root run the scripts of `cloud` on running instances, if they changed.

    Raises:
        ApiError: a call failed.
        ProviderError: instances run a startup script of an older version; their metadata have the current one.
    """
    outdated = [resource for resource in targets if not runs_scripts(items_of(resource).get(STARTUP, ""), cloud)]
    items = {**scripts(cloud), **({STARTUP: startup_script()} if outdated else {})}
    set_items(account, targets, items, "changing the scripts")
    if outdated:
        raise ProviderError(
            ErrorKind.MISSING,
            f"{', '.join(map(our_name, outdated))} did not begin {' and '.join(cloud.root_scripts)}: "
            "the startup script is of an older version of fleet",
            hint="the new one is set; it begins at the next boot, or now by the command below",
            next_steps=[("fleet", "exec", "--", "sudo", "google_metadata_script_runner", "startup"), ("fleet", "up")],
        )


def confirmed(account: Account, targets: Sequence[Json], attribute: str, value: str) -> bool:
    """Wait until the startup script of every instance has published a value as a guest attribute.

    Returns:
        Whether all have done so in time.
    """
    left = list(targets)
    for _ in account.api.timing.polls(account.api.timing.confirm_s):
        answers = account.guest_attributes(left, "fleet")
        left = [
            resource
            for resource, answer in zip(left, answers, strict=True)
            if _published(answer.body, attribute) != value
        ]
        if not left:
            break
    return not left


def _published(answer: Json, attribute: str) -> str:
    items = answer.get("queryValue", {}).get("items", ())
    return next((str(item.get("value", "")) for item in items if item.get("key") == attribute), "")
