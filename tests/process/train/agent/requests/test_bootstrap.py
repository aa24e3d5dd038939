"""Test how the agent is copied to a host and started there."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

import pytest

from provision.local.sshd import AGENTS_VARIABLE
from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle, commits, committed, follow
from train.agent.protocol.records import Exit, Follow, Prepared
from train.pack import AgentArchive, bootstrap_command, build_agent, upload

AGENT = Path(__file__).parents[5] / "train" / "agent"
SOURCES = sorted(AGENT.rglob("*.py"))


@pytest.fixture(autouse=True)
def no_shared_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the agent be in the directory of its host, as on every host that is not local."""
    monkeypatch.delenv(AGENTS_VARIABLE)


def name_of(path: Path) -> str:
    return path.relative_to(AGENT).as_posix()


def interpreter(version: str) -> str:
    """Return an interpreter of this version on this computer; skip if there is none."""
    places = sorted(Path.home().glob(f".pyenv/versions/{version}*/bin/python"))
    path = str(places[-1]) if places else shutil.which(f"python{version}")
    if not path or subprocess.run([path, "-c", ""], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"Python {version} is not installed here")
    return path


def test_the_archive_is_the_same_bytes_every_time() -> None:
    first = build_agent()
    build_agent.cache_clear()
    assert build_agent() == first
    names = zipfile.ZipFile(BytesIO(first.data)).namelist()
    assert names == sorted(names)
    assert set(names) == {
        "__main__.py",
        "train/__init__.py",
        "train/defaults.py",
        *(f"train/agent/{name_of(path)}" for path in SOURCES if path != AGENT / "__main__.py"),
    }


def test_the_command_is_one_line_that_every_shell_passes_on() -> None:
    command = bootstrap_command("python3", ".fleet dir", "d" * 64)
    assert command.startswith("exec /bin/sh -c '")
    assert command.endswith(f"' sh python3 \"$HOME\"/'.fleet dir' {'d' * 64}")
    script = command[command.index("'") + 1 : command.index("' sh python3")]
    assert not re.search(r"['!\\\n]", script)  # quotes, history of csh, escapes of fish
    assert len(command) < 4096
    assert " sh \"$HOME\"/'my env/bin/python' /r d" in bootstrap_command("~/my env/bin/python", "/r", "d")


@pytest.mark.parametrize("shell", ["csh", "dash", "fish", "zsh"])
def test_every_login_shell_starts_the_agent(tmp_path: Path, shell: str) -> None:
    path = shutil.which(shell)
    if not path:
        pytest.skip(f"{shell} is not installed")
    archive = build_agent()
    command = bootstrap_command(sys.executable, "it's my $root", archive.digest)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    for number, sent in enumerate((upload(archive.data), b"")):
        done = subprocess.run([path, "-c", command], input=sent, env=env, capture_output=True, check=True, timeout=60)
        assert re.fullmatch(rb'(need-agent\n)?\{"record":"hello".*\}\n', done.stdout)
        assert done.stdout.startswith(b"need-agent") is (number == 0)
        assert not done.stderr
    assert (tmp_path / "it's my $root/agent" / archive.digest / "__main__.py").exists()


def test_the_agent_is_asked_for_once_and_then_starts_from_disk(connect: Connect) -> None:
    first = connect()
    assert first.fetched
    digest = build_agent().digest
    assert first.hello is not None
    assert first.hello.agent == digest
    assert first.hello.python == ".".join(map(str, sys.version_info[:3]))
    assert not connect().fetched
    directory = first.root / "agent"
    assert sorted(path.name for path in directory.iterdir()) == [digest, f"{digest}.pyz"]
    assert (directory / f"{digest}.pyz").stat().st_mode & 0o777 == 0o600
    assert directory.stat().st_mode & 0o777 == 0o700
    assert list((directory / digest / "train/agent/requests/__pycache__").glob("serve.*.pyc"))


def add_agents(directory: Path) -> list[str]:
    """Add eight agents that no process runs; return the names of the newest four."""
    names = [str(n) * 64 for n in range(8)]
    for n, name in enumerate(names, 1):
        (directory / f"{name}.pyz").touch()
        (directory / name).mkdir()
        os.utime(directory / f"{name}.pyz", (n, n))
    return names[-4:]


def test_an_agent_that_a_process_runs_stays(connect: Connect) -> None:
    running = connect()
    directory = running.root / "agent"
    os.utime(directory / f"{build_agent().digest}.pyz", (0, 0))
    newest = add_agents(directory)
    data = build_agent().data + b"newer"
    newer = AgentArchive(data, sha256(data).hexdigest())
    connect(archive=newer)
    assert {path.stem for path in directory.iterdir()} == {build_agent().digest, newer.digest, *newest}
    assert isinstance(running.prepare("late", Bundle("")), Prepared)  # writes sources of the agent


