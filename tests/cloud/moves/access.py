"""Access from a computer that moves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.gce.api.requests import IAP_RANGE
from tests.cloud.access_modes import EMAIL, HOST
from tests.cloud.moves import check, event
from tests.emulator.blueprint import project_of

if TYPE_CHECKING:
    from tests.cloud.histories import History


@event(0.2)
def move_caller(history: History) -> None:
    address = history.random.choice(("198.51.100.7", "203.0.113.9"))
    history.emulator.set_caller(address)
    history.told.append(f"the caller is at {address}")


@check("up")
def check_rule_admits_caller(history: History) -> None:
    if any("firewalls" in rule.match and rule.struck for rule in history.rules):
        return  # SSH may still work, so that the command only warns
    cloud, given = history.emulator.cloud, history.settings.of("gce")
    source = f"{cloud.caller}/32" if given.get("external", True) else IAP_RANGE
    names = [name for name in cloud.firewalls if name.startswith(f"{history.fleet}-")]
    rules = [cloud.firewalls[name] for name in names if cloud.firewalls[name].get("sourceRanges") == [source]]
    projects = [HOST if "network" in given else cloud.project] if given["firewall"] else []
    assert [project_of(rule["network"]) for rule in rules] == projects


@check("down")
def check_no_key_is_left(history: History) -> None:
    profile = history.emulator.cloud.profiles.get(EMAIL)
    assert not [key for key in profile.keys.values() if f"made by fleet for {history.fleet}," in str(key)]
