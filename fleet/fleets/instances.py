"""List the instances of a fleet, check their lifetime, and delete some of them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence

from fleet.errors import FleetError, NotReadyError
from fleet.events import Level, Note, Sink
from fleet.fleets.connect import progress_to
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord
from fleet.steps import Step
from provision.model import Instance, InstanceState
from provision.provider import Provider
from provision.quantities import format_span
from train.agent.protocol.records import LIFETIME_SAVE_S, LIFETIME_WARN_S


def list_instances(fleet: str, provider: Provider, services: Services) -> list[Instance]:
    """Return the instances of a fleet as its provider lists them, and write them to the fleet's journal.

    Raises:
        FleetError: the provider does not answer.
    """
    instances = provider.list(fleet)
    services.store.fleet(fleet).observe(instances, services.clock())
    return instances


def check_lifetime(record: FleetRecord, grace_s: float, services: Services, sink: Sink) -> None:
    """Warn if the agents would end a new job soon, because the lifetime of its hosts ends.

    If that is recorded, the provider is asked first: the lifetime may have begun again.

    Args:
        record: The fleet.
        grace_s: Time between SIGTERM and SIGKILL when the job is ended, in seconds.
        services: The outside world.
        sink: Takes the warning.

    Raises:
        NotReadyError: the agents would end it immediately.
    """

    def left_s(instances: Sequence[Instance]) -> float:
        """Return the time until the job is ended, in seconds."""
        end = min((instance.end_at for instance in instances if instance.end_at), default=math.inf)
        return end - grace_s - LIFETIME_SAVE_S - services.clock()

    spec, instances = record.spec, list(record.instances)
    if left_s(instances) >= LIFETIME_WARN_S:
        return
    with contextlib.suppress(FleetError):
        instances = list_instances(spec.name, services.provider(spec.options), services)
    if any(instance.state is not InstanceState.RUNNING for instance in instances):
        return  # the fleet is repaired, or the error that it is stopped follows
    left, is_extendable = left_s(instances), spec.options.is_extendable
    if left <= 0:
        raise NotReadyError(
            f"the lifetime of fleet {spec.name!r} ends: a job would be stopped immediately",
            hint="" if is_extendable else "the lifetime of these hosts cannot change; create them again",
            next_steps=[Step("extend", "4h") if is_extendable else Step("down")],
        )
    if left < LIFETIME_WARN_S:
        advice = f"; `{Step('extend', '4h').text(spec.name)}` gives it more time" if is_extendable else ""
        sink.emit(
            Note(f"the lifetime of the hosts ends: the job is stopped in {format_span(left)}{advice}", Level.WARNING)
        )


def delete_instances(
    instances: Sequence[Instance], directory: FleetDirectory, provider: Provider, sink: Sink
) -> list[str]:
    """Delete `instances` after recording the intent, and list the remaining ones.

    Returns:
        Names of the instances that still exist.
    """
    if not instances:
        return []
    if directory.exists():
        directory.intend("delete", instances=[[item.name, item.id] for item in instances])
    gone = {item.id for item in instances}
    provider.delete(instances, progress_to(sink, "deleted"))
    return [item.name for item in provider.list(instances[0].fleet) if item.id in gone]
