"""The emulator's own API, under ``/emulator/``: a registry of actions that change its state or inject faults."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from tests.emulator.api import Answer, Request, encode
from tests.emulator.endpoints import endpoint

if TYPE_CHECKING:
    from tests.emulator.server import Emulator

Given = Mapping[str, Any]
Action = Callable[["Emulator", Given], None]
_ACTIONS: dict[str, Action] = {}


def action(name: str) -> Callable[[Action], Action]:
    """Let ``POST /emulator/NAME`` call the decorated function with the JSON of its body."""

    def register(act: Action) -> Action:
        _ACTIONS[name] = act
        return act

    return register


@endpoint("/emulator/")
def administer(emulator: Emulator, request: Request) -> Answer:
    """Answer a request of the emulator's own API."""
    action = urlsplit(request.target).path.removeprefix("/emulator/")
    if request.verb == "GET" and action == "state":
        return encode(200, emulator.state())
    if request.verb == "GET" and action == "address":
        return Answer(200, f"{emulator.cloud.caller}\n".encode(), {"Content-Type": "text/plain"})
    try:
        given = json.loads(request.body or b"{}")
        act = _ACTIONS.get(action) if request.verb == "POST" else None
        if act is None:
            return encode(404, {"error": f"nothing is at {request.verb} {request.path}"})
        act(emulator, given)
    except (KeyError, LookupError, TypeError, ValueError) as error:
        return encode(400, {"error": str(error)})
    return encode(200, {})


@action("faults")
def add_fault(emulator: Emulator, given: Given) -> None:
    emulator.faults.add_json(given)


@action("faults/clear")
def clear_faults(emulator: Emulator, given: Given) -> None:
    emulator.faults.clear()


@action("preempt")
def preempt(emulator: Emulator, given: Given) -> None:
    emulator.preempt(given["name"], given.get("grace_s"))


@action("host-error")
def fail_host(emulator: Emulator, given: Given) -> None:
    emulator.fail_host(given["name"])


@action("maintenance")
def plan_maintenance(emulator: Emulator, given: Given) -> None:
    emulator.plan_maintenance(given["name"], float(given["in_s"]), float(given.get("window_s", 0)))


@action("quota")
def set_quota(emulator: Emulator, given: Given) -> None:
    emulator.set_quota(given["metric"], float(given["limit"]), given.get("region", ""))


@action("new-project")
def start_project(emulator: Emulator, given: Given) -> None:
    emulator.start_project()


@action("trial")
def start_trial(emulator: Emulator, given: Given) -> None:
    emulator.start_trial()


@action("capacity")
def set_capacity(emulator: Emulator, given: Given) -> None:
    emulator.set_capacity(given["zone"], float(given["limit"]), given.get("resource", "instances"))


@action("deny")
def deny(emulator: Emulator, given: Given) -> None:
    emulator.deny(*given["permissions"])


@action("outage")
def set_outage(emulator: Emulator, given: Given) -> None:
    emulator.set_outage(*given["zones"])


@action("networks")
def set_networks(emulator: Emulator, given: Given) -> None:
    emulator.set_networks(*given["names"])


@action("shared")
def share_networks(emulator: Emulator, given: Given) -> None:
    emulator.share_networks(given["project"], *given["names"])


@action("propagation")
def set_propagation(emulator: Emulator, given: Given) -> None:
    emulator.cloud.propagation_s = float(given["seconds"])


@action("nat")
def translate_addresses(emulator: Emulator, given: Given) -> None:
    emulator.translate_addresses(*given["regions"], network=given.get("network", "default"))


@action("caller")
def set_caller(emulator: Emulator, given: Given) -> None:
    emulator.set_caller(given["address"])


@action("advance")
def advance(emulator: Emulator, given: Given) -> None:
    emulator.advance(float(given["seconds"]))


@action("clear")
def clear(emulator: Emulator, given: Given) -> None:
    emulator.reset()
