"""Fuzz what the client reads from hosts: answers, followed jobs, reports, and listings of results."""

from __future__ import annotations

import contextlib
import itertools
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from io import BytesIO, StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from fleet import events
from fleet.console.jsonl import JsonSink
from fleet.console.lines import LinesSink, LogStyle
from fleet.console.status import render_status
from fleet.errors import FleetError, UnreachableError
from fleet.jobs.following import follow as following
from fleet.jobs.following.follow import Followed
from fleet.jobs.inspection import job_status
from fleet.jobs.pull import Pull
from fleet.jobs.results import StoredJobs, StoredTask, survey_of
from fleet.remote import results
from fleet.remote.client import AgentClient
from fleet.remote.follower import Follower
from fleet.remote.ssh.transport import SSHTransport
from fleet.results.target import Target
from fleet.state import FleetDirectory, FleetRecord
from provision.model import FleetSpec, Host
from tests.soak.mangler import Mangler, sample_records
from train.agent.protocol import records
from train.agent.protocol.records import Area, AreaUse, EntryKind, FileEntry, Outcome, Phase, StoredJob, encode

CONTENT = b"hello"
JOB = "20261122-094500-k3f9"
_DIGEST = sha256(CONTENT).hexdigest()
_MEMBERS = [
    records.Member(f"worker-{number}", f"worker-{number}", f"10.0.0.{number + 2}", 2222, 4000) for number in range(3)
]
_RESULT = records.JobResult(JOB, 1, Outcome.FAILED, 9.0, "worker-0", "worker-0 exited with code 1")
_REPORT = records.JobReport(
    JOB, "f", "worker-1", "worker-1", 1, Phase.EXITED, False, 1.0, ["python3", "task.py"], _MEMBERS, 5, result=_RESULT
)  # fmt: skip
_STORED = StoredJob(JOB, "worker-1", "", "/fleet/jobs/j", 5, "f" * 64, [AreaUse(Area.MODEL, "/m", 1, 5)], _REPORT)
_ENTRIES = [
    FileEntry(Area.MODEL, "a/x.keras", EntryKind.FILE, 0o644, 5, 10**18, _DIGEST),
    FileEntry(Area.MODEL, "a/y", EntryKind.LINK, target="x.keras"),
    FileEntry(Area.FILES, "empty", EntryKind.DIRECTORY),
    FileEntry(Area.CHECKPOINTS, "ckpt", EntryKind.FILE, 0o755, 5, 10**18, _DIGEST),
]
_LONG = 3 << 20  # bytes of a record that is almost too long
_MOST_SENT = 300 << 20  # bytes that a host sends before it ends


def host(number: int = 1) -> Host:
    """Return a host of the fleet."""
    return Host(f"worker-{number}", "10.0.0.3", 22, "user", f"10.0.0.{number + 2}", "ssh-ed25519 A", "/fleet")


class Sent:
    """A session with a host that sends the given bytes and then ends.

    Args:
        pieces: Bytes to send, in the order of the calls of recv().
    """

    exit_status = 3
    in_stderr_buffer = None
    in_buffer = None  # records are read as with a version of paramiko without a loop

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.count = 0
        self.status_event = threading.Event()
        self.status_event.set()

    def settimeout(self, _: float) -> None:
        return

    def recv(self, _: int) -> bytes:
        data = next(self._pieces, b"") if self.count < _MOST_SENT else b""
        self.count += len(data)
        return data

    def recv_ready(self) -> bool:
        return False

    def recv_stderr_ready(self) -> bool:
        return False

    def sendall(self, data: bytes) -> None:
        """Drop a request."""

    def get_transport(self) -> object:
        return SimpleNamespace(is_active=lambda: True)


def client(pieces: Iterator[bytes], number: int = 1) -> AgentClient:
    """Return a client of a host that sends these bytes."""
    guard = SimpleNamespace(is_stalled=False)
    connection = SimpleNamespace(
        host=host(number), guard=guard, sever=lambda: None, close=lambda: None, has_read=lambda _: None
    )
    transport = SSHTransport(cast("Any", connection), cast("Any", Sent(pieces)), "python3")
    return AgentClient(transport, connection.host, _first(records.Hello))


Line = records.Record | tuple[records.Record, bytes]
"""A record of an answer, with the bytes that follow it."""


def damaged(mangler: Mangler, *lines: Line) -> Iterator[bytes]:
    """Yield an answer with a random change, or without a change."""
    pieces = list(whole(lines))
    change = mangler.random.choice(["none", "line", "line", "line", "other", "swap", "cut", "noise", "repeat"])
    at = mangler.random.randrange(len(pieces))
    if change == "line":
        pieces[at] = mangler.damage(pieces[at])
    elif change == "other":
        pieces.insert(at, mangler.damage(encode(mangler.random.choice(sample_records()))))
    elif change == "swap":
        mangler.random.shuffle(pieces)
    elif change == "cut":
        pieces[at:] = [pieces[at][: mangler.random.randrange(len(pieces[at]))]]
    elif change == "noise":
        pieces.insert(at, mangler.anything())
    elif change == "repeat":
        pieces[at:at] = [pieces[at]] * mangler.random.choice([1, 10, 300])
    yield from pieces


