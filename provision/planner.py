"""What has to be done so that what is there becomes what is wanted; decided without touching anything."""

from __future__ import annotations

from collections.abc import Sequence

from provision.model import CloudSpec, FleetSpec, Instance, InstanceState, Plan
from provision.names import instance_name
from provision.quantities import counted


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
    if spec.packages != existing.packages:
        asked, has = (", ".join(one.packages) or "none" for one in (spec, existing))
        found.append(f"packages {asked} asked for, it has {has}")
    if spec.inventory != existing.inventory:
        asked, has = (one.inventory or "no inventory" for one in (spec, existing))
        found.append(f"hosts of {asked} asked for, it has those of {has}")
    if spec.limit != existing.limit:
        found.append(f"--limit {spec.limit!r} asked for, it was made with {existing.limit!r}")
    if spec.cloud is not None and existing.cloud is not None:
        found += _cloud_conflicts(spec.cloud, existing.cloud)
    return found


def _cloud_conflicts(spec: CloudSpec, existing: CloudSpec) -> list[str]:
    found = []
    if (spec.gpu, spec.gpus) != (existing.gpu, existing.gpus):
        found.append(f"{_gpus(spec)} asked for, its instances have {_gpus(existing)}")
    if spec.spot != existing.spot:
        found.append(f"{_spot(spec)} instances asked for, it has {_spot(existing)} ones")
    if spec.external != existing.external:
        found.append(f"{_external(spec)} addresses asked for, its instances have {_external(existing)} ones")
    if spec.max_duration_s != existing.max_duration_s:
        found.append(f"{_deletion(spec)} asked for, it was made with {_deletion(existing)}")
    for field, words in _WORDS.items():
        asked, has = getattr(spec, field), getattr(existing, field)
        if asked != has:
            found.append(f"{words} {_said(asked)} asked for, it was made with {_said(has)}")
    return found


_WORDS = {
    "project": "project",
    "endpoint": "endpoint",
    "zones": "zones",
    "machine_type": "machine type",
    "image": "image",
    "disk_gb": "disk size in GB",
    "disk_type": "disk type",
    "network": "network",
    "subnetwork": "subnetwork",
    "ssh_user": "login name",
    "ssh_port": "SSH port",
    "scopes": "scopes",
    "service_account": "service account",
}
"""What to call the settings of a cloud that have no words of their own."""


def _said(value: object) -> str:
    return (", ".join(value) if isinstance(value, tuple) else str(value)) or "the default"


def _gpus(cloud: CloudSpec) -> str:
    return f"{cloud.gpus} {cloud.gpu}" if cloud.gpu else "no GPU"


def _spot(cloud: CloudSpec) -> str:
    return "spot" if cloud.spot else "on-demand"


def _external(cloud: CloudSpec) -> str:
    return "external" if cloud.external else "only internal"


def _deletion(cloud: CloudSpec) -> str:
    return f"deletion after {cloud.max_duration_s / 3600:g} h" if cloud.max_duration_s else "no deletion"


def _workers(count: int) -> str:
    return counted(count, "worker")
