"""Copy some files of a job without recording it, and find results that were pulled before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fleet.errors import UsageError
from fleet.events import Event
from fleet.jobs.pulls.pull import DIRECTORY, Pull
from fleet.jobs.results import StoredJobs
from fleet.remote.client import AgentClient
from fleet.results.target import Target, job_of
from fleet.services import Services
from fleet.steps import Step


class _Quiet:
    """Drops the events of a copy that the user did not request."""

    def emit(self, event: Event) -> None:
        """Drop an event."""

    def close(self) -> None:
        """Do nothing."""


def copy_named(job: StoredJobs, clients: Sequence[AgentClient], directory: Path, names: Sequence[str]) -> bool:
    """Copy the files whose name contains one of `names`; return whether all were copied.

    Raises:
        FleetError: every host failed.
    """
    by_name = {client.host.name: client for client in clients}
    tasks = [task for task in job.tasks if task.host.name in by_name]
    with Target(directory, job.job) as target:
        pull = Pull(job, tasks, by_name, target, _Quiet(), names=names)
        pull.copy()
    return not (pull.failed or pull.changed)


def find_pulled(given: str, job: str, fleet: str, services: Services) -> Path | None:
    """Return the directory of pulled results to use; None: the fleet has the job.

    Args:
        given: Directory that the user named; empty: none.
        job: The job that the user named; empty: none.
        fleet: Name of the fleet.
        services: The outside world.

    Raises:
        UsageError: the given directory holds no pulled results.
    """
    if given:
        path = Path(given).expanduser().absolute()
        if job_of(path) is None:
            raise UsageError(f"{given!r} does not hold results that fleet pull copied", next_steps=[Step("jobs")])
        return path
    if services.store.fleet(fleet).exists():
        return None
    pulled = Path(DIRECTORY).absolute() / job
    return pulled if job and job_of(pulled) else None
