"""Drive real agents over pipes, as the SSH part of the program drives them over channels."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

from tests.program import PYTHON, find_paths
from train.agent.files.contents import join_blocks, pack_block
from train.agent.files.disk import read_json
from train.agent.protocol.records import (
    Beat,
    Chunk,
    Commit,
    Committed,
    ContentsReceived,
    End,
    Entry,
    EntryKind,
    Exit,
    Follow,
    Hello,
    JobResult,
    Log,
    Member,
    NeedContents,
    Prepare,
    Prepared,
    Record,
    Refused,
    Stop,
    Stopped,
    TaskState,
    decode,
    encode,
)
from train.pack import AgentArchive, bootstrap_command, build_agent, upload

DEADLINE_S = 90.0
R = TypeVar("R")


class Agent:
    """An agent process on a host with the directory `root`; `prefix` is the command that runs programs on it."""

    def __init__(
        self,
        root: Path,
        *,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        archive: AgentArchive | None = None,
        shared: str = "",
    ) -> None:
        self.root = root
        archive = archive or build_agent()
        command = bootstrap_command(python, str(root), archive.digest, shared)
        self.process = subprocess.Popen(
            [*prefix, "/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": str(root.parent.parent), **(env or {})},
        )
        self.fetched = False
        self._buffer = bytearray()
        line = self._line()
        if line == b"need-agent":
            self.fetched = True
            self.write(upload(archive.data))
            line = self._line()
        self.first = line
        hello = decode(line) if line.startswith(b"{") else None
        self.hello = hello if isinstance(hello, Hello) else None

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> str:
        """Close the connection, and return the standard error of the agent."""
        assert self.process.stdin
        assert self.process.stdout
        assert self.process.stderr
        if self.process.stderr.closed:
            return ""
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        try:
            self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        words = self.process.stderr.read().decode()
        self.process.stderr.close()
        return words

    def write(self, data: bytes) -> None:
        assert self.process.stdin
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, record: Record, payload: bytes = b"") -> None:
        self.write(encode(record) + payload)

    def _more(self, deadline: float) -> None:
        assert self.process.stdout
        fd = self.process.stdout.fileno()
        if not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError("the agent sent nothing")
        data = os.read(fd, 1 << 20)
        if not data:
            assert self.process.stderr
            raise EOFError(f"the agent ended: {self.process.stderr.read().decode()}")
        self._buffer += data

    def _line(self, deadline_s: float = DEADLINE_S) -> bytes:
        deadline = time.monotonic() + deadline_s
        while b"\n" not in self._buffer:
            self._more(deadline)
        line, _, self._buffer = self._buffer.partition(b"\n")
        return bytes(line)

    def receive(self, deadline_s: float = DEADLINE_S) -> tuple[Record, bytes]:
        record = decode(self._line(deadline_s))
        size = record.payload if isinstance(record, (Log, Chunk)) else 0
        deadline = time.monotonic() + deadline_s
        while len(self._buffer) < size:
            self._more(deadline)
        payload = bytes(self._buffer[:size])
        del self._buffer[:size]
        return record, payload

    def expect(self, kind: type[R], deadline_s: float = DEADLINE_S) -> R:
        record, _ = self.receive(deadline_s)
        while isinstance(record, Beat):  # a busy agent sends them during all long work
            record, _ = self.receive(deadline_s)
        assert isinstance(record, kind), record
        return record

    def prepare(self, job: str, bundle: Bundle, **fields: object) -> Prepared | Refused:
        """Prepare a job, and send the objects that the agent requests."""
        values = {"fleet": "tiny", "slot": "worker-0", "address": "127.0.0.1", "python": sys.executable}
        request = Prepare(**{"job": job, "entries": bundle.entries, **values, **fields})  # type: ignore[arg-type]
        self.send(request)
        answer, _ = self.receive()
        if isinstance(answer, NeedContents):
            self.significant_lines = answer
            self.send_contents(bundle.contents[digest] for digest in answer.objects)
            answer, _ = self.receive()
        assert isinstance(answer, (Prepared, Refused)), answer
        return answer

    def send_contents(self, contents: Iterable[bytes]) -> None:
        """Send the contents that the agent requests."""
        for block in join_blocks(contents):
            data, size = pack_block(block)
            self.send(Chunk(len(data), size), data)
        self.send(Chunk(0))

    def request_contents(self, request: Record) -> NeedContents:
        """Send a request for which the agent needs contents, and may pass them on to other hosts."""
        self.send(request)
        need = self.expect(NeedContents)
        assert need.port
        return need

    def answer(self) -> Record:
        """Return the next record that is neither about the progress of contents nor a heartbeat."""
        while isinstance(record := self.receive()[0], (ContentsReceived, Beat)):
            pass
        return record

    def commit(self, request: Commit) -> Committed:
        self.send(request)
        return self.expect(Committed)

    def stop(self, job: str, task: str = "worker-0", grace_s: float = 5.0) -> Stopped:
        self.send(Stop(job, task, grace_s))
        return self.expect(Stopped, DEADLINE_S + grace_s)


class Bundle:
    """A script and the files next to it."""

    def __init__(self, script: str = "", **files: bytes) -> None:
        self.entries: list[Entry] = []
        self.contents: dict[str, bytes] = {}
        if script:
            self.add("task.py", script.encode())
        for name, data in files.items():
            self.add(name, data)

    def add(self, path: str, data: bytes, kind: EntryKind = EntryKind.FILE, mode: int = 0o644) -> None:
        digest = sha256(data).hexdigest()
        self.contents[digest] = data
        self.entries.append(Entry(path, kind, mode, len(data), digest))


def stored_contents(store: Path) -> dict[str, bytes]:
    """Return the contents in the store of a host by the hashes under which it has them."""
    return {path.name: path.read_bytes() for path in store.glob("[0-9a-f][0-9a-f]/*")}


class Story:
    """The records that a Follow sent, up to its end."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.log = bytearray()
        self.log_begin = -1
        self.result: JobResult | None = None

    def take_snapshot(self, record: Record, payload: bytes) -> None:
        self.records.append(record)
        if isinstance(record, Log):
            if self.log_begin < 0:
                self.log_begin = record.offset
            assert record.offset == self.log_begin + len(self.log)
            self.log += payload
        elif isinstance(record, JobResult):
            assert self.result is None
            self.result = record

    @property
    def phases(self) -> list[str]:
        return [record.phase.value for record in self.records if isinstance(record, TaskState)]

    @property
    def exit(self) -> Exit | None:
        ends = [record.exit for record in self.records if isinstance(record, TaskState) and record.exit]
        return ends[-1] if ends else None


