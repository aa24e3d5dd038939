"""Test results on a host: found, distinguished from uploaded files, listed, sent, and deleted."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, committed, eventually, follow
from train.agent.protocol.records import (
    Area,
    Beat,
    Chunk,
    DiskSpace,
    End,
    EntryKind,
    FileEnd,
    FileEntry,
    FilePart,
    FilesListed,
    Follow,
    JobsPruned,
    ListFiles,
    ListJobs,
    Prepared,
    PruneJobs,
    ReadFiles,
    Record,
    Refused,
    Replication,
    StoredJob,
)

WRITES = """
import helper, os, time
open(os.path.join(os.environ["FLEET_MODEL_DIR"], "weights"), "wb").write(b"w" * 1000)
os.makedirs("ck")
open("ck/step-1", "w").write("checkpoint")
open("new", "w").write("new")
open("changed", "a").write("!")
open("same-size", "w").write("B")
open("same", "a").close()
os.utime("same", (1, 1))
os.symlink("new", "link")
os.mkfifo("pipe")
print("done")
"""

WAITS = "import time; time.sleep(600)"

COPIED = Replication()


def bundle() -> Bundle:
    files = Bundle(WRITES, **{"helper.py": b"", "changed": b"a", "same-size": b"A", "same": b"S"})
    files.add("data/part", b"data", EntryKind.DATA)
    return files


def answers(agent: Agent, request: Record, last: type) -> list[Record]:
    agent.send(request)
    records: list[Record] = []
    while not records or not isinstance(records[-1], last):
        record, _ = agent.receive()
        assert not isinstance(record, Refused), record
        if not isinstance(record, Beat):
            records.append(record)
    return records


def stored(agent: Agent, *jobs: str) -> list[StoredJob]:
    records = answers(agent, ListJobs(list(jobs)), End)
    assert any(isinstance(record, DiskSpace) and 0 < record.free <= record.total for record in records)
    return [record for record in records if isinstance(record, StoredJob)]


def finished(agent: Agent, job: str, files: Bundle, replication: Replication = COPIED) -> None:
    committed([agent], job, files, replication=replication)
    follow(agent, Follow(job, "worker-0"))


def test_only_what_the_task_made_or_changed_is_a_result(connect: Connect) -> None:
    agent = connect()
    finished(agent, "j", bundle(), replication=Replication("./ck", 0.0))
    listed = answers(agent, ListFiles("j", "worker-0"), FilesListed)
    entries = {(entry.area, entry.path): entry for entry in listed if isinstance(entry, FileEntry)}
    assert sorted((area.value, path) for area, path in entries) == [
        ("checkpoints", "step-1"),
        ("files", "changed"),
        ("files", "link"),
        ("files", "new"),
        ("files", "same-size"),
        ("logs", "attempt-1.log"),
        ("logs", "attempt-1.times"),
        ("model", "weights"),
    ]
    assert entries[Area.MODEL, "weights"].sha256 == sha256(b"w" * 1000).hexdigest()
    assert entries[Area.FILES, "link"].target == "new"
    (job,) = stored(agent)
    assert {use.area: use.files for use in job.areas} == {
        Area.MODEL: 1, Area.CHECKPOINTS: 1, Area.FILES: 4, Area.LOGS: 2
    }  # fmt: skip
    assert isinstance(listed[-1], FilesListed)
    assert listed[-1].fingerprint == job.fingerprint
    some = answers(agent, ListFiles("j", "worker-0", "", [Area.MODEL]), FilesListed)
    assert [entry.path for entry in some if isinstance(entry, FileEntry)] == ["weights"]
    assert some[-1] == listed[-1]  # the fingerprint is that of all results
    path = agent.root / "jobs/j/worker-0/src/new"
    path.write_text("another")
    assert stored(agent)[0].fingerprint != job.fingerprint


def test_a_queued_job_leaves_the_files_of_the_running_one(connect: Connect) -> None:
    agent, other, files = connect(), connect(), Bundle(WAITS, large=b"large" * 100_000)
    committed([agent], "first", files)
    first, second = (agent.root / f"jobs/{job}/worker-0/src/large" for job in ("first", "second"))
    inode = first.stat().st_ino
    assert isinstance(other.prepare("second", files, after="first"), Prepared)
    assert first.stat().st_ino == inode
    assert second.stat().st_ino != inode
    agent.stop("first")


def test_parts_of_files_are_sent_and_nothing_outside(connect: Connect) -> None:
    agent = connect()
    finished(agent, "j", bundle())
    parts = [
        FilePart(Area.MODEL, "weights", 990, 1000),
        FilePart(Area.MODEL, "weights", 0, 1001),
        FilePart(Area.MODEL, "../job.json", 0, 1),
        FilePart(Area.FILES, "link", 0, 1),
        FilePart(Area.FILES, "gone", 0, 1),
    ]
    agent.send(ReadFiles("j", "worker-0", "", parts))
    received: list[bytes | str] = []
    while sum(isinstance(item, str) for item in received) < len(parts):
        record, data = agent.receive()
        received.append(record.problem if isinstance(record, FileEnd) else data)
        assert isinstance(record, (FileEnd, Chunk))
    assert received[:4] == [b"w" * 10, "", b"w" * 1000, "it became shorter"]
    assert all(isinstance(item, str) and item for item in received[4:])


def test_a_directory_that_is_a_link_is_not_followed(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/secret").touch()
    agent = connect()
    target = str(tmp_path / "elsewhere")
    script = f"import os\nmodel = os.environ['FLEET_MODEL_DIR']\nos.rmdir(model)\nos.symlink({target!r}, model)\n"
    finished(agent, "j", Bundle(script))
    (last,) = answers(agent, ListFiles("j", "worker-0"), FilesListed)
    assert isinstance(last, FilesListed)
    assert "is a link to" in last.notes[0]
    assert last.fingerprint == ""


DEEP = """
import os
open("result.txt", "w").close()
for _ in range(40):
    os.mkdir("d" * 163)
    os.chdir("d" * 163)
