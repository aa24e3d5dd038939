"""The instances of a fleet: list, keep, and delete them, and release the hosts that fleet did not create."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fleet.errors import CancelledError, FleetError, NotReadyError, fold
from fleet.events import InstanceChanged, Level, Note, Sink
from fleet.fleets.access import Access
from fleet.fleets.agents import call_each, opened
from fleet.fleets.connect import progress_to
from fleet.remote.fanout import errors_by_host, values_of
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, replace_hosts, slots
from fleet.steps import Again, Step
from provision.model import FleetSpec, Host, Instance, InstanceState
from provision.provider import Provider
from provision.quantities import counted, format_span
from train.agent.protocol.records import Release
from train.defaults import LIFETIME_SAVE_S, LIFETIME_WARN_S


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


def external_hosts(spec: FleetSpec, instances: Sequence[Instance], provider: Provider) -> list[Host]:
    """Return the hosts that may hold files of the fleet: those with confirmed host keys."""
    hosts: list[Host] = []
    for instance in instances:
        with contextlib.suppress(FleetError):  # its key was not confirmed, so that it holds no files
            hosts += provider.hosts(spec, [instance])
    return hosts


def release_hosts(
    hosts: Sequence[Host], key: Path, sink: Sink, tasks_per_host: int = 1, access: Access | None = None
) -> list[str]:
    """Stop all processes of a fleet on its hosts, and remove its files there.

    Args:
        hosts: The hosts, with their SSH settings.
        key: Private key of the fleet.
        sink: Takes progress and warnings.
        tasks_per_host: Number of slots of each host. Slots are subdirectories of the hosts' directories; processes
            in them are stopped first.
        access: The access to the hosts, with open agents.

    Returns:
        Names of hosts on which files may be left.
    """
    if tasks_per_host > 1:
        release_hosts(slots(hosts, tasks_per_host), key, sink)
    for host in hosts:
        sink.emit(InstanceChanged(host.name, "deleting fleet's files"))
    with opened(hosts, key, access, sink=sink) as opening:
        outcomes = call_each(values_of(opening), lambda client: client.release(Release()))
    failed = errors_by_host((*opening, *outcomes))
    for outcome in outcomes:
        if outcome.error is None:
            sink.emit(InstanceChanged(outcome.host.name, "deleted fleet's files", done=True))
    for host in hosts:
        if host.name in failed:
            text = f"{failed[host.name].message}; files of fleet in ~/{host.root}, if there are any, stay"
            sink.emit(Note(text, Level.WARNING))
    return [host.name for host in hosts if host.name in failed]


def release_files(
    spec: FleetSpec, instances: Sequence[Instance], directory: FleetDirectory, provider: Provider, sink: Sink
) -> list[str]:
    """Delete the files of a fleet on existing hosts; return the names of those on which some may be left."""
    if not spec.options.existing:
        return []
    record = directory.read()
    hosts = external_hosts(spec, instances, provider)
    return release_hosts(hosts, directory.key, sink, record.tasks_per_host if record else 1)


def release_excess(
    spec: FleetSpec,
    instances: Sequence[Instance],
    directory: FleetDirectory,
    provider: Provider,
    services: Services,
    sink: Sink,
) -> None:
    """Delete instances that are not requested, and verify that they are gone.

    Raises:
        CancelledError: a host does not answer, and the user declined to leave files of the fleet on it.
        FleetError: an instance could not be deleted.
    """
    again, silent = Again({}, "up"), fold(release_files(spec, instances, directory, provider, sink))
    if silent and not services.confirm(f"Forget {silent} anyway?"):
        hint = "repeat the command when all hosts answer"
        raise CancelledError(f"{silent} was not released", hint=hint, next_steps=[again])
    if left := delete_instances(instances, directory, provider, sink):
        message = f"{counted(len(left), 'instance')} could not be deleted: {', '.join(left)}"
        raise FleetError(message, next_steps=[again, Step("down")])


def ignore_progress(_name: str, _step: str) -> None:
    """Ignore the progress of a provider that releases hosts: `release_hosts` has reported it already."""


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
        existing = self.spec.options.existing
        if existing:
            release_files(self.spec, self._list(), self.directory, self.provider, self.sink)
        progress = ignore_progress if existing else progress_to(self.sink, "deleted")
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
    price = f", for ${record.price_usd_h:.2f}/h" if record.price_usd_h else ""
    words = (
        f"{', '.join(names)} kept until {at}{price}, then {'deleted' if options.max_cost_usd else 'stopped'}: "
        "until then, the next `fleet up` continues there"
    )
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
