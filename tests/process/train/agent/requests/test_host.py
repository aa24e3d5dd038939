"""Test Prepare on agents that communicate over pipes: what a host reserves, stores, refuses, and keeps."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle, committed, eventually, follow
from train.agent.host.facts import keras_backend
from train.agent.host.ports import reserve_task_port
from train.agent.protocol.records import Entry, EntryKind, Follow, Hello, Prepared, Refusal, Refused


def test_the_first_python3_with_tensorflow_is_chosen(connect: Connect, tmp_path: Path) -> None:
    for name, module in (("plain", ""), ("with", "tensorflow")):
        directory = tmp_path / name
        directory.mkdir()
        versions = '{"python": "3.11.0"' + (f', "{module}": "2.20.0"' if module else "") + "}"
        script = f"""#!/bin/sh\necho '{{"versions": {versions}, "directories": []}}'\n"""
        (directory / "python3").write_text(script)
        (directory / "python3").chmod(0o755)
    path = f"{tmp_path / 'plain'}:{tmp_path / 'with'}"
    answer = connect(env={"PATH": path}).prepare("j", Bundle("pass"), python="", dry_run=True)
    assert isinstance(answer, Prepared)
    assert (answer.python, answer.versions["tensorflow"]) == (str(tmp_path / "with" / "python3"), "2.20.0")
    answer = connect(env={"PATH": str(tmp_path / "plain")}).prepare("j", Bundle("pass"), python="", dry_run=True)
    assert isinstance(answer, Prepared)
    assert "tensorflow" not in answer.versions


@pytest.mark.parametrize(
    ("asked", "path", "reason"),
    [
        ("/nowhere/python", "/usr/bin", "/nowhere/python on this host does not run as a Python interpreter"),
        ("python9", "/usr/bin:/bin", "python9 on this host does not exist"),
        ("/bin/true", "/bin", "/bin/true on this host does not run as a Python interpreter"),
        ("", "/nowhere", "python3 is not on the PATH of this host (/nowhere)"),
    ],
)
def test_no_interpreter_is_refused_with_its_name(connect: Connect, asked: str, path: str, reason: str) -> None:
    agent = connect(env={"PATH": path})
    answer = agent.prepare("j", Bundle("pass"), python=asked)
    assert isinstance(answer, Refused)
    assert (answer.kind, answer.reason) == (Refusal.PYTHON, reason)
    assert not (agent.root / "jobs").exists()


