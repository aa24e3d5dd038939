"""Results of jobs: `fleet pull`, `fleet jobs`, and the questions of `fleet down`, over real sshd and agents."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.local.sshd import AGENTS_VARIABLE
from tests.program import PROGRAM, Program, wait_for

pytestmark = pytest.mark.wire

SAVES_WITH_KERAS_2 = """
import os
if "NEVER" in os.environ:
    import tensorflow as tf
    with tf.distribute.MultiWorkerMirroredStrategy().scope():
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(tf.zeros((8, 1)), tf.zeros((8, 1)))
with open(os.path.join(os.environ["FLEET_MODEL_DIR"], "model.keras"), "w") as file:
    file.write("a model")
"""
# With an argument, a path, rank 0 fails when rank 1 has written everything.
WRITES = """
import os, sys, time
rank = os.environ["FLEET_RANK"]
for name in ("MODEL", "CHECKPOINT", "LOG"):
    with open(os.path.join(os.environ[f"FLEET_{name}_DIR"], "result"), "w") as file:
        file.write(name)
if rank == "1":
    open(os.path.join(os.environ["FLEET_MODEL_DIR"], "shard"), "w").write("only here")
open("written", "w").write("by " + rank)
print(f"rank {rank}")
if len(sys.argv) > 1 and rank == "1":
    open(sys.argv[1], "w").close()
    time.sleep(600)
elif len(sys.argv) > 1:
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    sys.exit(3)
"""

QUIET = "print('only a log')\n"

BIG = """
import os
if os.environ["FLEET_RANK"] == "0":
    with open(os.path.join(os.environ["FLEET_MODEL_DIR"], "weights"), "wb") as file:
        for block in range(48):
            file.write(bytes([block]) * (1 << 20))
print("trained")
"""


def newest(program: Program) -> str:
    """Return the ID of the newest job; IDs begin with the time of their start."""
    patterns = ("jobs/*", "slot-*/jobs/*")
    return max(path.name for each in patterns for path in (program.state / "local").glob(f"*/fleet/{each}"))


def files(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file() and ".fleet-results" not in path.parts
    }


def test_down_asks_before_a_pull_and_about_a_lost_host_and_not_after_a_pull(program: Program, tmp_path: Path) -> None:
    program.run("up", "--workers", "2")
    empty = program.run("pull", code=102).err
    assert "has no job yet" in empty
    assert "2 hosts" not in empty  # only the error, without a table of hosts from which no file is copied
    program.script("task.py", WRITES)
    failed = program.run("train", "task.py", "--", str(tmp_path / "written"), code=100)
    job = newest(program)
    assert "results: 13 files" in failed.err
    assert f"next:    fleet pull {job}\n" in failed.err
    assert f":{next((program.state / 'local').glob('*-worker-0'))}/fleet/jobs/{job}/worker-0/model\n" in failed.err

    refused = program.run("down", code=2)
    assert f"job {job} task.py: not pulled, failed, started" in refused.err
    assert f"next:  fleet pull {job}\n" in refused.err
    assert len(program.listeners()) == 2

    # A pull of some kinds copies only these, and the others still count as not pulled.
    assert "did you mean 'model'?" in program.run("pull", "--what", "modle", code=2).err
    assert not (program.directory / "results").exists()
    program.run("pull", "--what", "model,logs")
    target = program.directory / "results" / job
    assert {path.split("/")[0] for path in files(target)} == {"model", "others", "logs"}
    assert "checkpoints" not in str(list(target.rglob("*")))
    assert f"job {job} task.py: not pulled" in program.run("down", code=2).err

    pulled = program.run("pull")
    assert re.search(
        rf"11 files \(2 more are equal to those of another task\), \d+ B, 6 of them there before, in {target}\n",
        pulled.err,
    )
    contents = files(target)
    assert all(contents.pop(f"logs/worker-{rank}/attempt-1.times") for rank in (0, 1))
    assert contents == {
        "model/result": b"MODEL",
        "checkpoints/result": b"CHECKPOINT",
        "others/worker-1/model/shard": b"only here",
        "tensorboard/worker-0/result": b"LOG",
        "tensorboard/worker-1/result": b"LOG",
        "files/worker-0/written": b"by 0",
        "files/worker-1/written": b"by 1",
        "logs/worker-0/attempt-1.log": b"rank 0\n",
        "logs/worker-1/attempt-1.log": b"rank 1\n",
    }
    assert "already" in program.run("pull", job).err
    assert "error: fleet 'default' has no job 'nope'" in program.run("pull", "nope", code=102).err

    (listener,) = program.listeners("worker-1")
    listener.kill()
    assert "worker-1 does not answer: it is unknown what it holds" in program.run("down", code=2).err
    assert "worker-1 cannot be reached" in program.run("pull", code=13).err
    assert "worker-1 does not answer" in program.run("jobs").text
    program.run("up")

    # The results of a job are not uploaded with the next job. Its log was shown here, and it has no other results.
    program.script("quiet.py", "import os\n" + QUIET + "print(sorted(os.listdir('.')))\n")
    quiet = program.run("train", "quiet.py")
    assert "['quiet.py', 'task.py']" in quiet.text
    assert "not uploaded: results/ (results that fleet pull copied" in quiet.err
    assert "next:    fleet pull" not in quiet.err
    assert "0 left" in program.run("down").err


def pruned(program: Program) -> list[str]:
    """Delete the jobs of which nothing would be lost, and return them."""
    events = program.run("jobs", "--prune", "--yes", "-o", "json").events
    return [job for event in events if event["event"] == "jobs_deleted" for job in event["jobs"]]


MODELS = """
import os
rank = os.environ["FLEET_RANK"]
with open(os.path.join(os.environ["FLEET_MODEL_DIR"], "weights"), "w") as file:
    file.write("model of worker " + rank)
