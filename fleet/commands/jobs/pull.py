"""`fleet pull`: copy the results of a job to this computer."""

from __future__ import annotations

from fleet.events import ResultsPulled, Sink
from fleet.jobs.pulls.pull import PullRequest, pull_all, pull_results
from fleet.services import Services

__all__ = ["PullRequest", "run"]


def run(request: PullRequest, services: Services, sink: Sink) -> list[ResultsPulled]:
    """Copy results to this computer, as `pull_all` or `pull_results` does."""
    return pull_all(request, services, sink) if request.every else [pull_results(request, services, sink)]