def test_gpus_are_listed_where_nvidia_smi_is(connect: Connect, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/asked\necho '0, Tesla T4, 15360, 535.183.01'\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    for _ in range(2):
        answer = connect(env=env).prepare("j", Bundle("pass"), dry_run=True)
        assert isinstance(answer, Prepared)
        assert [tuple(gpu) for gpu in answer.gpus] == [(0, "Tesla T4", 15360, "535.183.01")]
    assert (tmp_path / "asked").read_text() == "run\n"


def test_two_agents_on_one_computer_never_get_the_same_port(connect: Connect) -> None:
    agents = [connect(host) for host in range(3)]
    script = Bundle("import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)")
    ports = []
    for index, agent in enumerate(agents):
        members = committed([agent], f"j{index}", script, first_port=23600)
        ports.append(members[0].port)
    # The tasks run, and none of them has bound its port yet.
    assert ports == sorted(set(ports))
    for index, agent in enumerate(agents):
        (agent.root / f"jobs/j{index}/worker-0/src/go").touch()
        follow(agent, Follow(f"j{index}", "worker-0"))
    assert eventually(lambda: _first_free_port(ports[0]) == ports[0])


def _first_free_port(first: int) -> int:
    port = reserve_task_port(first)
    port.release()
    return port.port


def test_an_invalid_port_and_an_address_of_another_host_are_refused(connect: Connect) -> None:
    agent = connect()
    for port in (0, -1, 70000):
        answer = agent.prepare("j", Bundle("pass"), first_port=port)
        assert isinstance(answer, Refused)
        assert answer.reason == f"invalid port {port}"
    answer = agent.prepare("j", Bundle("pass"), address="192.0.2.1")
    assert isinstance(answer, Refused)
    assert answer.kind is Refusal.PORT
    assert answer.reason.startswith("this host cannot listen on 192.0.2.1: ")


def test_only_changed_contents_come_again_and_removed_files_vanish(connect: Connect) -> None:
    agent = connect()
    first = Bundle("print('one')", left=b"left", kept=b"kept")
    committed([agent], "j1", first)
    assert len(agent.significant_lines.objects) == 3
    follow(agent, Follow("j1", "worker-0"))
    second = Bundle("print('two')", kept=b"kept")
    committed([agent], "j2", second)
    assert [second.contents[digest] for digest in agent.significant_lines.objects] == [b"print('two')"]
    assert bytes(follow(agent, Follow("j2", "worker-0")).log) == b"two\n"
    assert sorted(path.name for path in (agent.root / "jobs/j2/worker-0/src").iterdir()) == ["kept", "task.py"]


def test_a_bundle_that_leaves_its_directory_is_refused(connect: Connect) -> None:
    bundle = Bundle("pass")
    bundle.entries.append(Entry("out", EntryKind.LINK, target="/etc"))
    answer = connect().prepare("j", bundle)
    assert isinstance(answer, Refused)
    assert (answer.kind, "'out' points outside" in answer.reason) == (Refusal.REQUEST, True)


def test_nonsense_is_refused_in_a_message_and_the_conversation_goes_on(connect: Connect) -> None:
    agent = connect()
    for line in (b"\n", b"{}\n", b"\xff\xfe\n", b'{"record":"prepare"}\n', b'{"record":"nothing"}\n', b"[1]\n"):
        agent.write(line)
        answer = agent.expect(Refused)
        assert answer.kind is Refusal.REQUEST
        assert "Traceback" not in answer.reason
    agent.send(Hello("a", "b", 1))
    assert agent.expect(Refused).reason == "Hello is not a request"
    agent.write(b'{"record":"prepare","job":1,"fleet":"f","task":2,"entries":[],"address":3}\n')
    answer = agent.expect(Refused)
    assert (answer.kind, answer.reason) == (
        Refusal.REQUEST,
        "the request cannot be read: Prepare, job: int instead of str",
    )
    assert isinstance(agent.prepare("j", Bundle("pass")), Prepared)


RESULTS = """
import os
for name in ("MODEL", "CHECKPOINT", "LOG"):
    with open(os.path.join(os.environ[f"FLEET_{name}_DIR"], "result"), "w") as file:
        file.write(name)
open("written", "w").write("by the job")
print("read", open("data").read())
raise SystemExit(int(os.environ["FLEET_JOB_ID"] == "j1"))
"""


def test_no_later_job_deletes_what_a_job_left_behind(connect: Connect) -> None:
    agent = connect()
    for n in range(9):
        bundle = Bundle(f"{RESULTS}# {n}\n")
        bundle.add("data", b"data of %d" % n, EntryKind.DATA)
        committed([agent], f"j{n}", bundle)
        follow(agent, Follow(f"j{n}", "worker-0"))
    for n in range(9):
        task = agent.root / f"jobs/j{n}/worker-0"
        left = ["model/result", "checkpoints/result", "logs/result", "src/written", "src/data", "attempt-1/log"]
        assert [(task / path).read_bytes() for path in left] == [
            b"MODEL", b"CHECKPOINT", b"LOG", b"by the job", b"data of %d" % n, b"read data of %d\n" % n
        ]  # fmt: skip


def test_what_an_agent_that_was_killed_while_preparing_left_is_removed(connect: Connect) -> None:
    agent = connect()
    assert isinstance(agent.prepare("broken", Bundle("pass")), Prepared)
    agent.process.kill()
    agent.process.wait()
    assert (agent.root / "jobs/broken").exists()
    assert isinstance(connect().prepare("next", Bundle("pass")), Prepared)
    assert not (agent.root / "jobs/broken").exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "host-77"
    directory.mkdir()
    if os.getuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system can be mounted by root alone")
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", str(directory)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"tmpfs cannot be mounted here: {done.stderr.decode()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_a_bundle_that_does_not_fit_is_refused_with_numbers(small_disk: Path, connect: Connect) -> None:
    agent = connect(77)
    answer = agent.prepare("big", Bundle("pass", data=os.urandom(20 << 20)))
    assert isinstance(answer, Refused)
    assert answer.kind is Refusal.DISK
    assert answer.reason.startswith(f"no space left on this host: {small_disk} has ")
    assert "MiB free, and the job needs 104.0 MiB" in answer.reason
    assert not (small_disk / "jobs").exists()


def test_a_disk_that_fills_while_the_task_prints_ends_the_job_with_that_reason(
    small_disk: Path, connect: Connect
) -> None:
    agent = connect(77)
    committed([agent], "flood", Bundle("import os\nwhile True: os.write(1, b'z' * 65536)"), grace_s=0.5)
    story = follow(agent, Follow("flood", "worker-0", logs=False))
    assert story.result is not None
    assert story.result.reason == "worker-0's log cannot be written: No space left on device"


def test_the_backend_of_keras_is_read_as_keras_reads_it(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert keras_backend(home) == ""
    (tmp_path / ".keras").mkdir()
    (tmp_path / ".keras/keras.json").write_text('{"backend": "torch"}')
    assert keras_backend(home) == "torch"
    assert keras_backend({**home, "KERAS_BACKEND": "jax"}) == "jax"
    (tmp_path / "keras.json").write_text('{"backend": "jax"}')
    assert keras_backend({**home, "KERAS_HOME": str(tmp_path)}) == "jax"
    (tmp_path / "keras.json").write_text("[]")
    assert keras_backend({**home, "KERAS_HOME": str(tmp_path)}) == ""