def follow(
    agent: Agent, request: Follow, until: Callable[[Story], bool] | None = None, deadline_s: float = DEADLINE_S
) -> Story:
    """Follow to the end, or until a condition holds."""
    agent.send(request)
    return listen(agent, until, deadline_s)


def listen(agent: Agent, until: Callable[[Story], bool] | None = None, deadline_s: float = DEADLINE_S) -> Story:
    story = Story()
    deadline = time.monotonic() + deadline_s
    while True:
        record, payload = agent.receive(deadline - time.monotonic())
        if isinstance(record, End):
            return story
        assert not isinstance(record, Refused), record
        story.take_snapshot(record, payload)
        if until is not None and until(story):
            return story


def committed(
    agents: Sequence[Agent],
    job: str,
    bundle: Bundle,
    *,
    command: Sequence[str] = (sys.executable, "task.py"),
    first_port: int = 0,
    addresses: Sequence[str] = (),
    **fields: object,
) -> list[Member]:
    """Prepare and commit a job on all agents, worker-0 on the first."""
    members, ports = [], {"first_port": first_port} if first_port else {}
    for index, agent in enumerate(agents):
        address = addresses[index] if addresses else f"127.0.0.{index + 1}"
        answer = agent.prepare(job, bundle, slot=f"worker-{index}", address=address, **ports)
        assert isinstance(answer, Prepared), answer
        members.append(answer.member)
    for agent, request in zip(agents, commits(job, members, command, **fields), strict=True):
        agent.commit(request)
    return members


def commits(job: str, members: list[Member], command: Sequence[str], **fields: object) -> Iterator[Commit]:
    values: dict[str, object] = {
        "secret": secrets.token_hex(32),
        "command": list(command),
        "env": {},
        "secret_env": {},
        "grace_s": 2.0,
        "join_timeout_s": 10.0,
        "link_timeout_s": 3.0,
        **fields,
    }
    members = [member._replace(task=member.task or member.slot) for member in members]
    for member in members:
        yield Commit(job=job, slot=member.slot, members=members, **values)  # type: ignore[arg-type]


def fake_python(directory: Path, **versions: str) -> str:
    """Return an interpreter that reports other versions of packages."""
    probed = json.dumps({"versions": versions, "directories": []})
    path = directory / "python"
    path.write_text(f'#!/bin/sh\ncase "$1" in\n-c) echo \'{probed}\' ;;\n*) exec {PYTHON} "$@" ;;\nesac\n')
    path.chmod(0o755)
    return str(path)


def alive(pid: int) -> bool:
    """Return whether a process runs; a zombie does not run."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[:1] not in ("Z", "X")


def gone(pid: int, deadline_s: float = DEADLINE_S) -> bool:
    """Wait for the end of a process that is not a child of this one; return whether it ended."""
    return eventually(lambda: not alive(pid), deadline_s)


def eventually(true: Callable[[], bool], deadline_s: float = DEADLINE_S) -> bool:
    """Wait until a condition holds; return whether it does."""
    end = time.monotonic() + deadline_s
    while not true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def end_all(roots: Sequence[Path]) -> None:
    """Kill (SIGKILL) all processes that the agents under `roots` left."""
    for root in roots:
        for path in find_paths(root, "jobs/*/*/processes"):
            for pid, _, _ in (read_json(str(path)) or {}).values():  # it is removed when the last process has ended
                if alive(pid):
                    os.kill(pid, signal.SIGKILL)