def whole(lines: Iterable[Line]) -> Iterator[bytes]:
    """Yield the bytes of an answer without a change."""
    for line in lines:
        record, payload = line if type(line) is tuple else (cast("records.Record", line), b"")
        yield encode(record) + payload


def endless(make: Callable[[str, int], records.Record]) -> Iterator[bytes]:
    """Yield different records without end, each almost as long as a record may be."""
    for number in itertools.count(1):
        yield encode(make(f"{number}".ljust(_LONG, "x"), number))


def _ignore(*_: object) -> None:
    return


def _plain_answers() -> list[tuple[Callable[[AgentClient], object], list[Line]]]:
    """Return requests with one short answer, and that answer."""
    request = records.Prepare(JOB, "f", "worker-1", [], "10.0.0.3")
    commit = records.Commit(JOB, "worker-1", _MEMBERS, "00", ["x"], {}, {})
    hello, step = _first(records.Hello), _first(records.BootstrapStep)
    ready = records.Bootstrapped("p", {"python": "3"}, [], 0, False, 1.0)
    return [
        (lambda agent: agent.prepare(request), [_first(records.Prepared)]),
        (lambda agent: agent.commit(commit), [records.Committed(5)]),
        (lambda agent: agent.stop(records.Stop(JOB, "worker-1")), [records.Stopped(True, True)]),
        (lambda agent: agent.release(records.Release()), [records.Released(True)]),
        (lambda agent: agent.get_join_info(records.GetJoinInfo(JOB, "worker-1")), [_first(records.JoinInfo)]),
        (lambda agent: results.prune_jobs(agent, [JOB]), [records.Beat(1.0), records.JobsPruned([JOB], 5)]),
        (lambda agent: agent.bootstrap(records.Bootstrap(), _ignore), [step, ready]),
        (lambda agent: cast("SSHTransport", agent.transport).greet(b"agent", 1.0), [hello]),
    ]


def _first(kind: type[Any]) -> Any:
    return next(record for record in sample_records() if isinstance(record, kind))


def fuzz_answers(mangler: Mangler, rounds: int) -> None:
    """Send short answers; check that each is returned, or refused with an error for the user."""
    for _ in range(rounds):
        ask, answer = mangler.random.choice(_plain_answers())
        with contextlib.suppress(FleetError):
            ask(client(damaged(mangler, *answer)))


