"""Test whole jobs on agents that communicate over pipes, with small scripts in place of TensorFlow."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle, Story, alive, commits, committed, eventually, follow, listen
from tests.program import read_files
from train.agent.protocol.records import (
    Exit,
    Follow,
    GpuUse,
    Outcome,
    Policy,
    Prepared,
    Progress,
    Stop,
    Stopped,
    Usage,
)

PRINT_ENVIRONMENT = """
import json, os, signal
names = [n for n in os.environ if n.startswith(("FLEET_", "AIP_", "TF_", "MY_", "SSH_"))]
names += ["no_proxy", "NO_PROXY", "PYTHONUNBUFFERED", "PWD"]
seen = {n: os.environ.get(n) for n in names}
mask = os.umask(0); os.umask(mask)
print(json.dumps({"env": seen, "cwd": os.getcwd(), "umask": mask, "pgid": os.getpgid(0) == os.getpid(),
                  "pipe": signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL or "python ignores it",
                  "fds": sorted(map(int, os.listdir("/proc/self/fd")))}))
"""


def pid_in(root: Path, job: str, name: str) -> int:
    path = root / "jobs" / job / "worker-0" / "src" / name
    assert eventually(path.exists)
    return int(path.read_text())


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def log_of(root: Path, job: str) -> bytes:
    return (root / "jobs" / job / "worker-0" / "attempt-1" / "log").read_bytes()


def test_one_task_from_prepare_to_its_result(connect: Connect) -> None:
    before = os.umask(0o027)
    try:
        agent = connect(env={"SSH_CONNECTION": "1 2 3 4", "SSH_AUTH_SOCK": "/tmp/a", "MY_SESSION": "kept"})
    finally:
        os.umask(before)
    bundle = Bundle(PRINT_ENVIRONMENT)
    members = committed([agent], "one", bundle, env={"MY_NAME": "a b"}, secret_env={"MY_KEY": "s3cr3t"})
    story = follow(agent, Follow("one", "worker-0"))

    assert story.phases == ["waiting", "running", "exited"]
    assert story.exit == Exit(code=0)
    assert story.result is not None
    assert (story.result.outcome, story.result.reason) == (Outcome.SUCCEEDED, "")
    seen = json.loads(story.log)
    directory = agent.root / "jobs" / "one" / "worker-0"
    assert seen["cwd"] == str(directory / "src")
    assert (seen["pgid"], seen["umask"]) == (True, 0o027)
    assert seen["fds"] == [0, 1, 2, 3, 1023]  # 3 is the directory that is being listed, 1023 takes stacks
    assert json.loads(seen["env"]["TF_CONFIG"]) == {
        "cluster": {"worker": [f"127.0.0.1:{members[0].port}"]},
        "task": {"type": "worker", "index": 0},
    }
    assert seen["env"]["MY_NAME"] == "a b"
    assert seen["env"]["MY_KEY"] == "s3cr3t"
    assert seen["env"]["MY_SESSION"] == "kept"
    assert not [name for name in seen["env"] if name.startswith("SSH_")]
    assert seen["env"]["FLEET_CHECKPOINT_DIR"] == str(directory / "checkpoints")
    assert (directory / "checkpoints").is_dir()
    assert [path.stat().st_mode & 0o077 for path in (agent.root, directory)] == [0, 0]
    written = b"".join(content for path, content in read_files(agent.root) if path.name != "log")
    assert b"s3cr3t" not in written
    assert log_of(agent.root, "one") == story.log


def test_a_program_that_cannot_be_run_says_what_is_wrong_with_it(connect: Connect, tmp_path: Path) -> None:
    agent = connect()
    for job, text, reason in (
        ("missing", "", "No such file or directory"),
        ("lines", "#!/bin/sh\r\nexit 0\r\n", "its lines end with CR LF, as on Windows; Linux needs LF"),
        ("shebang", "#!/nowhere/perl -w\nexit 0\n", "its interpreter /nowhere/perl is not on this host"),
    ):
        program = tmp_path / f"{job}.sh"
        if text:
            program.write_bytes(text.encode())
            program.chmod(0o755)
        committed([agent], job, Bundle("pass"), command=[str(program)])
        story = follow(agent, Follow(job, "worker-0"))
        assert story.log == f"fleet: cannot run {program}: {reason}\n".encode()
        assert story.exit == Exit(code=127)


def test_daemons_and_children_of_a_task_do_not_outlive_it(connect: Connect) -> None:
    agent = connect()
    script = """
