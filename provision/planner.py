"""What has to be done so that what is there becomes what is wanted; decided without touching anything."""

from __future__ import annotations

from collections.abc import Sequence

from provision.model import FleetSpec, Instance, InstanceState, Plan
from provision.names import instance_name


def plan(spec: FleetSpec, observed: Sequence[Instance]) -> Plan:
    """Plan the way from the instances `observed` to ``worker-0`` … ``worker-N-1`` of `spec`, all running.

    One that is stopped stands in ``create``, which starts it again with what it holds. One that is half made stands
    in ``create`` and ``delete``; the deletions come first. An instance that `spec` does not name, or a second one
    under the same name, is deleted.

    Args:
        spec: What is wanted.
        observed: Every instance of this fleet, as its provider lists them.
    """
    wanted = [instance_name(index) for index in range(spec.workers)]
    best: dict[str, Instance] = {}
    for instance in sorted(observed, key=lambda one: one.state is not InstanceState.RUNNING):
        if instance.name in wanted and instance.state is not InstanceState.STARTING:
            best.setdefault(instance.name, instance)
    keep = tuple(best[name] for name in wanted if name in best and best[name].state is InstanceState.RUNNING)
    kept = {instance.name for instance in keep}
    return Plan(
        create=tuple(name for name in wanted if name not in kept),
        keep=keep,
        delete=tuple(instance for instance in observed if instance not in best.values()),
    )


def conflicts(spec: FleetSpec, existing: FleetSpec) -> list[str]:
    """Settings in which a fleet that is up differs from the one asked for, each as words for the user.

    Args:
        spec: What is asked for.
        existing: What the fleet was made from.

    Returns:
        ``["4 workers asked for, 2 are up"]``; empty where both agree.
    """
    found = []
    if spec.workers != existing.workers:
        verb = "is" if existing.workers == 1 else "are"
        found.append(f"{_workers(spec.workers)} asked for, {existing.workers} {verb} up")
    if spec.provider != existing.provider:
        found.append(f"provider {spec.provider} asked for, it was made by {existing.provider}")
    if spec.python != existing.python:
        asked = spec.python or "the one found on the host"
        found.append(f"Python interpreter {asked} asked for, it has {existing.python or 'the one found on the host'}")
    return found


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"
