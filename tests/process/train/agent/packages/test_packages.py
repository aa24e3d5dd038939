"""Test the request Bootstrap on agents that communicate over pipes: a real pip installs wheels made here."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.emulator import python as bare_python
from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, alive, gone
from tests.process.train.agent.index_server import serve
from tests.process.train.agent.requests.test_bootstrap import interpreter as find_interpreter
from tests.process.train.agent.wheels import pip_environment, wheel
from train.agent.host.runner import OverdueError, Steps, run
from train.agent.packages.venv import Base, EnvironmentSpec, environment_name, least_disk_bytes, significant_lines
from train.agent.protocol.channel import Channel
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep, Inspect, Prepared, Refusal, Refused

BASE = Base("/usr/bin/python3", ".".join(map(str, sys.version_info[:3])))
UNREACHABLE = {
    "PIP_CONFIG_FILE": "/dev/null",
    "PIP_FIND_LINKS": "",
    "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
    "PIP_RETRIES": "1",
    "no_proxy": "*",
}


def without(directory: Path, *modules: str) -> str:
    """Build an interpreter that lacks modules of the standard library; return its path."""
    python = bare_python.build(directory)
    for module in modules:
        path = directory / "lib" / python.name / module
        if path.is_symlink():
            path.unlink()
        else:
            shutil.rmtree(path)
    return str(python)


def bootstrap(agent: Agent, **fields: object) -> tuple[list[BootstrapStep], Bootstrapped | Refused]:
    agent.send(Bootstrap(**fields))  # type: ignore[arg-type]
    return until(agent)


def until(agent: Agent) -> tuple[list[BootstrapStep], Bootstrapped | Refused]:
    """Return the steps up to the answer."""
    steps: list[BootstrapStep] = []
    while True:
        record, _ = agent.receive()
        if not isinstance(record, BootstrapStep):
            assert isinstance(record, (Bootstrapped, Refused)), record
            return steps, record
        steps.append(record)


def done(agent: Agent, **fields: object) -> Bootstrapped:
    _, answer = bootstrap(agent, **fields)
    assert isinstance(answer, Bootstrapped), answer
    return answer


def refused(agent: Agent, **fields: object) -> Refused:
    _, answer = bootstrap(agent, **fields)
    assert isinstance(answer, Refused), answer
    return answer


def venvs(agent: Agent) -> set[str]:
    return {path.name for path in (agent.root / "venvs").iterdir() if path.is_dir()}


def complete(agent: Agent, name: str, used_at: float) -> Path:
    """Create an environment that was finished long ago."""
    directory = agent.root / "venvs" / name
    directory.mkdir(parents=True)
    (directory / "ready.json").write_text("{}")
    os.utime(directory / "ready.json", (used_at, used_at))
    return directory


def test_packages_are_installed_once_per_content(connect: Connect, wheels: Path, interpreter: str) -> None:
    wheel(wheels, "tensorflow", "2.21.0", requires=["adds"])
    wheel(wheels, "adds", "1.0")
    agent = connect(env=pip_environment(wheels))
    steps, answer = bootstrap(agent, requirements="tensorflow==2.21.0  # the same everywhere\n")
    assert isinstance(answer, Bootstrapped)
    assert answer.made
    assert answer.versions["tensorflow"] == "2.21.0"
    assert answer.python == str(agent.root / "venvs" / next(iter(venvs(agent))) / "bin/python")
    assert (answer.gpus, answer.seen) == ([], 0)
    kinds = list(dict.fromkeys(step.step for step in steps))
    assert kinds == ["creating the environment", "installing packages", "checking Python"]
    subprocess.run([answer.python, "-c", "import tensorflow, adds, pip"], check=True)
    ready = json.loads((Path(answer.python).parents[1] / "ready.json").read_text())
    assert ready["base"] == os.path.realpath(interpreter)
    assert not (Path(answer.python).parents[1] / "scratch").exists()

    again = done(connect(env=pip_environment(wheels)), requirements="\n# only this\ntensorflow==2.21.0")
    assert (again.made, again.python) == (False, answer.python)
    prepared = agent.prepare("j", Bundle("pass"), python=answer.python)
    assert isinstance(prepared, Prepared)
    assert prepared.versions == answer.versions


def test_the_oldest_python_does_as_well(connect: Connect, wheels: Path) -> None:
    wheel(wheels, "adds", "1.0")
    python = find_interpreter("3.9")
    agent = connect(env=pip_environment(wheels), python=python)
    answer = done(agent, requirements="adds", python=python, on_top=True)
    assert answer.versions["python"].startswith("3.9.")
    subprocess.run([answer.python, "-c", "import adds"], check=True)


def test_nothing_to_install_leaves_the_interpreter_as_it_is(connect: Connect) -> None:
    agent = connect()
    answer = done(agent, python=sys.executable, requirements="# nothing\n")
    assert (answer.python, answer.made) == (sys.executable, False)
    assert not (agent.root / "venvs").exists()


def test_hosts_that_cannot_install_packages_report_why_and_keep_nothing(connect: Connect, tmp_path: Path) -> None:
    agent = connect(env=UNREACHABLE)
    answer = refused(agent, requirements="tensorflow")
    assert (answer.reason, answer.cause) == ("pip cannot reach the package index", "Connection refused")
    assert "Cloud NAT" in answer.hint

    python = without(tmp_path / "a", "venv")
    answer = refused(agent, requirements="six", python=python)
    assert answer.kind is Refusal.PYTHON
    assert answer.reason == f"{python} on this host cannot create a virtual environment"
    assert answer.cause == f"{python}: No module named venv"

    python = without(tmp_path / "b", "ensurepip")
    answer = refused(agent, requirements="six", python=python)
    assert answer.reason == f"{python} on this host has no pip"
    assert answer.cause == "uv cannot install it: URLError: <urlopen error [Errno 111] Connection refused>"
    assert "apt install python3-venv" in answer.hint
    assert venvs(agent) == set()
    agent.send(Inspect())  # the session continues
    agent.receive()


def test_who_waited_for_the_lock_removes_incomplete_and_old_environments_and_keeps_those_in_use(
    connect: Connect, wheels: Path, interpreter: str
) -> None:
    wheel(wheels, "adds", "1.0")
    agent = connect(env=pip_environment(wheels))
    name = environment_name(EnvironmentSpec("adds"), BASE._replace(path=os.path.realpath(interpreter)))
    incomplete = agent.root / "venvs" / name
    (incomplete / "bin").mkdir(parents=True)
    (incomplete / "bin" / "python").symlink_to(sys.executable)
    (agent.root / "venvs" / "other" / "lib").mkdir(parents=True)
    now = time.time()
    ages = {"newest": 1, "newer": 2, "old": 3, "busy": 4, "job": 5, "ended": 6}
    directories = {name: complete(agent, name, now - age) for name, age in ages.items()}
    for job in ("job", "ended"):
        task = agent.root / "jobs" / job / "worker-0"
        task.mkdir(parents=True)
        (task / "job.json").write_text(
            json.dumps({"job": job, "command": [str(directories[job] / "bin" / "python")]})
        )
    result = {"record": "job_result", "job": "ended", "attempt": 1, "outcome": "succeeded", "at": 1.0}
    (agent.root / "jobs/ended/worker-0/result.json").write_text(json.dumps(result))
    with subprocess.Popen([str(directories["busy"] / "bin" / "python"), "60"], executable="/bin/sleep") as process:
        try:
            with (agent.root / "venvs" / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                agent.send(Bootstrap("adds"))
                waiting = agent.expect(BootstrapStep)
            _, made = until(agent)
        finally:
            process.kill()
    assert (waiting.step, waiting.detail) == ("waiting", "packages are installed for others on this host")
    assert isinstance(made, Bootstrapped), made
    assert made.made
    assert Path(made.python).parts[-3] == incomplete.name
    assert (incomplete / "ready.json").exists()
    assert venvs(agent) == {"newest", "newer", "busy", "job", incomplete.name}


def test_slots_of_a_host_share_their_packages(tmp_path: Path, wheels: Path, interpreter: str) -> None:
    wheel(wheels, "adds", "1.0")
    host = tmp_path / "host"
    agents = [
        Agent(host / f"slot-{slot}", env=pip_environment(wheels), shared=str(host), python=interpreter)
        for slot in range(2)
    ]
    with agents[0], agents[1]:
        for agent in agents:
            agent.send(Bootstrap("adds"))
        first, second = [until(agent)[1] for agent in agents]
        assert isinstance(first, Bootstrapped), first
        assert isinstance(second, Bootstrapped), second
        assert first.python == second.python
        assert sorted([first.made, second.made]) == [False, True]
        assert Path(first.python).is_relative_to(host / "venvs")
        assert not list(host.glob("slot-*/venvs"))
        # An environment that a job in the other slot uses is not removed, however old.
        (made,) = [path for path in (host / "venvs").iterdir() if path.is_dir()]
        task = host / "slot-1/jobs/job/worker-1"
        task.mkdir(parents=True)
        (task / "job.json").write_text(json.dumps({"job": "job", "command": [first.python]}))
        os.utime(made / "ready.json", (1, 1))
        assert done(agents[0], requirements="adds>=0.1").made  # which removes unused ones
        assert made.is_dir()


def test_an_installation_ends_if_the_client_disconnects(connect: Connect, wheels: Path) -> None:
    wheel(wheels, "adds", "1.0")
    has_begun, may_continue = threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.endswith(".whl"):
            has_begun.set()
            may_continue.wait(90)

    with serve(wheels) as index:
        index.on_request = hold
        agent = connect(env={**UNREACHABLE, "PIP_INDEX_URL": f"http://{index.location}/simple"})
        agent.send(Bootstrap("adds"))
        assert has_begun.wait(90)
        mark = str(agent.root / "venvs").encode()
        (pip,) = [
            int(path.parent.name)
            for path in Path("/proc").glob("[0-9]*/cmdline")
            if (words := _read(path)).startswith(mark) and b"\0install\0" in words
        ]
        agent.close()
        assert gone(pip)
        assert venvs(agent) == set()
        may_continue.set()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_tensorflow_is_refused_at_once_on_a_disk_that_is_too_small(tmp_path: Path, connect: Connect) -> None:
    sizes = {
        "adds": 1,
        "tensorflow-cpu": 1,
        "scipy\nTensorFlow>=2.16": 3,
        "tensorflow [and-cuda]==2.21\ntensorflow": 10,
    }
    assert {requirements: least_disk_bytes(requirements) >> 30 for requirements in sizes} == sizes
    if os.getuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system can be mounted by root alone")
    directory = tmp_path / "host-77"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        answer = refused(connect(77), requirements="tensorflow")
        assert answer.kind is Refusal.DISK
        assert answer.reason.startswith(f"no space left on this host: {directory}/venvs has ")
        assert list((directory / "venvs").glob("*/")) == []
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_what_decides_the_name() -> None:
    name = environment_name(EnvironmentSpec("b==1\na==2"), BASE)
    assert environment_name(EnvironmentSpec("# both\na==2\r\n\n  b==1 # why\n"), BASE) == name
    assert environment_name(EnvironmentSpec("a==2\nb==2"), BASE) != name
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(path="/other")) != name
    major, minor, _ = BASE.version.split(".")
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(version=f"{major}.{minor}.99")) == name
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(version=f"{major}.99.0")) != name
    lines = "a==1 \\\n  --hash=sha256:1\nx @ https://h/x.whl#sha256=1"
    assert significant_lines(lines) == ["a==1    --hash=sha256:1", "x @ https://h/x.whl#sha256=1"]


def test_a_program_that_makes_no_progress_is_ended() -> None:
    (reads, client), (answers, writes) = os.pipe(), os.pipe()
    lines: list[str] = []

    def on_lines(new: list[str]) -> bool:
        lines.extend(new)
        return bool(new)

    command = ["/bin/sh", "-c", "echo $$; exec sleep 60"]
    with pytest.raises(OverdueError):
        run(command, {}, "/", Steps(Channel(reads, writes)), deadline_s=2, on_lines=on_lines)
    assert not alive(int(lines[0]))
    for fd in (reads, client, answers, writes):
        os.close(fd)
