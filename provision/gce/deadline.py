"""Change the time at which Compute Engine deletes instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from provision.gce.access.host_keys import await_keys
from provision.gce.account import Account
from provision.gce.creation import start
from provision.gce.rest.api import ApiError, Json
from provision.gce.rest.batch import Call
from provision.gce.rest.resources import our_name
from provision.provider import Progress

_BAD_REQUEST = 400


def extend(account: Account, targets: Sequence[Json], seconds: int, progress: Progress) -> None:
    """Let Compute Engine delete instances `seconds` from now.

    According to the API reference, setScheduling requires a stopped instance. The instances are restarted only if the
    API rejects the call for running ones.

    Raises:
        ApiError: a call failed; the instances may be stopped then.
        ProviderError: an instance does not start again.
    """
    try:
        account.change([_set(account, resource, seconds) for resource in targets], "changing the deadline")
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
    return account.call(resource, "setScheduling", scheduling)


def _restarted(account: Account, targets: Sequence[Json], seconds: int, progress: Progress) -> None:
    fleets = {str(resource["labels"]["fleet"]) for resource in targets}
    ids = {str(resource["id"]) for resource in targets}

    def now() -> list[Json]:
        return [
            resource
            for fleet in sorted(fleets)
            for resource in account.resources(fleet)
            if str(resource["id"]) in ids
        ]

    for resource in targets:
        progress(our_name(resource), "stopping")
    account.change([account.call(resource, "stop") for resource in targets], "stopping the instances")
    account.api.until(lambda: all(each.get("status") == "TERMINATED" for each in now()), "stopping the instances")
    account.change([_set(account, resource, seconds) for resource in targets], "changing the deadline")
    start(account, targets, progress)
    account.api.until(lambda: all(each.get("status") == "RUNNING" for each in now()), "starting the instances")
    await_keys(account, now(), progress)