import os, time
def leave(name):
    with open(name + ".new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(name + ".new", name)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        leave("daemon")
        time.sleep(60)
    os._exit(0)
os.wait()
if os.fork() == 0:
    leave("child")
    time.sleep(60)
while not (os.path.exists("daemon") and os.path.exists("child")):
    time.sleep(0.01)
print("done")
"""
    committed([agent], "daemon", Bundle(script))
    story = follow(agent, Follow("daemon", "worker-0"))
    assert story.result is not None
    assert story.result.outcome is Outcome.SUCCEEDED
    assert story.log == b"done\n"
    for name in ("daemon", "child"):
        assert not alive(pid_in(agent.root, "daemon", name))


# As TensorFlow does, the stand-in catches SIGTERM without Python's signal module.
STRATEGY = """
import ctypes
class CollectiveAllReduceExtended:
    def _initialize_multi_worker(self, cluster_resolver):
        ctypes.CDLL(None).signal(15, 1)
"""
TRACE = """
class Trace:
    def __init__(self, name, **kwargs): pass
    def __enter__(self): return self
    def __exit__(self, *args): pass
"""
STOPPED = '''
import signal, subprocess, sys, time
from tensorflow.python.distribute.collective_all_reduce_strategy import CollectiveAllReduceExtended
from tensorflow.python.profiler.trace import Trace
SAVE = """
import signal, sys, time
def save(*_):
    time.sleep(2.5)
    sys.exit(print("saved", file=sys.stderr))
signal.signal(signal.SIGTERM, save)
"""
IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
if "plain" not in sys.argv:
    CollectiveAllReduceExtended()._initialize_multi_worker(None)
if "handler" in sys.argv:
    exec(SAVE)
if "child" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", SAVE + "print(flush=True); time.sleep(60)"], stdout=-1)
    child.stdout.readline()
if "stubborn" in sys.argv:
    child = subprocess.Popen([sys.executable, "-c", IGNORE], stdout=-1, stderr=-3)
    child.stdout.readline()
with Trace("tf.constant"):
    print("ready", flush=True)
time.sleep(60)
'''
ON_STOP = [  # arguments of the script; whether a shell runs it; whether it saves; how the task ends
    ("strategy", False, False, Exit(signal=signal.SIGTERM)),
    ("strategy handler", False, True, Exit(code=0)),
    ("strategy child", False, True, Exit(signal=signal.SIGTERM)),
    ("strategy", True, False, Exit(signal=signal.SIGTERM)),
    ("plain handler", True, True, Exit(signal=signal.SIGTERM)),  # although the shell ends at once
    ("plain stubborn", False, False, Exit(signal=signal.SIGTERM)),  # only a process that it started is killed
]


def test_only_a_script_that_handles_sigterm_has_the_grace_period(connect: Connect) -> None:
    bundle = Bundle(STOPPED)
    for name, text in (("distribute/collective_all_reduce_strategy", STRATEGY), ("profiler/trace", TRACE)):
        bundle.add(f"tensorflow/python/{name}.py", text.encode())
    for package in ("", "python/", "python/distribute/", "python/profiler/"):
        bundle.add(f"tensorflow/{package}__init__.py", b"")
    agents = [connect(host) for host in range(len(ON_STOP))]
    for agent, (arguments, in_shell, _, _) in zip(agents, ON_STOP, strict=True):
        command = [sys.executable, "task.py", *arguments.split()]
        command = ["sh", "-c", f"{' '.join(command)}; echo ended"] if in_shell else command
        committed([agent], "stop", bundle, command=command)
    for agent in agents:
        assert eventually(lambda agent=agent: log_of(agent.root, "stop") == b"ready\n")  # type: ignore[misc]
        agent.send(Stop("stop", "worker-0", 60.0))
    for agent, (_, _, saves, ended) in zip(agents, ON_STOP, strict=True):
        assert agent.expect(Stopped) == Stopped(killed=False, running=True)
        assert log_of(agent.root, "stop") == (b"ready\nsaved\n" if saves else b"ready\n")
        assert follow(agent, Follow("stop", "worker-0")).exit == ended


TEMPORARY = """
import os, sys, tempfile
fd, path = tempfile.mkstemp()
assert os.stat(os.path.dirname(path)).st_mode & 0o777 == 0o700
print(path, flush=True)
if os.environ["FLEET_ATTEMPT"] == "1":
    os._exit(3)
os.kill(os.getppid() if sys.argv[1] == "killed" else os.getpid(), 9)
"""


def test_temporary_files_are_deleted_with_the_job(connect: Connect, tmp_path: Path) -> None:
    """They survive neither the end of the job nor the end of its supervisor."""
    temporary = tmp_path / "t"
    temporary.mkdir()
    kinds = ("ended", "killed")
    directories = []
    for host, kind in enumerate(kinds):
        agent = connect(host, env={"TMPDIR": str(temporary)})
        command = [sys.executable, "task.py", kind]
        committed([agent], kind, Bundle(TEMPORARY), command=command, policy=Policy(restarts=1))
        directories.append(agent.root / "jobs" / kind / "worker-0")
    assert eventually(lambda: all((directory / "result.json").exists() for directory in directories))
    logs = [directory / f"attempt-{number}" / "log" for directory in directories for number in (1, 2)]
    assert {Path(log.read_text().strip()).parent.parent for log in logs} == {temporary}
    assert eventually(lambda: not list(temporary.iterdir()))


def test_what_a_supervisor_leaves_is_ended_with_the_job_and_by_the_next_prepare(connect: Connect) -> None:
    agent = connect()
    script = """
import os, time
if os.fork() == 0:
    os.setsid()
    with open("daemon.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename("daemon.new", "daemon")
time.sleep(60)
"""

    def kill_supervisor(job: str, number: signal.Signals) -> int:
        """Return the process ID of the task's daemon."""
        answer = agent.prepare(job, Bundle(script))
        assert isinstance(answer, Prepared)
        supervisor = agent.commit(next(commits(job, [answer.member], [sys.executable, "task.py"]))).pid
        daemon = pid_in(agent.root, job, "daemon")
        os.kill(supervisor, number)
        return daemon

    daemon = kill_supervisor("ended", signal.SIGTERM)
    result = follow(agent, Follow("ended", "worker-0")).result
    assert result is not None
    assert result.reason == "the agent of worker-0 received SIGTERM"
    assert not alive(daemon)
    daemon = kill_supervisor("killed", signal.SIGKILL)
    other = connect()
    assert eventually(lambda: isinstance(other.prepare("next", Bundle(script)), Prepared))
    assert not alive(daemon)


def test_a_reader_who_does_not_read_holds_up_nothing(connect: Connect) -> None:
    agent, other = connect(), connect()
    committed([agent], "slow", Bundle("import os\nfor _ in range(200):\n    os.write(1, b'y' * 65536)"))
    agent.send(Follow("slow", "worker-0"))  # and reads no answer
    story = follow(other, Follow("slow", "worker-0"))
    assert len(story.log) == 200 * 65536
    assert len(listen(agent).log) == 200 * 65536


def test_progress_is_reported_as_it_comes_and_ends_of_epochs_are_kept(connect: Connect) -> None:
    agent = connect()
    script = """
import os, sys, time
for epoch in (1, 2):
    sys.stdout.write("Epoch %d/2\\n" % epoch)
    for step in (1, 2, 3):
        sys.stdout.write("\\r%d/3 [===>...] - ETA: 1s - loss: 0.%d" % (step, 9 - step))
        sys.stdout.flush()
        while step == 3 and not os.path.exists("seen"):  # step 2 has been terminated by step 3
            time.sleep(0.01)
    sys.stdout.write("\\b\\b\\b\\r3/3 [======] - 1s 3ms/step - loss: 0.5\\n")
"""
    committed([agent], "progress", Bundle(script))

    def at_second_step(story: Story) -> bool:
        records = [record for record in story.records if isinstance(record, Progress)]
        return (1, 2) in [(record.epoch, record.step) for record in records]

    live = follow(agent, Follow("progress", "worker-0"), at_second_step)
    assert live.result is None
    (agent.root / "jobs" / "progress" / "worker-0" / "src" / "seen").touch()
    follow(connect(), Follow("progress", "worker-0"))  # to the end: after that, nothing comes that is not kept
    late = follow(connect(), Follow("progress", "worker-0"))
    kept = [record for record in late.records if isinstance(record, Progress)]
    assert [(progress.epoch, progress.epochs, progress.step, progress.steps) for progress in kept] == [
        (1, 2, 3, 3),
        (2, 2, 3, 3),
    ]
    assert kept[-1].metrics == {"loss": 0.5}


@pytest.mark.slow
def test_usage_is_reported_every_five_seconds(connect: Connect, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        "*utilization*) echo '0, 37, 1024'; exec sleep 60 ;;\n"
        "*) echo '0, Tesla T4, 15360, 535.183.01' ;;\n"
        "esac\n"
    )
    program.chmod(0o755)
    agent = connect(env={"PATH": f"{tmp_path}:/usr/bin:/bin"})
    script = """
import time
data = bytearray(50 << 20)
while True:
    end = time.process_time() + 0.03
    while time.process_time() < end:
        pass
    time.sleep(0.03)
"""
    committed([agent], "usage", Bundle(script))

    def is_complete(story: Story) -> bool:
        return any(
            usage.cpu_percent > 0 and usage.memory_bytes > 50 << 20 and usage.gpus == [GpuUse(0, 37.0, 1024)]
            for usage in story.records
            if isinstance(usage, Usage)
        )

    assert follow(agent, Follow("usage", "worker-0"), is_complete).result is None
    connect().stop("usage")

    def left() -> list[str]:
        paths = [path for path in Path("/proc").glob("[0-9]*/environ") if str(tmp_path).encode() in read(path)]
        return [path.parent.name for path in paths if path.parent.name != str(agent.process.pid)]

    assert eventually(lambda: not left()), left()


def test_hanging_up_before_commit_gives_everything_back(connect: Connect) -> None:
    agent = connect()
    first = agent.prepare("never", Bundle("pass"), first_port=23450)
    assert isinstance(first, Prepared)
    assert Path(first.workdir, "task.py").exists()
    agent.close()
    assert not (agent.root / "jobs" / "never").exists()
    second = connect().prepare("again", Bundle("pass"), first_port=23450)
    assert isinstance(second, Prepared)
    assert second.member.port == first.member.port