def test_a_damaged_archive_on_disk_is_replaced(connect: Connect) -> None:
    archive = next((connect().root / "agent").glob("*.pyz"))
    shutil.rmtree(archive.with_suffix(""))
    archive.write_bytes(archive.read_bytes()[:-1])
    assert connect().fetched
    assert archive.read_bytes() == build_agent().data


@pytest.mark.parametrize("sent", [b"", b"12", b"10\nshort"])
def test_a_client_that_goes_in_the_middle_of_the_archive_leaves_nothing(tmp_path: Path, sent: bytes) -> None:
    command = bootstrap_command(sys.executable, str(tmp_path / "root"), build_agent().digest)
    done = subprocess.run(["/bin/sh", "-c", command], input=sent, capture_output=True, check=False, timeout=30)
    assert done.stdout.startswith(b"need-agent\n")
    assert (done.stderr, done.returncode) == (b"", 4)
    assert not list(tmp_path.glob("root/agent/*"))


@pytest.mark.parametrize("sent", [b"3\nabc", upload(b"another agent")])
def test_an_archive_that_is_not_the_one_is_refused(tmp_path: Path, sent: bytes) -> None:
    command = bootstrap_command(sys.executable, str(tmp_path / "root"), build_agent().digest)
    done = subprocess.run(["/bin/sh", "-c", command], input=sent, capture_output=True, check=False, timeout=30)
    assert done.stdout == b"need-agent\nbootstrap-failed the agent arrived damaged\n"
    assert (done.returncode, done.stderr) == (4, b"")
    assert not list(tmp_path.glob("root/agent/*"))


def test_a_full_disk_is_reported_in_a_line(tmp_path: Path) -> None:
    archive = build_agent()
    command = bootstrap_command(sys.executable, str(tmp_path / "root"), archive.digest)
    done = subprocess.run(
        ["/bin/sh", "-c", f"ulimit -f 100; {command}"],  # blocks of 512 or 1024 bytes
        input=upload(archive.data),
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert done.stdout == b"need-agent\nbootstrap-failed OSError: [Errno 27] File too large\n"
    assert (done.returncode, done.stderr) == (4, b"")
    assert not list(tmp_path.glob("root/agent/*"))


@pytest.mark.parametrize("version", ["3.6", "3.8"])
def test_a_python_that_is_too_old_says_so(tmp_path: Path, version: str) -> None:
    archive = build_agent()
    command, sent = bootstrap_command(interpreter(version), str(tmp_path), archive.digest), upload(archive.data)
    done = subprocess.run(["/bin/sh", "-c", command], input=sent, capture_output=True, check=False, timeout=30)
    assert re.fullmatch(rb"need-agent\npython-too-old %s\.\d+\n" % version.encode(), done.stdout)
    assert done.returncode == 3


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_a_whole_job_on_another_python(connect: Connect, version: str) -> None:
    python = interpreter(version)
    agents = [connect(host, python=python) for host in range(2)]
    command = [python, "task.py"]
    script = "import os, sys\nprint(sys.version_info[:2])\nsys.exit(int(os.environ['FLEET_RANK']) * 5)"
    committed(agents, "old", Bundle(script), command=command)
    stories = [follow(agent, Follow("old", f"worker-{n}")) for n, agent in enumerate(agents)]
    assert bytes(stories[1].log) == f"({version.replace('.', ', ')})\n".encode()
    assert stories[1].exit == Exit(code=5)
    assert stories[0].result == stories[1].result


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_every_module_is_python_3_9_and_imports_the_standard_library_alone(path: Path) -> None:
    is_injected = path.parent.name == "injected"  # into the interpreters of tasks, which may be older
    tree = ast.parse(path.read_text(), feature_version=(3, 8) if is_injected else (3, 9))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            names |= {f"{node.module}.{name.name}" for name in node.names}
    for name in names:
        in_library = name.split(".")[0] in sys.stdlib_module_names or name.startswith(
            ("train.agent", "train.defaults")
        )
        assert in_library or (is_injected and name.startswith(("tensorflow", "importlib_metadata"))), name


def memory_of(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]) * 1024


def test_supervisor_and_follower_are_small(connect: Connect) -> None:
    agent = connect()
    answer = agent.prepare("small", Bundle("import time; time.sleep(60)"))
    assert isinstance(answer, Prepared)
    assert agent.hello is not None
    supervisor = agent.commit(next(commits("small", [answer.member], [sys.executable, "task.py"]))).pid
    follow(agent, Follow("small", "worker-0"), lambda story: "running" in story.phases)
    assert memory_of(supervisor) + memory_of(agent.hello.pid) < 30 << 20