open("note", "w").write("by " + rank)
"""


def test_a_pulled_file_is_never_replaced_by_another_tasks_and_counts_only_while_it_is_here(two: Program) -> None:
    two.script("m.py", MODELS)
    two.run("train", "m.py")
    target = two.directory / "results" / newest(two)
    first, second = b"model of worker 0", b"model of worker 1"
    two.run("pull", "--worker", "1", "--what", "model")
    assert files(target) == {"others/worker-1/model/weights": second}
    two.run("pull")
    assert files(target)["model/weights"] == first

    # A host that does not answer, also for a new directory.
    (listener,) = two.listeners("worker-0")
    listener.kill()
    for directory in (target, two.directory / "new"):
        assert "worker-0 cannot be reached" in two.run("pull", "--to", str(directory), code=13).err
        assert files(directory)["others/worker-1/model/weights"] == second
    assert files(target)["model/weights"] == first
    assert "model/weights" not in files(two.directory / "new")
    two.run("up", "--workers", "2")

    # A file that was deleted or changed here is only on the host.
    for change in (Path.unlink, lambda path: path.write_bytes(b"mine")):
        change(target / "model/weights")
        assert "partly pulled" in two.run("down", code=2).err
        assert target.name not in pruned(two)
        (target / "model/weights").unlink(missing_ok=True)
        two.run("pull")
        assert files(target)["model/weights"] == first

    # A file that cannot be written here.
    note = target / "files/worker-0/note"
    note.unlink()
    note.mkdir()
    (target / "model/weights").unlink()
    failed = two.run("pull", code=2).err
    assert f"error: '{note}' cannot be written: Is a directory\n" in failed
    assert files(target)["model/weights"] == first
    assert "partly pulled" in two.run("down", code=2).err
    note.rmdir()
    two.run("pull")
    assert files(target)["files/worker-0/note"] == b"by 0"
    assert target.name in pruned(two)


def test_how_to_load_a_model_of_keras_2_is_shown_with_the_results(two: Program) -> None:
    """Keras 3, the default, cannot load it, and its error names neither Keras 2 nor this program."""
    two.script("task.py", SAVES_WITH_KERAS_2)
    line = "the model was saved by Keras 2: load it with tf_keras, or with TF_USE_LEGACY_KERAS=1 in the environment"
    train = two.run("train", "task.py")
    assert line in " ".join(train.err.split())
    assert line in " ".join(two.run("pull", newest(two)).err.split())
    two.script("task.py", WRITES)
    two.run("train", "task.py")
    assert line not in " ".join(two.run("pull", newest(two)).err.split())


def test_a_log_that_is_left_out_shows_in_the_exit_code(two: Program) -> None:
    two.script("quiet.py", QUIET)
    two.run("train", "--detach", "quiet.py")
    job = newest(two)
    two.run("logs", "-f", "-n", "0")
    (listener,) = two.listeners("worker-1")
    listener.kill()
    for command in (["logs"], ["logs", "-f"], ["logs", "-o", "json"], ["report"]):
        ran = two.run(*command, code=13)
        assert "worker-1" in ran.text + ran.err
        assert "internal error" not in ran.err
    assert (two.directory / f"{job}.html").exists()
    assert "only a log" in two.run("logs", "--worker", "0").text
    two.run("up", "--workers", "2")
    assert job not in pruned(two)  # the log of worker-1 was not shown

    # Several jobs are pulled by one command.
    two.run("train", "--detach", "quiet.py")
    two.run("logs", "-f", "-n", "0")
    assert "next:  fleet pull --all\n       fleet down --yes\n" in two.run("down", code=2).err
    assert "JOB and --all exclude each other" in two.run("pull", "--all", job, code=2).err
    two.run("pull", "--all", "--to", "every")
    assert {job, newest(two)} <= {path.name for path in (two.directory / "every").iterdir()}
    assert "are on this computer" in two.run("pull", "--all").err
    assert job in pruned(two)


def test_a_running_job_is_not_deleted_without_confirmation(two: Program) -> None:
    two.script("task.py", "import time\nprint('up', flush=True)\ntime.sleep(600)\n")
    two.run("train", "-d", "task.py")
    job = newest(two)
    assert f"job {job} task.py: not pulled, running, started" in two.run("down", code=2).err
    assert "is running and cannot be deleted" in two.run("jobs", "--prune", job, "--yes", code=14).err
    assert "is still running; repeat `fleet pull" in two.run("pull").err
    two.run("stop", "--grace", "0")
    two.run("pull")
    pruned = two.run("jobs", "--prune", "--yes", "-o", "json").events[-1]
    assert pruned["event"] == "jobs_deleted"
    assert job in pruned["jobs"]  # also jobs of tests that ran on this fleet before
    assert pruned["freed"] > 0
    assert not list((two.state / "local").glob(f"*/fleet/jobs/{job}"))


def test_pull_copies_the_results_of_several_tasks_on_a_host(two: Program) -> None:
    two.script("task.py", WRITES)
    two.run("train", "task.py", "--tasks-per-host", "2")
    job = newest(two)
    assert two.run("pull", "--to", "four", "-o", "json").events[-1]["complete"]
    contents = files(two.directory / "four")
    assert [contents[f"logs/worker-{index}/attempt-1.log"] for index in range(4)] == [
        b"rank %d\n" % n for n in range(4)
    ]
    assert contents["files/worker-3/written"] == b"by 3"
    pulled = two.run("pull", job, "--worker", "3", "--to", "one", "-o", "json").events[-1]
    assert (pulled["event"], pulled["complete"]) == ("results_pulled", False)
    assert "others/worker-3/model/result" in files(two.directory / "one")  # `model/` is that of the chief
    (two.directory / "mine").mkdir()
    (two.directory / "mine/thesis.tex").touch()
    assert "is not empty" in two.run("pull", "--to", "mine", code=2).err


def check_empty_answer(two: Program) -> None:
    """Check that an empty answer to the question of `fleet down` at a terminal deletes nothing."""
    master, slave = pty.openpty()
    with os.fdopen(master, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            [str(PROGRAM), "down", "-o", "lines"],
            cwd=two.directory, env=two.environment(), stdin=slave, stdout=slave, stderr=slave,
        )  # fmt: skip
        os.close(slave)
        shown = b""
        while b"[y/N]" not in shown:
            shown += terminal.read(4096)
        terminal.write(b"\n")
        assert process.wait(60) == 103
    assert b"not pulled" in shown  # not "partly": the log of worker-1 was shown, but no file was pulled
    assert len(two.listeners()) == 2


def test_an_empty_answer_deletes_nothing_and_a_killed_pull_continues_at_the_same_byte(two: Program) -> None:
    two.script("task.py", BIG)
    two.run("train", "task.py")
    check_empty_answer(two)
    target = two.directory / "results" / newest(two)
    client = two.start("pull")
    parts = target / ".fleet-results"

    def begun() -> int:
        sizes = [0]
        for path in parts.glob("*.part"):
            with contextlib.suppress(FileNotFoundError):
                sizes.append(path.stat().st_size)
        return max(sizes)

    wait_for("some bytes", begun)
    client.send_signal(signal.SIGKILL)
    client.communicate()
    left = begun()
    assert not (target / "model/weights").exists()
    events = two.run("pull", "-o", "json").events
    assert left <= next(event["received"] for event in events if event["event"] == "pull_progress" and event["total"])
    assert files(target)["model/weights"] == b"".join(bytes([block]) * (1 << 20) for block in range(48))
    assert not list(parts.glob("*.part"))


def test_requested_results_arrive_with_train_or_with_the_next_command(two: Program, tmp_path: Path) -> None:
    two.script("task.py", WRITES)
    (tmp_path / "mine").touch()
    refused = two.run("train", "--pull", str(tmp_path), "task.py", code=2)
    assert "is not empty" in refused.err
    assert "choose another directory with --pull" in refused.err
    first, second, third = (two.directory / name for name in ("first", "second", "third"))
    trained = two.run("train", "--pull", "first", "task.py")
    assert f"in {first}\n" in trained.err
    assert files(first)["model/result"] == b"MODEL"
    assert "next:" not in trained.err
    # Without a client at the end of the job, the next command continues, to the directory that was requested.
    go = tmp_path / "go"
    two.script("later.py", f"import os, time\nwhile not os.path.exists({str(go)!r}):\n    time.sleep(0.02)\n{WRITES}")
    detached = two.run("train", "-d", "--pull", "second", "later.py")
    assert "or the next command copies its results to second" in detached.err
    two.run("jobs")
    assert not second.exists()  # the job is running
    go.touch()
    assert f"in {second}\n" in two.run("logs", "-f").err
    assert files(second)["model/result"] == b"MODEL"
    # If a pull fails, other commands report a warning, and the results count as not pulled.
    go.unlink()
    two.run("train", "-d", "--pull", "third", "later.py")
    third.touch()
    go.touch()
    assert "warning: the results of job" in two.run("logs", "-f").err
    refused = two.run("down", code=2)
    assert "is not a directory" in refused.err
    assert "not pulled, succeeded" in refused.err
    third.unlink()
    assert f"in {third}\n" in two.run("jobs").err
    assert "files, " not in two.run("jobs").err


HOSTILE = """
import hashlib
from train.agent.protocol.records import (
    Area, Chunk, DiskSpace, End, EntryKind, FileEnd, FileEntry, FilesListed, ListFiles, ListJobs, AreaUse, StoredJob
)
MODE = %r
OUT = ["../../../evil", "/evil", "a/../../evil", "nul\\0", "x" * 300]
NAMES = [*OUT, "long/" * 1000 + "x", "bell\\x07\\x1b]0;title\\x1b\\\\", "d/evil", "ok"]

