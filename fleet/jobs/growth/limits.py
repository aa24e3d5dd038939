"""Limits of a job that takes in new hosts (`--max-workers`), and the slots and tasks that it may have."""

from __future__ import annotations

from collections.abc import Sequence

from fleet.errors import UsageError
from fleet.steps import Again
from provision.names import instance_name
from provision.options import ProviderOptions
from train.agent.protocol.records import Member, Replication


def check_growth(max_workers: int, options: ProviderOptions, replication: Replication) -> None:
    """Reject `--max-workers` if the fleet cannot grow, or if its hosts do not know the checkpoints of the job.

    Raises:
        UsageError: with the first reason.
    """
    if not max_workers:
        return
    if not options.resizable:
        raise UsageError(
            "--max-workers requires a fleet that can grow, and the nodes of an allocation are fixed",
            next_steps=[Again({"--max-workers": None})],
        )
    if "://" in replication.directory:
        raise UsageError(
            "--max-workers takes in hosts at a checkpoint that the hosts replicate, and --checkpoint-dir is a URL",
            hint="fleet up and fleet train --resume continue a job on more hosts",
            next_steps=[Again({"--max-workers": None})],
        )
    if replication.mib_s <= 0:
        raise UsageError(
            "--max-workers requires the replication of checkpoints, which --checkpoint-bandwidth 0 disables",
            next_steps=[Again({"--checkpoint-bandwidth": None})],
        )


def name_joinable(slots: int, workers: int, max_workers: int) -> list[str]:
    """Return the names of the slots that may join a job later.

    Args:
        slots: Number of slots that the job starts with.
        workers: Number of workers that it starts with.
        max_workers: Maximum number of workers; 0: none may join.
    """
    return [instance_name(slots + index) for index in range(max_workers - workers)]


def allowed_tasks(members: Sequence[Member], max_workers: int | None) -> set[str]:
    """Return all tasks on which the hosts of a job may report; empty if none is known."""
    tasks = {member.task for member in members if member.task}
    return tasks | {f"worker-{index}" for index in range(max_workers or 0)} if tasks else tasks
