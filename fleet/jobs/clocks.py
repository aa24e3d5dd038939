"""Corrections of the hosts' clocks for a job, so that its stored times have one order.

They are measured once, before the job starts, and stored with it: the order of its output is the same on each call.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.fleets.agents import call_each
from fleet.remote.client import AgentClient
from fleet.remote.clocks import corrections
from train.agent.protocol.records import Commit


def correct_clocks(clients: Sequence[AgentClient], commits: Sequence[Commit]) -> list[Commit]:
    """Return the commits with the correction of each host's clock; a host that fails is not corrected."""
    readings = {
        outcome.host.name: outcome.value
        for outcome in call_each(clients, lambda client: client.read_clock())
        if outcome.value is not None
    }
    by_host = corrections(readings)
    return [
        commit._replace(clock_correction_s=by_host.get(client.host.name, 0.0))
        for client, commit in zip(clients, commits, strict=True)
    ]
