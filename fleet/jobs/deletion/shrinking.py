"""Check that the last hosts of a fleet can be released, and ask before results on them are lost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fleet.errors import NotReadyError
from fleet.events import Sink
from fleet.fleets.access import Access
from fleet.folding import fold
from fleet.jobs.deletion.risk import confirm_loss, results_at_risk, survey_present
from fleet.jobs.pulls.requested import pull_ended
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Again, Step
from provision.model import Instance
from provision.names import index_of, instance_name, is_instance_name


def confirm_shrink(
    record: FleetRecord,
    workers: int,
    instances: Sequence[Instance],
    directory: FleetDirectory,
    services: Services,
    sink: Sink,
) -> None:
    """Ask before the hosts after the first `workers` are released, if that loses results; change nothing.

    Raises:
        NotReadyError: a job runs on one of these hosts.
        UsageError: results would be lost, and confirmation requires a terminal.
        CancelledError: the user declined.
    """
    pull_ended(record.spec.name, services, sink)
    released = [host.name for host in record.hosts[workers:]]
    stored = survey_present(record, directory, instances, Access(record.spec, services, sink))
    for job in stored.jobs:
        slots = [member.slot for report in job.reports for member in report.members]
        used = {task.host.name for task in job.tasks} | hosts_of(slots, record.tasks_per_host)
        if job.is_running and (busy := [name for name in released if name in used]):
            raise NotReadyError(
                f"job {job.job} runs on {fold(busy)}; the fleet was not changed",
                next_steps=[Step("logs", "-f"), Step("stop")],
            )
    at_risk = results_at_risk(record, stored, released)
    confirm_loss(at_risk, f"Delete {fold(released)} anyway?", Again({"--yes": True}), services, sink)


def hosts_of(slots: Iterable[str], tasks_per_host: int) -> set[str]:
    """Return the names of the hosts to which slots belong; invalid names are left out."""
    return {instance_name(index_of(slot) // tasks_per_host) for slot in slots if is_instance_name(slot)}