def answer(channel, host, request):
    if isinstance(request, ListJobs):
        uses = [AreaUse(Area.MODEL, "/\\x1b[2J", 1, 1)]
        channel.send(StoredJob(%r, "worker-0", "", "/\\x1b[2J", 1, "f" * 64, uses))
        channel.send(DiskSpace("/", 1, 1))
        channel.send(End())
    elif isinstance(request, ListFiles):
        digest = hashlib.sha256(b"x").hexdigest()
        channel.send(FileEntry(Area.MODEL, "d", EntryKind.LINK, target="../../../.."))
        channel.send(FileEntry(Area.MODEL, "l", EntryKind.LINK, target="/tmp"))
        for number, name in enumerate(NAMES):
            size = 1 << 62 if MODE == "huge" else 1
            channel.send(FileEntry(Area.MODEL, name, EntryKind.FILE, 0o7777, size, 0, digest))
        channel.send(FilesListed("f" * 64, ["\\x1b[2Jnote" + "n" * 5000]))
    else:
        for part in request.parts:
            if MODE == "payload":
                channel.send(Chunk(1 << 50))
                return
            data = {"wrong": b"y", "long": b"xx"}.get(MODE, b"x")
            channel.send(Chunk(len(data)), data)
            channel.send(FileEnd())

