"""Copy the results of a job from its hosts to a directory on this computer."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fleet.errors import CancelledError, FleetError, NotFoundError, NotReadyError, UsageError, explain_interrupt, fold
from fleet.events import Event, Level, Note, PullProgress, ResultsPulled
from fleet.fleets.agents import ExistingFleet, call_each
from fleet.jobs.collection import collect_record
from fleet.jobs.results import StoredJobs, StoredTask, Survey, load_note, survey_agents, survey_job
from fleet.jobs.tasks import worker_name
from fleet.remote.client import AgentClient
from fleet.remote.fanout import Outcome, raise_failures, values_of
from fleet.remote.results import Listing, list_files, read_files
from fleet.reports.record import encode_record
from fleet.results.layout import Item, Layout, Listed, lay_out, parse_kinds
from fleet.results.target import LocalWriteError, PartialFile, Target, complete_tasks, job_of
from fleet.services import Services
from fleet.state import FleetDirectory
from fleet.steps import Step
from train.agent.protocol.cluster import is_task, task_rank
from train.agent.protocol.records import Area, FilePart

T = TypeVar("T")

DIRECTORY = "results"
"""Default directory of results: results/JOB in the current directory."""

_BATCH = 200  # files asked for at a time
_ROUNDS = 3
_PROGRESS_S = 0.1


class PullRequest(NamedTuple):
    """Results to copy, and their destination.

    Attributes:
        job: Job that wrote the results, as in `select_job`.
        directory: Destination; empty: that of `fleet train --pull`, else results/JOB.
        worker: ``all``, ``1`` or a task.
        kinds: Kinds of results between commas; empty: all.
    """

    job: str = ""
    directory: str = ""
    worker: str = "all"
    kinds: str = ""

    def step(self, job: str) -> Step:
        """Return the command that repeats the request for the job that it means."""
        worker = self.worker if worker_name(self.worker) else ""
        options = [("--to", self.directory), ("--what", self.kinds), ("--worker", worker)]
        return Step("pull", *filter(None, [job]), *(word for option in options if option[1] for word in option))


def pull_results(fleet: ExistingFleet, request: PullRequest) -> ResultsPulled:
    """Copy the results of a job to this computer; skip files that exist there already.

    Raises:
        NotFoundError: the job or task does not exist, or the job has no results.
        UsageError: the directory contains other files, or a kind of results does not exist.
        NotReadyError: the disk is too small for them, or they change during each attempt to copy them.
        UnreachableError: a host does not answer; what the others have was copied.
        CancelledError: Ctrl-C; a repeat continues.
    """
    name, areas = worker_name(request.worker), parse_kinds(request.kinds)
    interrupted = "the pull was interrupted; a repeat continues where it stopped"
    with (
        explain_interrupt(interrupted, request.step(request.job)),
        fleet.open_some(whole_window=True) as (clients, unreached),
    ):
        stored = survey_job(request.job, clients, fleet.directory, unreached)
        try:
            job = stored.select(request.job, fleet.name)
        except NotFoundError:
            raise_if_silent(stored)
            raise
        tasks = select_tasks(job, name, areas)
        given = request.directory or job.local.pull_to or Path(DIRECTORY) / job.job
        with Target(Path(given).expanduser().absolute(), job.job) as target:
            fleet.announce()
            pull = Pull(job, tasks, clients, target, fleet.sink.emit, areas)
            summary = pull.run(fleet.directory, whole=not name and not stored.silent)
            with contextlib.suppress(FleetError):  # the results are here
                target.describe(encode_record(collect_record(job, fleet, clients)))
    fleet.sink.emit(summary)
    if summary.files and (note := load_note(job)):
        fleet.sink.emit(note)
    if job.is_running:
        command = request.step(job.job).text(fleet.name)
        fleet.sink.emit(Note(f"job {job.job} is still running; repeat `{command}` when it has ended"))
    pull.raise_failures()
    raise_if_silent(stored)
    if not name and not areas and not job.is_running:
        fleet.directory.forget_pull(job.job)
    return summary


def pull_all(fleet: ExistingFleet, request: PullRequest) -> None:
    """Copy the results of all ended jobs that are not on this computer, each to ``directory/JOB``, despite errors.

    Raises:
        UsageError: a job is given, too.
        FleetError: the results of a job were not copied, as for `pull_results`; the error of the first one.
    """
    if request.job:
        steps = [Step("pull", request.job), Step("pull", "--all")]
        raise UsageError("JOB and --all exclude each other", next_steps=steps)
    with fleet.open_some() as (clients, unreached):
        stored = survey_agents(clients, fleet.directory, unreached=unreached)
    jobs = [job.job for job in stored.jobs if job.tasks and not job.is_safe and not job.is_running]
    first: FleetError | None = None
    for job in jobs:
        to = str(Path(request.directory) / job) if request.directory else ""
        try:
            pull_results(fleet, request._replace(job=job, directory=to))
        except CancelledError:
            raise
        except FleetError as error:
            first = first or error
            fleet.sink.emit(Note(f"job {job}: {error.message}", Level.WARNING))
    if first is not None:
        raise first
    raise_if_silent(stored)
    if not jobs:
        fleet.sink.emit(Note("the results of all ended jobs are on this computer"))


def raise_if_silent(stored: Survey) -> None:
    """Report the hosts that did not answer.

    Raises:
        FleetError: there are some.
    """
    if stored.silent:
        error = next(iter(stored.silent.values()))
        raise type(error)(
            f"{fold(stored.silent)} cannot be reached; its results are unknown",
            cause=error.message,
            next_steps=[Step("status")],
        )


def select_tasks(job: StoredJobs, name: str, areas: Sequence[Area] = ()) -> list[StoredTask]:
    """Return the tasks to pull from, the chief first.

    Raises:
        NotFoundError: the task does not exist, or there is nothing to pull.
    """
    if name and name not in [task.name for task in job.tasks]:
        names = ", ".join(task.name for task in job.tasks)
        raise NotFoundError(
            f"job {job.job} has no {name}", cause=f"its tasks are {names}", next_steps=[Step("status")]
        )
    tasks = [task for task in job.tasks if name in ("", task.name)]
    which = f"{name} of job {job.job}" if name else f"job {job.job}"
    if not any(task.stored.fingerprint for task in tasks):
        raise NotFoundError(
            f"{which} has no results: no model, checkpoints, files, or log", next_steps=[Step("jobs")]
        )
    present = {use.area for task in tasks for use in task.stored.areas}
    if areas and present.isdisjoint(areas):
        raise NotFoundError(
            f"{which} has no {' or '.join(area.value for area in areas)}",
            cause=f"it has {', '.join(area.value for area in Area if area in present)}",
            next_steps=[Step("pull", job.job)],
        )
    return tasks


@dataclass
class Pull:
    """Copy the results of some tasks.

    Args:
        job: The job.
        tasks: Its tasks, the chief first.
        clients: Conversations with agents.
        target: Takes the results.
        emit: Takes the events.
        areas: Kinds of results to copy; empty: all.
        names: Copy only files whose name contains one of these; empty: all files.

    Attributes:
        failed: Hosts whose results could not be listed or copied, by name; those of the others were copied.
        changed: Results that changed each time they were copied.
    """

    job: StoredJobs
    tasks: Sequence[StoredTask]
    clients: Sequence[AgentClient]
    target: Target
    emit: Callable[[Event], None]
    areas: Sequence[Area] = ()
    names: Sequence[str] = ()
    failed: dict[str, Outcome[Any]] = field(default_factory=dict)
    changed: Sequence[Item] = ()

    def __post_init__(self) -> None:
        self._hosts = {task.host.name for task in self.tasks}
        self._lock = threading.Lock()
        self._received_paths: set[str] = set()
        self._received = 0
        members = [member.task for report in self.job.reports for member in report.members if is_task(member.task)]
        self._chief = min(members, key=task_rank, default=self.job.tasks[0].name)

    def run(self, directory: FleetDirectory, *, whole: bool) -> ResultsPulled:
        """Copy them, and note in the fleet's files which of them are on this computer.

        Args:
            directory: Files of the fleet.
            whole: The tasks are all tasks of the job.
        """
        layout, listings = self.copy()
        left_out = self.target.problems.keys() | {item.path for item in self.changed}
        kept = {
            task.key: (listings[task.key].fingerprint, layout.contents.get(at, {}))
            for at, task in enumerate(self.tasks)
            if at not in layout.lossy
            and not listings[task.key].notes
            and self._lists_all(task, listings[task.key])
            and left_out.isdisjoint(layout.contents.get(at, {}))
        }
        self.target.finish(kept)
        before, now = self.job.local.directory, str(self.target.path)
        if now == before or complete_tasks(before).keys() <= kept.keys():  # a copy of less replaces none elsewhere
            directory.note_results(self.job.job, directory=now)
        files = [item for item in layout.files if item.path not in left_out]
        complete = whole and not self.failed and len(kept) == len(self.tasks) and not self.job.is_running
        return ResultsPulled(
            fleet=directory.path.name,
            job=self.job.job,
            directory=str(self.target.path),
            files=len(files),
            size=sum(item.entry.size for item in files),
            received_files=len(self._received_paths.intersection(item.path for item in files)),
            received=self._received,
            complete=complete,
            equal=sum(map(len, layout.contents.values())) - len(layout.files),
        )

    def _lists_all(self, task: StoredTask, listing: Listing) -> bool:
        """Return whether the list of a task has all of its results; if they have changed, there may be new kinds."""
        areas = {use.area for use in task.stored.areas}
        return not self.areas or (listing.fingerprint == task.stored.fingerprint and areas <= {*self.areas})

    def raise_failures(self) -> None:
        """Report the results that were not copied.

        Raises:
            FleetError: there are some.
        """
        self.target.raise_problems()
        if self.changed:
            more = f" (and {len(self.changed) - 1} more)" if len(self.changed) > 1 else ""
            raise NotReadyError(
                f"{self.changed[0].path!a}{more} changed while it was copied, or arrived damaged",
                cause="the other results are on this computer",
                next_steps=[Step("pull", self.job.job, "--to", str(self.target.path))],
            )
        raise_failures(list(self.failed.values()), "copy the results")

    def copy(self) -> tuple[Layout, dict[str, Listing]]:
        """Copy them, and return what was copied, with the lists of the tasks by key.

        Raises:
            FleetError: every host failed.
        """
        rounds = 0
        while True:
            listings, failed = self._list(), len(self.failed)
            listed = [Listed(task.name, listings[task.key].entries) for task in self.tasks]
            layout = lay_out(listed, self._chief, self.target.copied.files)
            changed = self._receive(layout)
            if len(self.failed) > failed:  # other hosts may have the same files
                continue
            rounds += 1
            if not changed or rounds == _ROUNDS:
                break
        hosts = [f"{task.name}: {note}" for task in self.tasks for note in listings[task.key].notes]
        for text in [*layout.notes, *hosts]:
            self.emit(Note(text, Level.WARNING))
        self.changed = changed
        return layout, listings

    def _list(self) -> dict[str, Listing]:
        def list_host(client: AgentClient) -> list[tuple[str, Listing]]:
            meter = _Meter(client.host.name, 0, self.emit)
            mine = [task for task in self.tasks if task.host.name == client.host.name]
            count = partial(meter.add, files=1)
            return [(task.key, list_files(client, task.stored, count, self.areas, self.names)) for task in mine]

        return dict(chain.from_iterable(self._call_each(list_host)))

    def _call_each(self, call: Callable[[AgentClient], T]) -> list[T]:
        """Ask all hosts; continue without hosts that do not answer, or whose answer is invalid.

        Raises:
            LocalWriteError: this computer cannot write the results.
            FleetError: every host failed.
        """
        left = self._hosts - {*self.failed}
        outcomes = call_each([client for client in self.clients if client.host.name in left], call)
        for outcome in outcomes:
            if isinstance(outcome.error, LocalWriteError):
                raise outcome.error
        self.failed |= {outcome.host.name: outcome for outcome in outcomes if outcome.error is not None}
        if len(self.failed) == len(self._hosts):
            raise_failures(list(self.failed.values()), "copy the results")
        self.tasks = [task for task in self.tasks if task.host.name not in self.failed]
        return values_of(outcomes)

    def _receive(self, layout: Layout) -> list[Item]:
        """Copy missing files; return those that changed on their host meanwhile."""
        missing = self.target.missing(layout.files)
        by_content: dict[str, list[Item]] = {}
        for item in missing:
            by_content.setdefault(item.entry.sha256, []).append(item)
        self.target.need_space(missing)

        def receive_from(client: AgentClient) -> list[Item]:
            host = client.host.name
            mine = [same for same in by_content.values() if self.tasks[same[0].source].host.name == host]
            meter = _Meter(host, sum(same[0].entry.size for same in mine), self.emit)
            changed = []
            for task in self.tasks:
                ours = [same for same in mine if self.tasks[same[0].source] is task]
                for start in range(0, len(ours), _BATCH):
                    changed += self._receive_batch(client, task, ours[start : start + _BATCH], meter)
            meter.report(done=True)
            with self._lock:
                self._received += meter.received
            return changed

        changed = list(chain.from_iterable(self._call_each(receive_from)))
        for item in layout.directories:
            self.target.directory(item)
        for item in layout.links:
            self.target.link(item)
        return changed

    def _receive_batch(
        self, client: AgentClient, task: StoredTask, batch: Sequence[list[Item]], meter: _Meter
    ) -> list[Item]:
        parts = [
            FilePart(first.area, first.path, self.target.offset(first), first.size)
            for first in (items[0].entry for items in batch)
        ]
        changed: list[Item] = []
        part: PartialFile | None = None
        try:
            for index, data in read_files(client, task.stored, parts):
                if part is None:
                    part = self.target.partial_file(batch[index][0].entry)
                    meter.add(part.offset)
                if isinstance(data, bytes):
                    part.write(data)
                    meter.add(len(data))
                    continue
                ended, part = part, None
                if ended.close() and not data:
                    with self._lock:
                        self.target.store(ended, batch[index])
                        self._received_paths.update(item.path for item in batch[index])
                    meter.files += len(batch[index])
                else:
                    changed += batch[index]
        finally:
            if part is not None:
                part.close()
        return changed


@dataclass
class _Meter:
    """Emit the progress of a host, a few times a second.

    Args:
        host: Its name.
        total: Bytes to receive.
        emit: Takes the events.

    Attributes:
        received: Bytes received.
        files: Number of files that came.
    """

    host: str
    total: int
    emit: Callable[[Event], None]
    received: int = 0
    files: int = 0
    _next: float = field(default_factory=lambda: time.monotonic() + _PROGRESS_S)

    def add(self, received: int = 0, files: int = 0) -> None:
        """Count received bytes, and files that came, that the host lists, or that it is reading."""
        self.received += received
        self.files += files
        if time.monotonic() >= self._next:
            self.report()

    def report(self, *, done: bool = False) -> None:
        """Report the counts; `done`: nothing more is expected."""
        self._next = time.monotonic() + _PROGRESS_S
        self.emit(PullProgress(self.host, self.received, self.total, self.files, done=done))


def copy_named(job: StoredJobs, clients: Sequence[AgentClient], directory: Path, names: Sequence[str]) -> bool:
    """Copy the files whose name contains one of `names`; return whether all were copied.

    Raises:
        FleetError: every host failed.
    """
    hosts = {client.host.name for client in clients}
    tasks = [task for task in job.tasks if task.host.name in hosts]
    with Target(directory, job.job) as target:
        pull = Pull(job, tasks, clients, target, lambda _: None, names=names)
        pull.copy()
    return not (pull.failed or pull.changed)


def find_pulled(given: str, job: str, fleet: str, services: Services) -> Path | None:
    """Return the directory of pulled results to use; None: the fleet has the job.

    Args:
        given: Directory that the user named; empty: none.
        job: The job that the user named; empty: none.
        fleet: Name of the fleet.
        services: The outside world.

    Raises:
        UsageError: the given directory holds no pulled results.
    """
    if given:
        path = Path(given).expanduser().absolute()
        if job_of(path) is None:
            raise UsageError(f"{given!r} does not hold results that fleet pull copied", next_steps=[Step("jobs")])
        return path
    if services.store.fleet(fleet).exists():
        return None
    pulled = Path(DIRECTORY).absolute() / job
    return pulled if job and job_of(pulled) else None


def pull_ended(fleet: ExistingFleet) -> None:
    """Do the requested pulls of jobs that have ended; report a failed one as a warning, and keep its request.

    Raises:
        CancelledError: Ctrl-C; a repeat continues.
    """
    directory, sink = fleet.directory, fleet.sink
    requested = [job for job in reversed(directory.recorded_jobs()) if directory.on_this_computer(job).pull_to]
    if not requested:
        return
    try:
        fleet = ExistingFleet.find(fleet.name, fleet.services, sink)  # its hosts may have been replaced
        with fleet.open_some() as (clients, unreached):
            stored = survey_agents(clients, directory, requested, unreached)
    except FleetError as error:
        sink.emit(Note(f"the results of {', '.join(requested)} were not pulled: {error.message}", Level.WARNING))
        return
    for job in requested:
        ended = stored.find(job)
        if ended is None and not stored.silent:  # no host stores it
            directory.forget_pull(job)
        elif ended is not None and not ended.is_running:
            try:
                pull_results(fleet, PullRequest(job))
            except CancelledError:
                raise
            except FleetError as error:
                sink.emit(warning_of(job, fleet.name, error))


def warning_of(job: str, fleet: str, error: FleetError) -> Note:
    """Return the warning about a requested pull that failed."""
    cause = f" ({error.cause})" if error.cause else ""
    text = f"the results of job {job} were not pulled: {error.message}{cause}"
    return Note(f"{text}; repeat `{Step('pull', job).text(fleet)}`", Level.WARNING)
