"""Replace the lost instances of a rented fleet under the same names, and let their hosts rejoin the running job."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from fleet.errors import FleetError, NotFoundError, NotReadyError, UsageError, fold
from fleet.events import Level, Note, PriceChanged, Sink
from fleet.fleets.agents import ExistingFleet, newest_reports, open_agents, opened
from fleet.fleets.connect import install, job_packages, progress_to, reach
from fleet.fleets.instances import list_instances
from fleet.remote.client import AgentClient
from fleet.remote.clocks import correction_s
from fleet.remote.fanout import raise_failures
from fleet.services import Services
from fleet.state import FleetDirectory, FleetRecord, replace_hosts
from fleet.steps import Step
from provision.model import Host, Instance, InstanceState, Plan
from provision.names import index_of
from provision.planner import plan
from provision.provider import Provider
from provision.quantities import counted
from train.agent.protocol.records import GetJoinInfo, Gpu, JobReport

GPU_VARIABLE = "CUDA_VISIBLE_DEVICES"


def gpu_share(gpus: Sequence[Gpu], slot: int, slots: int, given: Collection[str]) -> dict[str, str]:
    """Return the variable that limits a task to its share of the GPUs; empty if it can use all, or if there are none.

    Args:
        gpus: GPUs of the host.
        slot: Index of the task's slot on its host, from 0.
        slots: Number of tasks on the host.
        given: Names of variables that the user set, which take precedence.

    Raises:
        UsageError: the GPUs cannot be split evenly.
    """
    if slots == 1 or not gpus or GPU_VARIABLE in given:
        return {}
    if len(gpus) % slots:
        raise UsageError(
            f"{counted(len(gpus), 'GPU')} cannot be split evenly among {slots} tasks of a host",
            hint=f"choose another --tasks-per-host, or set {GPU_VARIABLE} for all tasks with --env",
        )
    each = len(gpus) // slots
    return {GPU_VARIABLE: ",".join(str(gpu.number) for gpu in gpus[slot * each : (slot + 1) * each])}


def moved_share(
    env: Mapping[str, str], gpus: Sequence[Gpu], slots: tuple[str, str], tasks_per_host: int
) -> dict[str, str]:
    """Return the variables of a task in another slot, with that slot's share of its host's GPUs.

    Args:
        env: Variables of the task from which the job's settings are taken.
        gpus: GPUs of the host that takes over a slot.
        slots: Names of the slot of that task, and of the slot that is taken over.
        tasks_per_host: Number of tasks on each host.
    """
    shares = [gpu_share(gpus, index_of(slot) % tasks_per_host, tasks_per_host, ()) for slot in slots]
    current = env.get(GPU_VARIABLE)
    return {**env, **shares[1]} if current is not None and current == shares[0].get(GPU_VARIABLE) else dict(env)


def missing_slots(reports: Mapping[str, JobReport]) -> list[str]:
    """Return the slots that no longer take part in the current job; empty if no job runs.

    Args:
        reports: The report of each host that answers about the newest job, by host name.
    """
    running = _running(reports)
    return [member.slot for member in reports[min(running)].members if member.slot not in running] if running else []


def _running(reports: Mapping[str, JobReport]) -> list[str]:
    return [host for host, report in reports.items() if report.alive and report.result is None]


def rejoin(record: FleetRecord, directory: FleetDirectory, sink: Sink) -> list[str]:
    """Let the hosts of a fleet rejoin the running job if they lost their slots in it, or join it if it may grow.

    Returns:
        Names of the hosts that joined; a host that cannot join is reported, and does not affect the others.
    """
    with opened(record.slots, directory.key, sink=sink) as outcomes:
        clients = {outcome.host.name: outcome.value for outcome in outcomes if outcome.value is not None}
        try:
            reports = newest_reports(list(clients.values()), started=record.last_job).by_host
        except FleetError:
            return []
        running = _running(reports)
        if not running:
            return []
        source = min(running)
        report = reports[source]
        slots = dict.fromkeys((*(member.slot for member in report.members), *report.joinable))
        if outside := [name for name in clients if name not in slots]:
            verb = "does" if len(outside) == 1 else "do"
            why = f"it takes at most {report.max_workers}" if report.max_workers else "it was started without it"
            sink.emit(Note(f"{fold(outside)} {verb} not join the running job {report.job}: {why} (--max-workers)"))
        return [
            name
            for name in slots
            if name not in running and name in clients and join(name, source, reports, clients, record, sink)
        ]


def join(
    name: str,
    source: str,
    reports: Mapping[str, JobReport],
    clients: Mapping[str, AgentClient],
    record: FleetRecord,
    sink: Sink,
) -> bool:
    """Let a host join the running job, and report it; return whether it joined.

    Args:
        name: The host.
        source: A host that runs the job.
        reports: The report of each host, by host name.
        clients: The agents, by host name.
        record: The fleet.
        sink: Takes the installation, and the result.
    """
    job = reports[source].job
    try:
        join_info, python = clients[source].get_join_info(GetJoinInfo(job, source)), ""
        commit, reference = join_info.commit, clients[source].read_clock()
        reference = reference._replace(ahead_s=reference.ahead_s + commit.clock_correction_s)
        commit = commit._replace(clock_correction_s=correction_s(clients[name].read_clock(), reference))
        join_info = join_info._replace(commit=commit)
        if commit.requirements:
            packages = job_packages(commit.requirements, commit.constraints, record.spec)
            (installed,) = install([clients[name]], packages, sink)
            python = installed.python
        clients[name].join(
            join_info,
            name,
            clients[source],
            lambda prepared, env: moved_share(env, prepared.gpus, (source, name), record.tasks_per_host),
            python,
        )
    except FleetError as error:
        why = f"{name} cannot join job {job}: {error.message}"
        sink.emit(Note(f"{why}; retry with `{Step('up').text(record.spec.name)}`", Level.WARNING))
        return False
    when = "its next complete checkpoint" if name in commit.joinable else "the next attempt"
    sink.emit(Note(f"{name} joined job {job} and takes part from {when} on"))
    return True


FIRST_PROBE_S = 1.0
"""Delay after the loss of a host until its provider is queried."""

LONGEST_PAUSE_S = 30.0
_WORTH_S = 600.0  # a fleet with a shorter remaining lifetime is not repaired
_CLOSE_S = 2.0
STOPPING_S = 180.0  # Compute Engine allows 30 s for a spot instance to stop, 90 s for others
_STOPPING_PAUSE_S = 3.0
_MOVING = {InstanceState.STOPPING: "stop", InstanceState.RESTARTING: "start"}


def repair_fleet(fleet: ExistingFleet) -> FleetRecord:
    """Replace the lost instances of a fleet, and let its hosts rejoin the running job.

    Call this if a host does not answer. A fleet that is not rented is left unchanged; for a rented one the provider
    is asked for its instances.

    Returns:
        The current fleet.

    Raises:
        NotFoundError: the fleet was deleted.
        NotReadyError: another command holds the fleet, or no instance is left.
        UsageError: the fleet was stopped, so its hosts are not lost.
        FleetError: an instance could not be created or reached; existing ones are kept, and a retry continues.
    """
    record = fleet.record
    if not record.spec.options.rents:
        return record
    with fleet.services.store.lock(record.spec.name, fleet.command):
        now = fleet.directory.read() if fleet.directory.exists() else None
        if now is None:
            raise NotFoundError(f"fleet {record.spec.name!r} was deleted", next_steps=[Step("up")])
        if now.stopped_at:
            raise UsageError(f"fleet {record.spec.name!r} was stopped", next_steps=[Step("up")])
        replace(fleet, record=now).access.let_in()
        record = repair_instances(now, fleet.directory, fleet.services, fleet.sink)
    if record.last_job:
        rejoin(record, fleet.directory, fleet.sink)
    return record


def repair_instances(record: FleetRecord, directory: FleetDirectory, services: Services, sink: Sink) -> FleetRecord:
    """Replace the lost instances of a rented fleet; the caller holds its lock.

    Returns:
        The current fleet, as it is stored in the state.

    Raises:
        NotReadyError: no instance runs, or the fleet is deleted soon: only the user can decide about it.
        FleetError: an instance could not be created or reached; existing ones are kept, and a retry continues.
    """
    spec = record.spec
    provider = services.provider(spec.options)
    existing = at_rest(spec.name, provider, services)
    record = _update_price(record, directory, services, sink)
    steps = plan(spec, existing)
    if steps.create:
        _check_worth(record, existing, steps, services)
        _replace_instances(record, steps, directory, provider, sink)
        existing = list_instances(spec.name, provider, services)
        record = _update_price(record, directory, services, sink)
    existing = [instance for instance in existing if index_of(instance.name) < spec.workers]  # not of a failed resize
    recorded = {instance.id for instance in record.instances}
    other = {*steps.create, *record.kept, *_moved(record, existing, provider)}
    new = [instance for instance in existing if instance.name in other or instance.id not in recorded]
    if not new:
        return record
    if record.kept:
        provider.stop_at(new, 0)
    answering = {host.name: host for host in reach(spec, new, provider, directory, services, sink)}
    record = replace_hosts(record, [answering.get(host.name, host) for host in record.hosts], existing)
    directory.write(record)
    return record


def _update_price(record: FleetRecord, directory: FleetDirectory, services: Services, sink: Sink) -> FleetRecord:
    """Return the fleet with the price of the instances that were just listed; store and report it if it changed."""
    now = services.clock()
    usd_h = directory.price_usd_h(now)
    if math.isclose(usd_h, record.price_usd_h, abs_tol=1e-9):
        return record
    record = replace(record, price_usd_h=usd_h)
    directory.write(record)
    sink.emit(PriceChanged(record.spec.name, usd_h, directory.cost_usd(now)))
    return record


def _moved(record: FleetRecord, instances: Sequence[Instance], provider: Provider) -> list[str]:
    """Return the hosts whose addresses are not the recorded ones: their provider has restarted them."""
    addresses = {host.name: host.address for host in record.hosts}
    running = [instance for instance in instances if instance.state is InstanceState.RUNNING]
    with contextlib.suppress(FleetError):
        hosts = provider.hosts(record.spec, [instance for instance in running if instance.name in addresses])
        return [host.name for host in hosts if host.address != addresses[host.name]]
    return []


def at_rest(fleet: str, provider: Provider, services: Services) -> list[Instance]:
    """Return all instances of a fleet when none is stopping or restarting any more.

    Preempted instances are stopping for a while. Another host, the provider, or an earlier command restarts some.

    Raises:
        NotReadyError: it takes too long.
    """
    deadline = time.monotonic() + STOPPING_S
    while True:
        existing = list_instances(fleet, provider, services)
        moving = {instance.name: _MOVING[instance.state] for instance in existing if instance.state in _MOVING}
        if not moving:
            return existing
        if time.monotonic() > deadline:
            raise NotReadyError(
                f"{', '.join(moving)} of fleet {fleet!r} did not {' or '.join(sorted({*moving.values()}))} "
                f"within {STOPPING_S:g} s",
                next_steps=[Step("up")],
            )
        services.sleep(_STOPPING_PAUSE_S)


def _check_worth(record: FleetRecord, existing: Sequence[Instance], steps: Plan, services: Services) -> None:
    name = record.spec.name
    if not steps.keep:
        is_stopped = any(instance.state is InstanceState.STOPPED for instance in existing)
        raise NotReadyError(
            f"no instance of fleet {name!r} {'runs; their disks are kept' if is_stopped else 'is left'}",
            hint="fleet up starts them again, with all their files" if is_stopped else "",
            next_steps=[Step("up")],
        )
    end = min((at for at in (record.stop_at, record.delete_at) if at), default=0.0)
    if end and services.clock() > end - _WORTH_S:
        at = time.strftime("%H:%M", time.localtime(end))
        verb = "stop" if end == record.stop_at else "are deleted"
        raise NotReadyError(
            f"{', '.join(steps.create)} of fleet {name!r} is gone, and the others {verb} at {at}",
            next_steps=[Step("extend", "4h"), Step("up")],
        )


def _replace_instances(
    record: FleetRecord, steps: Plan, directory: FleetDirectory, provider: Provider, sink: Sink
) -> None:
    spec = record.spec
    reasons: Mapping[str, str] = {}
    with contextlib.suppress(FleetError):
        reasons = provider.termination_reasons(spec.name, steps.create)
    for name in steps.create:
        sink.emit(Note(f"{name} {reasons.get(name, 'is gone')}; it is being replaced", Level.WARNING))
    half_made = [instance for instance in steps.delete if instance.name in steps.create]
    progress = progress_to(sink, "ready")
    if half_made:
        directory.intend("delete", instances=[[instance.name, instance.id] for instance in half_made])
        provider.delete(half_made, progress)
    options = asdict(spec.options)
    directory.intend("create", instances=list(steps.create), provider=spec.provider, options=options)
    provider.create(spec, steps.create, progress)


@contextlib.contextmanager
def open_whole(fleet: ExistingFleet) -> Iterator[tuple[FleetRecord, list[AgentClient]]]:
    """Open an agent on every host, in their order; yield them with the current fleet, whose lock the caller holds.

    If a host of a rented fleet does not answer, lost instances are replaced first.

    Raises:
        FleetError: a host could not be reached or replaced; the error names all of these hosts.
    """
    record, key = fleet.record, fleet.directory.key
    with opened(record.slots, key, fleet.access) as outcomes:
        if not record.spec.options.rents or all(outcome.error is None for outcome in outcomes):
            yield record, raise_failures(outcomes, "reach the fleet")
            return
    record = repair_instances(record, fleet.directory, fleet.services, fleet.sink)
    with open_agents(record.slots, key, fleet.access) as clients:
        yield record, clients


@contextlib.contextmanager
def repairing(fleet: ExistingFleet, patience_s: float) -> Iterator[Repairer | None]:
    """Replace hosts that a rented fleet loses, in a background thread; yield None if the fleet is not rented."""
    if not fleet.record.spec.options.rents:
        yield None
        return
    with Repairer(fleet, patience_s) as repairer:
        yield repairer


class Repairer:
    """Replaces hosts that a rented fleet loses while its job is followed, in a background thread.

    Args:
        fleet: The fleet.
        patience_s: Longest time to try after the loss of a host, in seconds.

    Attributes:
        patience_s: As given.
    """

    def __init__(self, fleet: ExistingFleet, patience_s: float) -> None:
        self._sink = fleet.sink
        self._fleet = fleet
        self.patience_s = patience_s
        self._hosts = {host.name: host for host in fleet.record.slots}
        self._lost: dict[str, float] = {}  # time of the loss
        self._given_up: set[str] = set()
        self._change = threading.Condition()
        self._closed = threading.Event()
        self._busy = False
        self._bug: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="repairer", daemon=True)
        self._thread.start()

    def __enter__(self) -> Repairer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def where(self, host: Host) -> Host:
        """Return the current SSH settings of a host."""
        return self._hosts.get(host.name, host)

    def lost(self, name: str) -> None:
        """Report that a host does not answer, or that its instance was preempted."""
        with self._change:
            if name in self._hosts and name not in self._given_up:
                self._lost.setdefault(name, time.monotonic())
                self._change.notify()

    def back(self, name: str) -> None:
        """Report that a host answers and takes part in the job."""
        with self._change:
            self._lost.pop(name, None)
            self._given_up.discard(name)

    def close(self) -> None:
        """Stop replacing hosts; instances that are being created are left to the next command."""
        self._closed.set()
        with self._change:
            self._change.notify()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive() and self._busy:
            command = Step("logs", "-f").text(self._fleet.record.spec.name)
            self._sink.emit(Note(f"an instance is still being replaced; continue with `{command}`"))
        if self._bug is not None:
            raise self._bug

    def _run(self) -> None:
        pause_s, last_message = FIRST_PROBE_S, ""
        try:
            while not self._closed.is_set():
                with self._change:
                    self._change.wait_for(lambda: self._lost or self._closed.is_set())
                if self._closed.wait(pause_s) or not self._still_lost():
                    pause_s, last_message = FIRST_PROBE_S, ""
                    continue
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
                last_message = self._try(pause_s, last_message)
        except OSError:  # the reader of the output is gone; the thread that follows the job detects this, too
            return
        except Exception as error:  # noqa: BLE001 - raised again by close()
            self._bug = error

    def _try(self, pause_s: float, last_message: str) -> str:
        """Repair the fleet once; return its error, and emit it if it differs from the last one."""
        self._busy = True
        try:
            record = repair_fleet(self._fleet)
        except UsageError as error:  # such as a limit of the cost that is used up: a retry would end in the same way
            self._give_up(0.0)
            self._sink.emit(Note(f"lost hosts are not replaced: {error.message}", Level.WARNING))
            return ""
        except FleetError as error:
            if error.message != last_message and not self._closed.is_set():
                self._sink.emit(Note(f"{error.message}; retrying in {pause_s:.0f} s", Level.WARNING))
            return error.message
        finally:
            self._busy = False
        self._hosts = {host.name: host for host in record.slots}
        return last_message

    def _give_up(self, after_s: float) -> list[str]:
        """Replace no more the hosts that were lost for this time; return their names."""
        with self._change:
            late = [name for name, since in self._lost.items() if time.monotonic() - since >= after_s]
            self._given_up.update(late)
            for name in late:
                del self._lost[name]
        return late

    def _still_lost(self) -> bool:
        """Return whether a host is still lost; give up hosts that were lost for too long."""
        for name in self._give_up(self.patience_s):
            self._sink.emit(Note(f"{name} could not be replaced within {self.patience_s:g} s", Level.WARNING))
        return bool(self._lost)