def fuzz_reports(mangler: Mangler, rounds: int) -> None:
    """Send reports on jobs; check that a damaged one changes only the status of its host."""
    with _refused():
        results.list_jobs(client(endless(_large_job)))
    with _refused():
        client(endless(_large_report)).inspect(records.Inspect(1))
    true = [_REPORT._replace(slot=f"worker-{number}") for number in (0, 2)]
    for _ in range(rounds):
        with contextlib.suppress(FleetError):
            states = client(damaged(mangler, _REPORT, records.End())).inspect(records.Inspect(1))
            status = job_status([*true, *states], JOB)
            assert status is not None
            assert status.result is not None
            assert (status.id, status.result.outcome) == (JOB, events.Outcome.FAILED)
            shown = events.FleetStatus("demo", "local", (), status)
            JsonSink(BytesIO()).emit(shown)
            render_status([shown], now=1e9)
        with contextlib.suppress(FleetError):
            store = results.list_jobs(client(damaged(mangler, _STORED, _first(records.Beat), _disk(), records.End())))
            others = [(host(n), results.Store((_STORED._replace(slot=f"worker-{n}", report=true[n // 2]),), _disk()))
                      for n in (0, 2)]  # fmt: skip
            survey = survey_of([(host(), store), *others], FleetDirectory(Path("nowhere")), {})
            newest = survey.jobs[0]
            assert newest.job == JOB
            assert {"worker-0", "worker-2"} <= {task.host.name for task in newest.tasks}
            assert newest.summary().state == "failed"


def _large_report(text: str, number: int) -> records.JobReport:
    return _REPORT._replace(command=[text], attempt=number)


def _large_job(text: str, number: int) -> StoredJob:
    return _STORED._replace(job=f"j-{number}", report=_large_report(text, number)._replace(job=f"j-{number}"))


def _disk() -> records.DiskSpace:
    return records.DiskSpace("/", 5, 10)


@contextlib.contextmanager
def _refused() -> Iterator[None]:
    """Check that a host is refused."""
    try:
        yield
    except FleetError:
        return
    raise AssertionError("it was not refused")


# --- a job that is followed -----------------------------------------------------------------------------------------


def task_report(task: str) -> list[Line]:
    """Return what the agent of a task reports about a job that fails."""
    state = records.TaskState(task, task, 1, Phase.EXITED, 5.0, exit=records.Exit(code=1))
    return [
        state._replace(phase=Phase.RUNNING, exit=None, at=1.0),
        (records.Log(task, task, 1, 0, 5, 1795228844.7, [2, 15_000]), CONTENT),
        records.Progress(task, task, 1, 2.0, 1, 5, 3, 9, {"loss": 0.5}, 2.0),
        records.Beat(2.0, 10, 5, 1),
        state,
        _RESULT,
        records.End(),
    ]


def _lost(_: Host) -> AgentClient:
    raise UnreachableError("the host is gone")


def _follow(sent: Iterator[bytes], consoles: Sequence[Any] = ()) -> following.Ended:
    """Follow the job of three hosts, of which worker-1 sends the given bytes."""
    answers = [whole(task_report("worker-0")), sent, whole(task_report("worker-2"))]
    clients = {f"worker-{number}": client(answer, number) for number, answer in enumerate(answers)}
    requests = [(host(number), records.Follow(JOB, f"worker-{number}", attempt=1)) for number in range(len(answers))]
    record = FleetRecord(FleetSpec("demo", "local", len(answers)), 1.0)
    followed = Followed(FleetDirectory(Path("nowhere")), record, JOB, tuple(clients.values()), tuple(_MEMBERS))
    telling = following._Reporter(
        followed, SimpleNamespace(emit=lambda event: [sink.emit(event) for sink in consoles])
    )
    with Follower(requests, _lost, clients=clients, give_up_s=0.0) as follower:
        for item in follower:
            telling.add(item)
        telling.report_incomplete(follower.incomplete)
    return telling.end()


def fuzz_follow(mangler: Mangler, rounds: int) -> None:
    """Damage what one host reports about a job; check that the result and the other logs are unchanged."""
    state = records.TaskState("worker-1", "worker-1", 1, Phase.RUNNING, 1.0)
    for make in (
        lambda text, number: state._replace(reason=text, at=float(number)),
        lambda text, number: records.Notice("worker-1", number, 1.0, text),
    ):
        assert _follow(endless(make)).result == _RESULT
    for _ in range(rounds):
        lines = LinesSink(BytesIO(), StringIO(), LogStyle(terminal=True))
        result = _follow(damaged(mangler, *task_report("worker-1")), [JsonSink(BytesIO()), lines]).result
        assert result is not None
        assert (result.outcome, result.attempt, result.reason) == (Outcome.FAILED, 1, _RESULT.reason)


# --- results that are copied ----------------------------------------------------------------------------------------


class Storing(Sent):
    """A session with a host that stores results and answers each request.

    Args:
        change: Returns what the host sends instead of an answer.
    """

    def __init__(self, change: Callable[..., Iterator[bytes]]) -> None:
        self._requests = bytearray()
        self._change = change
        self._answers: Iterator[bytes] = iter(())
        super().__init__(iter(lambda: next(self._answers, b""), None))

    def sendall(self, data: bytes) -> None:
        self._requests += data
        while b"\n" in self._requests:
            line, _, self._requests = self._requests.partition(b"\n")
            self._answers = self._change(*_stored_answer(records.decode(bytes(line))))


def _stored_answer(request: records.Record) -> list[Any]:
    if isinstance(request, records.ListFiles):
        return [*_ENTRIES, records.Beat(1.0), records.FilesListed("f" * 64, ["a note"])]
    assert isinstance(request, records.ReadFiles)
    answer: list[Any] = []
    for part in request.parts:
        data = CONTENT[part.offset : part.end]
        answer += [(records.Chunk(len(data)), data)] if data else []
        answer.append(records.FileEnd())
    return answer


def fuzz_listings(mangler: Mangler, rounds: int) -> None:
    """Damage listings and contents of results; check that only the other host's results are written."""
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as directory:
            error = _pull(mangler, Path(directory))
            _check_inside(Path(directory))
            if not error.startswith("the results take"):
                assert (Path(directory) / "results/model/a/x.keras").read_bytes() == CONTENT, error
                assert (Path(directory) / "results/files/worker-0/empty").is_dir(), error


def _pull(mangler: Mangler, directory: Path) -> str:
    """Copy results of a correct host and of one that sends changed answers; return the error."""
    sessions = [Storing(lambda *true: whole(true)), Storing(lambda *true: damaged(mangler, *true))]
    clients = [client(iter(()), number) for number in range(2)]
    for agent, session in zip(clients, sessions, strict=True):
        cast("SSHTransport", agent.transport)._session = cast("Any", session)
    tasks = []
    for number in range(2):
        name = f"worker-{number}"
        stored = _STORED._replace(slot=name, report=_REPORT._replace(slot=name))
        tasks.append(StoredTask(host(number), stored, name, copied=False, safe=False))
    state = FleetDirectory(directory / "state")
    jobs = StoredJobs(JOB, tuple(tasks), state.on_this_computer(JOB))
    (directory / "state").mkdir()
    try:
        with Target(directory / "results", JOB) as target:
            pull = Pull(jobs, tasks, clients, target, JsonSink(BytesIO()).emit)
            pull.run(state, whole=True)
    except FleetError as error:
        return error.message
    return ""


def _check_inside(directory: Path) -> None:
    assert {path.name for path in directory.iterdir()} == {"results", "state"}
    root = (directory / "results").resolve()
    for path in root.rglob("*"):
        assert path.resolve().is_relative_to(root), path
        assert "\x1b" not in path.name