open("deep.txt", "w").close()
"""


def test_a_path_that_is_too_long_is_one_result_that_cannot_be_read(connect: Connect) -> None:
    agent = connect()
    finished(agent, "j", Bundle(DEEP))
    *records, last = answers(agent, ListFiles("j", "worker-0", "", [Area.FILES]), FilesListed)
    entries = [record for record in records if isinstance(record, FileEntry) and record.kind is EntryKind.FILE]
    assert [bool(entry.sha256) for entry in sorted(entries, key=lambda entry: len(entry.path))] == [True, False]
    assert max(len(entry.path) for entry in entries) == 3000
    (stored, *_) = answers(agent, ListJobs(["j"]), End)
    assert isinstance(stored, StoredJob)
    assert isinstance(last, FilesListed)
    assert stored.fingerprint == last.fingerprint  # it is not changed by reading it
    assert {use.area: use.files for use in stored.areas}[Area.FILES] == 2


def test_jobs_are_deleted_but_never_one_that_runs(connect: Connect) -> None:
    agent = connect()
    finished(agent, "old", bundle())
    committed([agent], "now", Bundle("import time\nprint('up', flush=True)\ntime.sleep(600)\n"))
    eventually((agent.root / "jobs/now/worker-0/attempt-1/log").exists)
    (answer,) = answers(agent, PruneJobs(["old", "now", "../..", "none"]), JobsPruned)
    assert isinstance(answer, JobsPruned)
    assert (answer.jobs, answer.kept) == (["old"], {"now": "it is running"})
    assert answer.freed > 1000
    assert [path.name for path in (agent.root / "jobs").iterdir()] == ["now"]
    agent.stop("now")
    (answer,) = answers(agent, PruneJobs(["now"]), JobsPruned)
    assert isinstance(answer, JobsPruned)
    assert answer.jobs == ["now"]
    assert not [path for path in (agent.root / "store").rglob("*") if path.is_file()]
