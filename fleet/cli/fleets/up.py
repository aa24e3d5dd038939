"""`fleet up`: start a fleet, repair it, or change its number of workers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import typer

from fleet.cli import options
from fleet.cli.application import command
from fleet.cli.options import option, parse_text
from fleet.cli.provider_options import WithProviders, read_options
from fleet.cli.runtime import read_settings, resolve_fleet, session
from fleet.errors import CancelledError, CapacityError, FleetError, NotReadyError, UnreachableError, explain_interrupt
from fleet.events import FleetResized, Level, Note, Sink, describe_maintenance
from fleet.fleets import plan as planning
from fleet.fleets.access import Access, confirm_host_keys
from fleet.fleets.agents import ExistingFleet, fleet_opened
from fleet.fleets.connect import BOOTED, CHOSEN, SSH_WAIT_BOOTED_S, SSH_WAIT_S, progress_to, reach
from fleet.fleets.instances import Keeper, list_instances, release_excess
from fleet.fleets.repair import at_rest, rejoin
from fleet.jobs.deletion import confirm_shrink
from fleet.services import Services
from fleet.settings import Settings
from fleet.state import FleetDirectory, FleetRecord, replace_hosts
from fleet.steps import Again, Shell, Step
from provision.ledger import cost_usd
from provision.model import FleetSpec, Host, Instance, InstanceState, Plan, Resize
from provision.names import index_of
from provision.planner import plan, resize
from provision.provider import Provider

RETRY_FIRST_S = 30.0
RETRY_LONGEST_S = 600.0
_UNCHANGED = "fleet up was interrupted; nothing was changed"


def run(request: planning.UpRequest, services: Services, sink: Sink) -> Sequence[str]:
    """Create or repair the requested fleet, and check that every host answers.

    Returns:
        Names of the instances that were created.

    Raises:
        UsageError: the request is invalid, or costs money or loses results and no user can be asked; nothing was
            changed.
        FleetError: an instance could not be created or reached. Instances that this call created are deleted.
        CancelledError: the user declined, and nothing was changed; or interrupted, and new instances were deleted.
    """
    with planning.keep_provider(request):
        return _up(request, services, sink)


def _up(request: planning.UpRequest, services: Services, sink: Sink) -> Sequence[str]:
    directory = services.store.fleet(request.fleet)
    record = directory.read() if directory.exists() else None
    with explain_interrupt(_UNCHANGED, Again({}, "up")):
        request = planning.convert_inventory(request, services, sink)
        spec = planning.resolve_request(request, record, services)
        planning.confirm_programs(request, spec, record, services, sink)
        agreed = planning.confirm_price(request, spec, record, services, sink)
    if request.dry_run:
        return ()
    with services.store.lock(request.fleet, "up"):
        with explain_interrupt(_UNCHANGED, Again({}, "up")):
            planned_for, record = record, directory.read() if directory.exists() else None
            if record != planned_for:  # another command has changed the fleet meanwhile
                spec = planning.resolve_request(request, record, services)
            provider = services.provider(spec.options)
            before = at_rest(spec.name, provider, services)
            if before and not directory.key.exists():
                names = ", ".join(item.name for item in before)
                message = (
                    f"instances of fleet {spec.name!r} exist, but its SSH key is missing on this computer: {names}"
                )
                raise NotReadyError(message, next_steps=[Step("gc")])
            steps = plan(spec, before)
            if spec.options.rents and not set(steps.create) <= agreed:
                change = f"{', '.join(steps.create)} would now be created"
                message = f"fleet {spec.name!r} changed while waiting for confirmation: {change}"
                raise NotReadyError(message, next_steps=[Again({}, "up")])
            if record and record.ready and spec.workers < record.spec.workers:
                confirm_shrink(ExistingFleet(record, directory, services, sink), spec.workers, before)
        return _Up(request, spec, directory, provider, services, sink).run(record, before, steps)


@dataclass
class _Up:
    """Create a fleet or its missing instances; delete them again after a failure.

    Args:
        request: The request of the user.
        spec: The requested fleet.
        directory: Files of the fleet.
        provider: Creates the instances.
        services: The outside world.
        sink: Takes the events.
    """

    request: planning.UpRequest
    spec: FleetSpec
    directory: FleetDirectory
    provider: Provider
    services: Services
    sink: Sink
    _created: bool = False

    def run(self, record: FleetRecord | None, before: Sequence[Instance], steps: Plan) -> Sequence[str]:
        """Carry out `steps`.

        Raises:
            FleetError: it failed; the instances that it created are deleted.
            CancelledError: interrupted; the instances are deleted too, unless the fleet was complete.
        """
        old = _to_restore(before, record)
        was_ready = record is not None and record.ready
        workers = record.spec.workers if record and record.ready else self.spec.workers
        change = resize(workers, self.spec, steps)
        try:
            self.spec = replace(self.spec, public_key=self.directory.create())
            record = self._write_record(record, before)
            running = [instance for instance in before if instance.state is InstanceState.RUNNING]
            if running and self.spec.options.rents:
                self.provider.stop_at(running, 0)  # an earlier call may have limited the time of kept instances
            hosts = self._apply(steps)
            record = replace_hosts(replace(record, spec=self.spec), hosts, self._list())
            self.directory.write(record)
        except (KeyboardInterrupt, FleetError) as error:
            failure = self._explain_failure(error, record, old, before, steps)
            if failure is error:
                raise
            raise failure from error
        try:
            self._report(record, steps, change, was_ready=was_ready)
            if record.last_job:
                rejoin(record, self.directory, self.sink)
        except KeyboardInterrupt:
            raise CancelledError(
                f"fleet up was interrupted, but fleet {self.spec.name!r} is up",
                next_steps=[Step("status"), Step("down")],
            ) from None
        return steps.create

    def _explain_failure(
        self,
        error: KeyboardInterrupt | FleetError,
        record: FleetRecord | None,
        old: Sequence[Instance],
        before: Sequence[Instance],
        steps: Plan,
    ) -> FleetError:
        """Keep the new instances, or restore the old ones; return the error that reports it."""
        keeper = Keeper(self.spec, self.directory, self.provider, self.services, self.sink)
        unprepared = error if self._created and isinstance(error, FleetError) else None
        if record and unprepared and (explained := keeper.keep(record, old, unprepared)):
            return explained
        keeper.undo(old, error)
        if isinstance(error, FleetError):
            if not before:
                _repeat_as_typed(error)
            return error
        left = "everything it created was deleted" if before else "nothing is left"
        if any(instance.state is InstanceState.STOPPED for instance in before):
            left = "everything it created was deleted, and everything it started was stopped"
        if steps.delete:
            left = "hosts to release may be left, and the next call releases them"
        return CancelledError(f"fleet up was interrupted; {left}", next_steps=[Again({}, "up")])

    def _write_record(self, record: FleetRecord | None, before: Sequence[Instance]) -> FleetRecord:
        """Return the record that must be on disk before the first instance is created or deleted.

        If the fleet grows, the record has the new number of workers only when their hosts are ready; if it shrinks,
        from the beginning. If this program ends in between, the next ``fleet up`` deletes the other instances.
        """
        if record is None or not before:
            now = self.services.clock()
            record = replace(record or FleetRecord(self.spec, now), created_at=now)
        workers = min(self.spec.workers, record.spec.workers)
        if workers < record.spec.workers:
            instances = [instance for instance in record.instances if index_of(instance.name) < workers]
            left = replace_hosts(record, record.hosts[:workers], instances)
            record = replace(left, kept=record.kept, stopped_at=record.stopped_at, unsaved=record.unsaved)
        record = replace(record, spec=replace(self.spec, workers=workers), kept_until=0.0)
        self.directory.write(record)
        return record

    def _apply(self, steps: Plan) -> list[Host]:
        if steps.delete:
            release_excess(self.spec, steps.delete, self.directory, self.provider, self.services, self.sink)
        if steps.create:
            names, provider = list(steps.create), self.spec.provider
            self.directory.intend("create", instances=names, provider=provider, options=asdict(self.spec.options))
            self._create(steps.create)
        self._created = True
        confirm_host_keys(self.spec, self.provider, self.services, self.sink, accept_new=self.request.accept_new)
        access = Access(self.spec, self.services, self.sink)
        instances = self._list()
        for text in describe_maintenance({instance.name: instance.maintenance for instance in instances}):
            self.sink.emit(Note(text, Level.WARNING))
        if not steps.create:
            access.reconcile()
        if self.spec.options.root_scripts and len(steps.create) < len(instances):
            self.provider.update_scripts(self.spec, instances)
        wait_s = SSH_WAIT_S if steps.create else SSH_WAIT_BOOTED_S
        where = (self.spec, instances, self.provider, self.directory, self.services, self.sink)
        try:
            return reach(*where, wait_s=wait_s, created=steps.create)
        except UnreachableError as error:
            raise access.explained(error) from error

    def _create(self, names: Sequence[str]) -> None:
        """Create the instances; without capacity, retry if the user requested that."""
        ready_step = BOOTED if self.spec.options.rents else CHOSEN if self.spec.options.existing else ""
        progress = progress_to(self.sink, "ready", ready_step)
        pause_s = RETRY_FIRST_S
        while True:
            try:
                self.provider.create(self.spec, names, progress)
            except CapacityError as error:
                if not self.request.retry_until_up:
                    raise
                text = f"{error.message}; retrying in {pause_s:.0f} s until there is capacity; Ctrl-C stops"
                self.sink.emit(Note(text, Level.WARNING))
            else:
                return
            self.services.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_LONGEST_S)

    def _list(self) -> list[Instance]:
        return list_instances(self.spec.name, self.provider, self.services)

    def _report(self, record: FleetRecord, steps: Plan, change: Resize, *, was_ready: bool) -> None:
        name, now = record.spec.name, self.services.clock()
        self.sink.emit(fleet_opened(record, self.directory, now))
        if change != Resize():
            ids = {instance.id for instance in change.released}
            cost = cost_usd([interval for interval in self.directory.intervals() if interval.id in ids], now)
            released, workers = tuple(instance.name for instance in change.released), len(record.hosts)
            external, usd_h = self.spec.options.existing, record.price_usd_h
            self.sink.emit(FleetResized(name, workers, change.added, released, cost, usd_h, external=external))
        elif not steps.create:
            self.sink.emit(Note(f"fleet {name!r} {'was already' if was_ready else 'is'} up; every host answers"))
        if self.request.advises:
            scripts = [path.name for path in Path.cwd().glob("*.py")]
            self.sink.emit(Note("next: " + "\n      ".join(step.text(name) for step in next_trains(scripts))))


def next_trains(scripts: Collection[str]) -> list[Step]:
    """Return the commands to type when a fleet is up, with the one or two most likely scripts of this directory."""
    likely = [name for name in ("task.py", "train.py", "main.py") if name in scripts]
    return [Step("train", name) for name in likely[:1] or sorted(scripts)[:2] or ["--help"]]


def _to_restore(before: Sequence[Instance], record: FleetRecord | None) -> list[Instance]:
    """Return the instances that must be left as they were before the command.

    Those that an earlier call kept are not among them. In a stopped fleet, an instance runs only because an earlier
    call started it, so all must be stopped.
    """
    old = [instance for instance in before if record is None or instance.name not in record.kept]
    if record is None or not record.stopped_at:
        return old
    return [replace(instance, state=InstanceState.STOPPED) for instance in old]


def _repeat_as_typed(error: FleetError) -> None:
    """Drop next steps that need the deleted fleet; ``fleet up`` alone would start another fleet.

    Unchanged, the command is repeated after the others.
    """
    again = [step for step in error.next_steps if isinstance(step, Again)]
    others = [step for step in error.next_steps if isinstance(step, Shell)]
    error.next_steps = (*again, *others) if again else (*others, Again({}, "up"))


@command("Fleets", WithProviders)
def up(
    ctx: typer.Context,
    workers: int | None = option(
        None,
        "--workers",
        "Number of workers.",
        "N",
        short="-w",
        parser=options.parse_count,
        shown="2; with --inventory all hosts",
    ),
    provider: str | None = options.PROVIDER,
    python: str | None = option(
        None, "--python", "Interpreter for the script on the hosts.", "PATH", parser=parse_text, shown="detected"
    ),
    package: list[str] | None = options.PACKAGE,
    index_url: str | None = options.INDEX_URL,
    pip_proxy: str | None = options.PIP_PROXY,
    retry_until_up: bool = option(False, "--retry-until-up", "Keep retrying until capacity is available."),
    dry_run: bool = options.DRY_RUN,
    yes: bool = options.YES,
    fleet: str = options.FLEET,
    output: options.Output = options.OUTPUT,
    accept_new: bool = option(
        False, "--accept-new", "Accept the keys of unknown hosts without asking.", panel=options.EXISTING_HOSTS
    ),
    allow_programs: bool = option(
        False,
        "--allow-programs",
        "Run programs on this computer that fleet.toml or the inventory names, without asking.",
        envvar="FLEET_ALLOW_PROGRAMS",
    ),
) -> None:
    """Create, repair, or resize a fleet.

    Uses this computer, unless fleet.toml or an option selects other hosts: --inventory existing ones, each option of
    Compute Engine its instances. Shows the price and asks before it spends money. With another number of workers,
    adds hosts to an existing fleet or releases the last ones; asks first if results on these are not on this
    computer.

    Examples:
      fleet up --workers 4
      fleet up --workers 2 --gpu t4
      fleet up --inventory hosts.ini
    """
    packages = tuple(package) if package else None
    given = Settings(
        provider=provider,
        workers=workers,
        python=python,
        packages=packages,
        index_url=index_url,
        pip_proxy=pip_proxy,
        options=read_options(ctx),
    )
    name = resolve_fleet(fleet)
    request = planning.UpRequest(
        name,
        given,
        read_settings(provider),
        dry_run=dry_run,
        retry_until_up=retry_until_up,
        accept_new=accept_new,
        allow_programs=allow_programs,
    )
    with session(name, output, yes=yes) as running:
        run(request, running.services, running)
