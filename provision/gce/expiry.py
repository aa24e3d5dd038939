"""Let instances power off by themselves at a time, by the startup script that they were made with."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from provision.gce.account import Account
from provision.gce.rest.api import Json
from provision.gce.rest.batch import Call
from provision.gce.rest.requests import STOP_AT
from provision.gce.rest.resources import zone_of


def stop_at(account: Account, targets: Sequence[Json], at: int) -> bool:
    """Let running instances power off at a time, by their startup script and without this computer.

    Args:
        account: Whose they are.
        targets: The instances, as the API shows them.
        at: Seconds since the epoch; 0: never.

    Returns:
        Whether every instance has confirmed the time; for 0 nothing is awaited.

    Raises:
        ApiError: a call failed.
    """
    differing = [one for one in targets if _items(one).get(STOP_AT, "0") != str(at)]
    calls = []
    for one in differing:
        items = {**_items(one), STOP_AT: str(at)}
        body = {
            "fingerprint": one.get("metadata", {}).get("fingerprint", ""),
            "items": [{"key": key, "value": value} for key, value in items.items()],
        }
        calls.append(_set_metadata(account, one, body))
    account.change(calls, "setting when the instances stop")
    return at == 0 or _confirmed(account, targets, str(at))


def _items(resource: Json) -> dict[str, str]:
    return {str(one["key"]): str(one.get("value", "")) for one in resource.get("metadata", {}).get("items", ())}


def _confirmed(account: Account, targets: Sequence[Json], at: str) -> bool:
    deadline = time.monotonic() + account.api.timing.confirm_s
    left = list(targets)
    for pause in account.api.timing.pauses():
        paths = [("zones", zone_of(one), "instances", str(one["name"]), "getGuestAttributes") for one in left]
        answers = account.api.batch(
            [Call("GET", account.api.path(*words, queryPath="fleet/"), None) for words in paths]
        )
        left = [one for one, answer in zip(left, answers, strict=True) if _published(answer.body) != at]
        if not left or time.monotonic() > deadline:
            break
        time.sleep(pause)
    return not left


def _published(answer: Json) -> str:
    items = answer.get("queryValue", {}).get("items", ())
    return next((str(one.get("value", "")) for one in items if one.get("key") == "stop-at"), "")


def _set_metadata(account: Account, resource: Json, body: Json) -> Call:
    words = ("zones", zone_of(resource), "instances", str(resource["name"]), "setMetadata")
    return Call("POST", account.api.path(*words, requestId=str(uuid.uuid4())), body)
