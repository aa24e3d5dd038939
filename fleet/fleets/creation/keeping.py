"""After a failure, keep instances that could not be prepared, or delete the created and stop the started ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.errors import CancelledError, FleetError
from fleet.events import Sink
from fleet.fleets.connect import progress_to
from fleet.fleets.instances import delete_instances, list_instances
from fleet.fleets.release import external_hosts, ignore_progress, release_files, release_hosts
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, replace_hosts
from fleet.steps import Step
from provision.model import FleetSpec, Instance, InstanceState
from provision.provider import Provider

KEEP_S = 1800.0
"""Time for which instances are kept that could not be prepared."""


@dataclass(frozen=True)
class Keeper:
    """Keeps the instances that an unsuccessful call of `fleet up` created or started, or deletes or stops them.

    Args:
        spec: The requested fleet.
        directory: Files of the fleet.
        provider: The provider of the instances.
        services: The outside world.
        sink: Takes the events.
    """

    spec: FleetSpec
    directory: FleetDirectory
    provider: Provider
    services: Services
    sink: Sink

    def keep(self, record: FleetRecord, old: Sequence[Instance], error: FleetError) -> FleetError | None:
        """Keep rented instances that run but could not be prepared, so that the next try need not wait for capacity.

        Returns:
            `error`, with how long they are kept; None if they cannot be kept and must be deleted.
        """
        if not self.spec.options.rents or self.spec.workers > record.spec.workers:
            return None  # after a failure to add workers, the fleet is as before
        ids = {instance.id for instance in old}
        try:
            instances = self._list()
            created = [instance for instance in instances if instance.id not in ids]
            new = [*created, *_restarted(old, instances)]
            if not new or any(instance.state is not InstanceState.RUNNING for instance in new):
                return None
            names, until = tuple(instance.name for instance in created), self._end(new)
            self.directory.intend("keep", instances=[[instance.name, instance.id] for instance in new], until=until)
            kept = replace(
                replace_hosts(record, record.hosts, instances),
                kept=names,
                kept_until=until,
                stopped_at=record.stopped_at,
                unsaved=record.unsaved,
            )
            self.directory.write(kept)
            if not self.spec.options.max_cost_usd and not self.provider.stop_at(new, until):
                return None
        except FleetError:
            return None
        return _explain_kept(error, kept, [instance.name for instance in new])

    def _end(self, instances: Sequence[Instance]) -> float:
        """Return when instances end that are kept.

        If the cost is limited, they are not stopped before their provider deletes them: a stop clears their deadline,
        and then their disks could cost more than the limit.
        """
        if self.spec.options.max_cost_usd:
            return min((end for each in instances if (end := each.stop_at or each.delete_at)), default=0.0)
        return self.services.clock() + KEEP_S

    def undo(self, before: Sequence[Instance], error: BaseException) -> None:
        """Delete the resources that this call created, and no others; stop the instances that it started again.

        Raises:
            FleetError: some are left or run; of the kind of `error`, and names them.
            CancelledError: a second Ctrl-C; names them too.
        """
        try:
            left = self._delete_created(before)
            self._stop_restarted(before)
        except KeyboardInterrupt:
            raise CancelledError(
                "interrupted during cleanup: resources may remain and incur cost",
                next_steps=[Step("down")],
            ) from None
        except FleetError as second:
            raise _add_leftovers(error, f"{second.message}: resources may remain and incur cost") from second
        if left:
            raise _add_leftovers(error, f"still there: {', '.join(left)}") from error

    def _delete_created(self, before: Sequence[Instance]) -> list[str]:
        """Delete them, and return the names of those that still exist."""
        if before:
            old = {instance.id for instance in before}
            made = [instance for instance in self._list() if instance.id not in old]
            release_files(self.spec, made, self.directory, self.provider, self.sink)
            return delete_instances(made, self.directory, self.provider, self.sink)
        if not self.directory.exists():
            return []
        self.directory.intend("delete_fleet")
        progress = progress_to(self.sink, "deleted")
        if self.spec.options.existing:
            hosts = external_hosts(self.spec, self._list(), self.provider)
            release_hosts(hosts, self.directory.key, self.sink)
            progress = ignore_progress
        left = list(self.provider.delete_fleet(self.spec.name, progress))
        if not left:
            self.directory.delete()
        return left

    def _stop_restarted(self, before: Sequence[Instance]) -> None:
        """Stop the instances that were stopped before; their files may exist nowhere else.

        An instance that is listed as stopped is stopped, too: it may start when the operation of an interrupted call
        runs, and operations of one instance run one after the other.
        """
        stopped = {instance.id for instance in before if instance.state is InstanceState.STOPPED}
        if not self.spec.options.keeps_disks or not stopped:
            return
        if restarted := [instance for instance in self._list() if instance.id in stopped]:
            self.directory.intend("stop", instances=[[instance.name, instance.id] for instance in restarted])
            self.provider.stop(restarted, progress_to(self.sink, "stopped"))
            self._list()

    def _list(self) -> list[Instance]:
        return list_instances(self.spec.name, self.provider, self.services)


def _restarted(before: Sequence[Instance], now: Sequence[Instance]) -> list[Instance]:
    """Return the instances that were stopped before and are not any more."""
    stopped = {instance.id for instance in before if instance.state is InstanceState.STOPPED}
    return [each for each in now if each.id in stopped and each.state is not InstanceState.STOPPED]


def _explain_kept(error: FleetError, record: FleetRecord, names: Sequence[str]) -> FleetError:
    """Return `error` with the instances that are kept, what they cost, and what to do."""
    at = time.strftime("%H:%M", time.localtime(record.kept_until))
    options = record.spec.options
    is_deleted = bool(options.max_cost_usd) and not options.unattended
    if len(names) == 1:
        them, end = "it", "it is deleted" if is_deleted else "it stops"
    else:
        them, end = "them", "they are deleted" if is_deleted else "they stop"
    price = f", for ${record.price_usd_h:.2f}/h" if record.price_usd_h else ""
    words = f"{', '.join(names)} kept until {at}{price}; the next `fleet up` uses {them}, else {end} then"
    return error.replaced(
        cause="\n".join(filter(None, (error.cause, words))),
        next_steps=[*error.next_steps, Step("up"), Step("down")],
    )


def _add_leftovers(error: BaseException, left: str) -> FleetError:
    """Return `error` with the addition that some resources could not be deleted."""
    if isinstance(error, FleetError):
        cause = f"{error.cause}\n{left}" if error.cause else left
        return error.replaced(cause=cause, hint="", next_steps=[Step("down")])
    return CancelledError("fleet up was interrupted", cause=left, next_steps=[Step("down")])
