"""Values that a shell completes: read from this computer, because the hosts would answer too slowly.

An error, for example an unreadable record, completes nothing: its message would end up in the user's command line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import typer

from fleet.config import DEFAULT_FLEET, state_root


def complete_fleet(incomplete: str) -> list[str]:
    """Return the names of fleets that begin with `incomplete`."""
    from fleet.state import Store

    with contextlib.suppress(Exception):
        return [name for name in Store(state_root()).names() if name.startswith(incomplete)]
    return []


def complete_job(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the jobs that begin with `incomplete` and were started or shown here, each with its description."""
    with contextlib.suppress(Exception):
        return [choice for choice in _list_jobs(_fleet_in(ctx)) if choice[0].startswith(incomplete)]
    return []


def complete_worker(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of workers that begin with `incomplete`."""
    from fleet.state import Store

    with contextlib.suppress(Exception):
        _directory, record = Store(state_root()).need(_fleet_in(ctx))
        return [name for name in (*(slot.name for slot in record.slots), "all") if name.startswith(incomplete)]
    return []


def _fleet_in(ctx: typer.Context) -> str:
    return ctx.params.get("fleet") or DEFAULT_FLEET


def _list_jobs(fleet: str) -> Iterator[tuple[str, str]]:
    from fleet.state import Store

    directory, record = Store(state_root()).need(fleet)
    if record.last_job:
        yield record.last_job, record.last_script
    yield from ((job, "") for job in directory.recorded_jobs() if job != record.last_job)
