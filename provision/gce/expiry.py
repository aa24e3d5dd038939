"""Change metadata of instances that their startup script follows: when they power off, and what root runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from provision.gce.account import Account
from provision.gce.options import GceOptions
from provision.gce.options.preparation import root_scripts
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.metadata import STARTUP, STOP_AT, runs_scripts, scripts, startup_script
from provision.gce.rest.resources import our_name
from provision.provider import ErrorKind, ProviderError


def stop_at(account: Account, targets: Sequence[Json], at: int) -> bool:
    """Let running instances power off at a time; their startup script does it without this computer.

    Args:
        account: The owner of the instances.
        targets: The instances, as the API shows them.
        at: Seconds since the epoch; 0: never.

    Returns:
        True if every instance has confirmed the time; for 0, True without waiting.

    Raises:
        ApiError: a call failed.
    """
    set_items(account, targets, {STOP_AT: str(at)}, "setting the stop time of the instances")
    return at == 0 or confirmed(account, targets, "stop-at", str(at))


def set_items(account: Account, targets: Sequence[Json], values: Mapping[str, str], activity: str) -> None:
    """Set metadata items of those instances that have other values; an empty value removes an item.

    Raises:
        ApiError: a call failed; `activity` names it in the message.
    """
    calls = []
    for resource in targets:
        before = _items(resource)
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
    outdated = [resource for resource in targets if not runs_scripts(_items(resource).get(STARTUP, ""))]
    items = {**scripts(cloud), **({STARTUP: startup_script()} if outdated else {})}
    set_items(account, targets, items, "changing the scripts")
    if outdated:
        raise ProviderError(
            ErrorKind.MISSING,
            f"{', '.join(map(our_name, outdated))} did not begin {' and '.join(root_scripts(cloud))}: "
            "the startup script is of an older version of fleet",
            hint="the new one is set; it begins at the next boot, or now by the command below",
            next_steps=[("fleet", "exec", "--", "sudo", "google_metadata_script_runner", "startup"), ("fleet", "up")],
        )


def _items(resource: Json) -> dict[str, str]:
    return {str(item["key"]): str(item.get("value", "")) for item in resource.get("metadata", {}).get("items", ())}


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