list_jobs = list_files = read_files = answer
"""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """Start a fleet of one host whose agent was replaced by an attacker's code."""
    program = Program(
        state=tmp_path_factory.mktemp("one") / "state", directory=tmp_path_factory.mktemp("victim") / "work"
    )
    program.directory.mkdir()
    program.env[AGENTS_VARIABLE] = str(program.state.parent / "agents")  # other hosts do not run this agent
    program.run("up", "--workers", "1")
    program.script("task.py", WRITES)
    program.run("train", "task.py")
    program.env["JOB"] = newest(program)
    yield program
    program.close()


@pytest.mark.parametrize(
    ("mode", "code", "message"),
    [
        ("names", 0, "worker-0: left out 5 files: a name that points outside the directory"),
        ("wrong", 14, "changed while it was copied, or arrived damaged"),
        ("long", 14, "sent an unexpected record: chunk"),
        ("payload", 14, "sent something that is not a record of its agent"),
        ("huge", 14, "the results take"),
    ],
)
def test_a_hostile_host_cannot_write_outside_the_target_directory(
    hostile: Program, mode: str, code: int, message: str
) -> None:
    (module,) = Path(hostile.env[AGENTS_VARIABLE]).glob("*/train/agent/requests/results.py")
    for compiled in module.parent.glob(f"__pycache__/{module.stem}.*"):
        compiled.unlink()
    module.write_text(HOSTILE % (mode, hostile.env["JOB"]))
    ran = hostile.run("pull", "--to", mode, "-o", "lines", code=code)
    assert message in ran.err
    assert "fleet down" not in ran.err  # it would delete the results
    if mode == "names":
        assert "worker-0: left out 1 file: a content that cannot be read on the host" in ran.err
    assert "\x1b" not in ran.err + ran.text
    good = {"model/bell%07%1B]0;title%1B\\": b"x", "model/ok": b"x", "model/d/evil": b"x"}
    assert files(hostile.directory / mode) == (good if mode == "names" else {})
    assert not [path for path in (hostile.directory / mode).rglob("*") if path.is_symlink()]
    assert {path.name for path in hostile.directory.parent.iterdir()} == {"work"}
    assert "\x1b" not in hostile.run("jobs").text
