"""Explain why a session on a host failed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.fleets.access import Access
from fleet.remote.fanout import Outcome, fan_out, raise_failures
from provision.model import Host


def is_reachable_now(host: Host, key: Path, access: Access) -> bool:
    """Return whether a host that could not be reached can be reached now; False if it always could.

    Raises:
        UnreachableError: it does not answer.
    """
    from fleet.remote.ssh.connection import connect

    def probe(hosts: Sequence[Host]) -> list[Outcome[None]]:
        return fan_out(hosts, lambda each: connect(each, key).close())

    outcomes = probe([host])
    if all(outcome.error is None for outcome in outcomes):
        return False
    raise_failures(access.retried(outcomes, probe), "open a session")
    return True
