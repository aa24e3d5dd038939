"""Compare the requested fleet with the existing one, without side effects."""

from __future__ import annotations

from collections.abc import Sequence

from provision.model import FleetSpec, Instance, InstanceState, Plan, Resize
from provision.names import index_of, instance_name
from provision.quantities import counted


def plan(spec: FleetSpec, observed: Sequence[Instance]) -> Plan:
    """Return the changes that turn the instances `observed` into ``worker-0`` … ``worker-N-1`` of `spec`, running.

    A stopped or restarting instance is in ``create``, which starts it again with its files. An incomplete instance is
    in ``create`` and ``delete``; deletions come first. An instance that `spec` does not name, or a duplicate of a
    name, is deleted.

    Args:
        spec: The requested fleet.
        observed: Every instance of this fleet, as its provider lists them.
    """
    names = [instance_name(index) for index in range(spec.workers)]
    best: dict[str, Instance] = {}
    for instance in sorted(observed, key=lambda item: item.state is not InstanceState.RUNNING):
        if instance.name in names and instance.state not in (InstanceState.QUEUED, InstanceState.STARTING):
            best.setdefault(instance.name, instance)
    keep = tuple(best[name] for name in names if name in best and best[name].state is InstanceState.RUNNING)
    kept = {instance.name for instance in keep}
    return Plan(
        create=tuple(name for name in names if name not in kept),
        keep=keep,
        delete=tuple(instance for instance in observed if instance not in best.values()),
    )


def resize(workers: int, spec: FleetSpec, steps: Plan) -> Resize:
    """Return how a plan changes the size of a fleet.

    Args:
        workers: Number of workers that the fleet has.
        spec: The requested fleet.
        steps: The plan for it.
    """
    return Resize(
        added=tuple(instance_name(index) for index in range(workers, spec.workers)),
        released=tuple(instance for instance in steps.delete if index_of(instance.name) >= spec.workers),
    )


def conflicts(spec: FleetSpec, existing: FleetSpec) -> list[str]:
    """Return a clause for each setting in which an existing fleet differs from the requested one.

    Args:
        spec: The requested fleet.
        existing: The specification from which the fleet was created.

    Returns:
        ``["4 workers requested, the fleet has 2"]``; empty if they agree.
    """
    clauses = []
    if spec.workers != existing.workers:
        fixed = (
            "" if existing.options.resizable else f", and a fleet of provider {existing.provider} cannot be resized"
        )
        clauses.append(f"{counted(spec.workers, 'worker')} requested, the fleet has {existing.workers}{fixed}")
    if spec.provider != existing.provider:
        clauses.append(f"provider {spec.provider} requested, the fleet was created by {existing.provider}")
    if spec.python != existing.python:
        now, before = (compared.python or "that of the host" for compared in (spec, existing))
        clauses.append(f"Python interpreter {now} requested, the fleet has {before}")
    if spec.packages != existing.packages:
        now, before = (", ".join(compared.packages) or "none" for compared in (spec, existing))
        clauses.append(f"packages {now} requested, the fleet has {before}")
    if spec.provider == existing.provider:
        clauses += spec.options.conflicts(existing.options)
    return clauses
