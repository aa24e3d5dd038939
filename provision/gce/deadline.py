"""Moves the moment at which Compute Engine deletes instances."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from provision.gce.account import Account
from provision.gce.creation import await_keys, start
from provision.gce.diagnosis import Failure
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.batch import Call
from provision.gce.rest.resources import our_name, zone_of
from provision.provider import Progress

_BAD_REQUEST = 400


def extend(account: Account, targets: Sequence[Json], seconds: int, progress: Progress) -> None:
    """Give instances `seconds` from now on.

    The reference says that setScheduling wants a stopped instance; where a running one is taken too, nothing is
    stopped.

    Raises:
        ApiError: a call failed; the instances may be stopped then.
        ProviderError: an instance does not come back.
    """
    try:
        account.change([_set(account, one, seconds) for one in targets], "changing the deadline")
    except ApiError as error:
        if error.status != _BAD_REQUEST:
            raise
        _restarted(account, targets, seconds, progress)


def _set(account: Account, resource: Json, seconds: int) -> Call:
    scheduling: dict[str, Any] = {
        **resource.get("scheduling", {}),
        "maxRunDuration": {"seconds": str(seconds)},
        "instanceTerminationAction": "DELETE",
    }
    return _call(account, resource, "setScheduling", scheduling)


def _call(account: Account, resource: Json, verb: str, body: Json | None) -> Call:
    words = ("zones", zone_of(resource), "instances", str(resource["name"]), verb)
    return Call("POST", account.api.path(*words, requestId=str(uuid.uuid4())), body)


def _restarted(account: Account, targets: Sequence[Json], seconds: int, progress: Progress) -> None:
    fleets = {str(one["labels"]["fleet"]) for one in targets}
    ids = {str(one["id"]) for one in targets}

    def now() -> list[Json]:
        return [one for fleet in sorted(fleets) for one in account.resources(fleet) if str(one["id"]) in ids]

    for one in targets:
        progress(our_name(one), "stopping")
    account.change([_call(account, one, "stop", None) for one in targets], "stopping the instances")
    _await(account, lambda: all(one.get("status") == "TERMINATED" for one in now()), "stopping the instances")
    account.change([_set(account, one, seconds) for one in targets], "changing the deadline")
    start(account, targets, progress)
    _await(account, lambda: all(one.get("status") == "RUNNING" for one in now()), "starting the instances")
    await_keys(account, now(), progress)


def _await(account: Account, over: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + account.api.timing.operation_s
    for pause in account.api.timing.pauses():
        if over():
            return
        if time.monotonic() > until:
            raise ApiError(
                [Failure(code="DEADLINE", message=f"{what} is not done after {account.api.timing.operation_s:g} s")]
            )
        time.sleep(pause)
