"""Let instances power off by themselves at a given time, through their startup script."""

from __future__ import annotations

from collections.abc import Sequence

from provision.gce.account import Account
from provision.gce.rest.api import Json
from provision.gce.rest.bodies.metadata import STOP_AT


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
    differing = [resource for resource in targets if _items(resource).get(STOP_AT, "0") != str(at)]
    calls = []
    for resource in differing:
        items = {**_items(resource), STOP_AT: str(at)}
        body = {
            "fingerprint": resource.get("metadata", {}).get("fingerprint", ""),
            "items": [{"key": key, "value": value} for key, value in items.items()],
        }
        calls.append(account.call(resource, "setMetadata", body))
    account.change(calls, "setting the stop time of the instances")
    return at == 0 or _confirmed(account, targets, str(at))


def _items(resource: Json) -> dict[str, str]:
    return {str(item["key"]): str(item.get("value", "")) for item in resource.get("metadata", {}).get("items", ())}


def _confirmed(account: Account, targets: Sequence[Json], at: str) -> bool:
    left = list(targets)
    for _ in account.api.timing.polls(account.api.timing.confirm_s):
        answers = account.guest_attributes(left, "fleet")
        left = [resource for resource, answer in zip(left, answers, strict=True) if _published(answer.body) != at]
        if not left:
            break
    return not left


def _published(answer: Json) -> str:
    items = answer.get("queryValue", {}).get("items", ())
    return next((str(item.get("value", "")) for item in items if item.get("key") == "stop-at"), "")
