"""Jobs with stand-in tasks: real sshd, the real agent, scripts without TensorFlow."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.program import Program, catches_signals, lines_of, read_files, task_config, wait_for

pytestmark = pytest.mark.wire

SHOW = """
import os, sys
for name in sorted(os.environ):
    print(f"{name}={os.environ[name]}")
print("ARGS", sys.argv[1:])
print("CWD", sorted(os.listdir(".")))
"""

SLEEP = """
import time
print("up", flush=True)
time.sleep(600)
"""

TREE = """
import os
import pwd
for directory, _, names in sorted(os.walk(".")):
    for name in sorted(names):
        path = os.path.join(directory, name)
        print(path, open(path).read().strip()[:20])
"""

COUNT = """
import os, sys, time
rank = os.environ["FLEET_RANK"]
for i in range(400):
    sys.stdout.buffer.write(b"line %d of %s \\xff\\r" % (i, rank.encode()) + (b"\\n" if i % 3 else b""))
    sys.stdout.buffer.flush()
    time.sleep(0.01)
"""


def test_every_task_sees_its_own_index_in_the_same_cluster(pair: Program) -> None:
    """Names and arguments with special characters are passed unchanged."""
    pair.script("sub dir/-my täsk.py", SHOW)
    arguments = ("--epochs", "3 and more", "$(id)", "")
    ran = pair.run("train", "sub dir/-my täsk.py", "--workdir", "sub dir", "-e", "COLOUR=blue", "--", *arguments)
    clusters = []
    for index in range(2):
        lines = lines_of(ran, f"worker-{index}")
        config = task_config("\n".join(lines))
        assert config["task"] == {"type": "worker", "index": index}
        clusters.append(json.dumps(config["cluster"]))
        assert "ARGS ['--epochs', '3 and more', '$(id)', '']" in lines
        assert "COLOUR=blue" in lines
        assert "PYTHONUNBUFFERED=1" in lines
        assert f"FLEET_RANK={index}" in lines
        assert "FLEET_NUM_TASKS=2" in lines
        assert any(line.startswith("AIP_CHECKPOINT_DIR=/") for line in lines)
    assert len(set(clusters)) == 1
    endpoints = json.loads(clusters[0])["worker"]
    assert len(endpoints) == len(set(endpoints)) == 2
    ports = [int(endpoint.rpartition(":")[2]) for endpoint in endpoints]
    assert len(set(ports)) == 2
    assert min(ports) >= 2222


def test_a_killed_client_does_not_affect_the_job(pair: Program) -> None:
    pair.script("task.py", COUNT)
    client = pair.start("train", "task.py")
    wait_for("both tasks", lambda: len(pair.tasks()) == 2)
    time.sleep(0.5)
    client.kill()
    client.communicate()
    ran = pair.run("logs", "-f", "--worker", "1", "--raw")
    assert ran.out == pair.log_of("worker-1").read_bytes()
    assert ran.out.count(b"of 1 \xff\r") == 400
    assert pair.run("logs", "--worker", "worker-0", "--raw").out == pair.log_of("worker-0").read_bytes()


def test_ctrl_c_detaches_and_the_task_of_a_killed_supervisor_ends(pair: Program) -> None:
    pair.script("task.py", SLEEP)
    client = pair.start("train", "task.py")
    wait_for("both tasks", lambda: len(pair.tasks()) == 2)
    wait_for("user code", lambda: all(pair.log_of(f"worker-{i}").stat().st_size for i in range(2)))
    client.send_signal(signal.SIGINT)
    ran = pair.finish(client, code=101)
    assert "fleet logs -f" in ran.err
    assert "fleet stop" in ran.err
    assert len(pair.tasks()) == 2
    client = pair.start("logs", "-f")  # as was reported
    (task,) = pair.tasks("worker-1")
    os.kill(task.ppid(), signal.SIGKILL)
    ran = pair.finish(client, code=100)
    assert lines_of(ran, "worker-0") == ["up"]
    assert "worker-1" in ran.err
    wait_for("the tasks to end", lambda: not pair.tasks())
    pair.script("task.py", "print('ran')\n")
    assert pair.run("train", "--raw", "task.py").text.count("ran") == 2


def test_a_killed_worker_stops_all_tasks_within_the_grace_period(pair: Program) -> None:
    pair.script(
        "task.py",
        "import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('up', flush=True)\n"
        "time.sleep(600)\n",
    )
    client = pair.start("train", "task.py", "--grace", "1")
    wait_for("the tasks", lambda: len(pair.tasks()) == 2)
    wait_for("their output", lambda: all(pair.log_of(f"worker-{i}").stat().st_size for i in range(2)))
    (victim,) = pair.tasks("worker-1")
    victim.kill()
    wait_for("all tasks to end", lambda: not pair.tasks())
    ran = pair.finish(client, code=100)
    assert "worker-1" in ran.err
    assert "SIGKILL" in ran.err
    assert pair.run("logs", "-f", code=100)


def test_a_failed_script_is_reported_by_its_first_failed_task(pair: Program) -> None:
    pair.script(
        "task.py",
        "import os, sys, time\nif os.environ['FLEET_RANK'] == '1': sys.exit('the disk of dreams is full')\n"
        "time.sleep(600)\n",
    )
    ran = pair.run("train", "task.py", code=100)
    assert "worker-1" in ran.err
    assert "worker-1 | the disk of dreams is full" in ran.text
    result = pair.run("logs", "-f", "-o", "json", code=100).events[-1]
    assert result["event"] in ("job_result", "error")


def test_two_concurrent_trains_start_one_job_which_alone_reads_its_secret_and_is_stopped(pair: Program) -> None:
    pair.script("task.py", "import os\nprint(len(os.environ['TOKEN']), flush=True)\n" + SLEEP)
    secret = "correct-horse-battery"
    clients = [pair.start("train", "-d", "task.py", "--secret", "TOKEN", env={"TOKEN": secret}) for _ in range(2)]
    ran = sorted((pair.finish(client, code=None) for client in clients), key=lambda each: each.code)
    assert [each.code for each in ran] == [0, 14]
    wait_for("both tasks", lambda: len(pair.tasks()) == 2)
    busy = pair.run("train", "task.py", code=14)
    assert "is running" in busy.err
    check_dry_run(pair)
    status = pair.run("status", "-o", "json").events
    (fleet,) = [event for event in status if event.get("name") == "default"]
    assert fleet["job"]["script"] == "task.py"
    assert [task["phase"] for task in fleet["job"]["tasks"]] == ["running", "running"]
    (task, _) = pair.tasks()
    assert task.environ()["TOKEN"] == secret
    assert secret not in "".join(each.text + each.err for each in ran)
    for process in pair.processes():
        with contextlib.suppress(psutil.Error):  # the process may have ended
            assert all(secret not in word for word in process.cmdline())
    for path, content in read_files(pair.state):
        assert secret.encode() not in content, path
    pair.run("stop")
    assert not pair.tasks()
    logs = pair.run("logs", "--raw", code=103)
    assert logs.text.count("up") == 2
    assert lines_of(logs, "worker-0") == ["21", "up"]
    pair.run("stop")


def check_dry_run(pair: Program) -> None:
    """Check that a dry run shows the tasks and starts none while a job runs."""
    before = set((pair.state / "local").glob("*/fleet/jobs/*"))
    ran = pair.run("train", "task.py", "--dry-run", "-o", "json", "--", "--epochs", "3")
    planned = [event for event in ran.events if event["event"] == "task_planned"]
    assert [event["task"] for event in planned] == ["worker-0", "worker-1"]
    for index, event in enumerate(planned):
        assert json.loads(event["tf_config"])["task"] == {"type": "worker", "index": index}
        assert event["command"].endswith("task.py --epochs 3")
    text = pair.run("train", "task.py", "--dry-run", "--tasks-per-host", "2")
    assert '"index": 3' in text.text + text.err
    assert '"index": 4' not in text.text + text.err
    assert len(pair.tasks()) == 2
    assert set((pair.state / "local").glob("*/fleet/jobs/*")) == before


def test_down_leaves_no_process_and_no_file_of_its_fleet_and_does_not_affect_others(program: Program) -> None:
    program.script(
        "task.py", "import subprocess, time\nsubprocess.Popen(['sleep', '601'], start_new_session=True)\n" + SLEEP
    )
    for name in ("one", "two"):
        program.run("up", "--workers", "1", "--fleet", name)
        program.run("train", "-d", "task.py", env={"FLEET_NAME": name})
    wait_for("the children", lambda: len([p for p in program.tasks() if "sleep" in p.name()]) == 2)
    ran = program.run("down", "--fleet", "one", "--yes")
    assert "0 left" in ran.err + ran.text
    assert len(program.tasks()) == 2  # the task of the other fleet, and its child
    assert [path.name for path in (program.state / "local").iterdir() if path.is_dir()] == ["two-worker-0"]
    assert program.run("logs", "--fleet", "two", code=101).text == "worker-0 | up\n"
    program.run("down", "--fleet", "two", "--yes")
    assert not program.processes()
    assert not list((program.state / "local").iterdir())
    assert not [path for path in (program.state / "fleets").iterdir() if path.is_dir()]
    assert program.run("status", code=102).err
    program.run("down")


def test_user_files_with_the_names_of_fleet_packages_are_not_imported(program: Program) -> None:
    for name in ("train.py", "fleet.py", "provision.py"):
        program.script(name, f"print('the file {name} of the user ran')\n")
    program.script("main.py", "import train, provision\nprint('both imported')\n")
    env = {"PYTHONPATH": "."}
    up = program.run("up", "--workers", "1", env=env)
    assert "of the user ran" not in up.text + up.err
    ran = program.run("train", "main.py", env=env)
    assert lines_of(ran, "worker-0") == [
        "the file train.py of the user ran",
        "the file provision.py of the user ran",
        "both imported",
    ]
    assert lines_of(program.run("train", "train.py", env=env), "worker-0") == ["the file train.py of the user ran"]
    (program.directory / "fleet.py").unlink()

    done = subprocess.run(
        [sys.executable, "-m", "fleet", "status"],
        cwd=program.directory, env=program.environment(env), capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "of the user ran" not in done.stdout + done.stderr


def test_each_job_uses_the_current_files_of_the_directory(pair: Program) -> None:
    pair.script("task.py", TREE)
    pair.script("lib/a.py", "a")
    pair.script("old.txt", "old")
    pair.script("big.bin", "x")
    pair.script(".fleetignore", "*.bin\n")
    pair.script("../data/part-0", "zero")
    first = pair.run("train", "task.py", "--data", "../data:input/set")
    assert "./old.txt old" in lines_of(first, "worker-1")
    assert "./input/set/part-0 zero" in lines_of(first, "worker-1")
    assert not any("big.bin" in line for line in lines_of(first, "worker-1"))
    (pair.directory / "old.txt").unlink()
    pair.script("lib/a.py", "b")
    second = pair.run("train", "task.py", "-o", "json")
    pushed = [event for event in second.events if event["event"] == "push_progress"]
    assert max(event["total"] for event in pushed) <= 2
    shown = pair.run("logs")
    assert "./lib/a.py b" in lines_of(shown, "worker-1")
    assert "old.txt" not in shown.text


def test_binary_and_long_output_is_kept_unchanged(pair: Program) -> None:
    pair.script(
        "task.py",
        "import os, sys\nout = sys.stdout.buffer\n"
        "if os.environ['FLEET_RANK'] == '0':\n    out.write(b'x' * 10_000_000 + b'\\n')\n"
        "else:\n    out.write(b'\\xff\\xfe\\x00' * 1000 + b'\\r' * 100_000)\n",
    )
    pair.run("train", "task.py")
    for index in (0, 1):
        ran = pair.run("logs", "--worker", str(index), "--raw")
        assert ran.out == pair.log_of(f"worker-{index}").read_bytes()
    assert pair.log_of("worker-0").stat().st_size == 10_000_001
    assert pair.log_of("worker-1").stat().st_size == 103_000


def test_up_repairs_a_killed_up_and_dead_sshds_and_jobs_continue_without_them(program: Program) -> None:
    for delay in (0.1, 0.3, 0.4, 0.5, 0.7):
        client = program.start("up", "--workers", "2")
        time.sleep(delay)
        client.kill()
        client.communicate()
    program.run("up", "--workers", "2")
    assert len(program.listeners()) == 2
    program.script("task.py", COUNT)
    (listener,) = program.listeners("worker-1")
    listener.kill()
    ran = program.run("train", "task.py", code=13)
    assert "worker-1" in ran.err
    assert "fleet up" in ran.err
    assert "no answer" in program.run("status").text
    program.run("up")

    client = program.start("train", "--raw", "task.py")
    wait_for("both tasks", lambda: len(program.tasks()) == 2)
    assert client.stdout is not None
    assert select.select([client.stdout], [], [], 90)[0]  # it follows the job
    (listener,) = program.listeners("worker-1")
    for session in listener.children(recursive=False):
        with contextlib.suppress(psutil.NoSuchProcess):
            session.kill()
    listener.kill()
    assert len(program.tasks()) == 2
    program.run("up")
    ran = program.finish(client)
    assert "worker-1" in ran.err
    log = program.run("logs", "--worker", "1", "--raw").out
    assert log == program.log_of("worker-1").read_bytes()
    assert log.count(b"of 1 \xff\r") == 400
    lines = [line for line in ran.out.split(b"\n") if line.startswith(b"worker-1 | ")]
    assert b"\n".join(line[len(b"worker-1 | ") :] for line in lines).rstrip(b"\n") == program.log_of(
        "worker-1"
    ).read_bytes().rstrip(b"\n")


def test_ctrl_c_during_up_cleans_up(program: Program) -> None:
    for delay in (0.2, 0.4, 0.6):
        client = program.start("up", "--workers", "2")
        while client.poll() is None and not catches_signals(client):
            time.sleep(0.002)
        time.sleep(delay)
        client.send_signal(signal.SIGINT)
        ran = program.finish(client, code=None)
        assert ran.code in (0, 103), ran.err
        if (program.state / "fleets" / "default" / "fleet.json").exists():  # it was complete before the signal
            (status,) = (e for e in program.run("status", "-o", "json").events if e["event"] == "fleet_status")
            assert [host["reachable"] for host in status["hosts"]] == [True, True]
            program.run("down")
        assert not program.processes()
        assert not list((program.state / "local").glob("*"))


@pytest.mark.skipif(Path(pwd.getpwuid(os.getuid()).pw_shell).name != "bash", reason="the login shell is not bash")
def test_a_session_does_not_read_bashrc(pair: Program) -> None:
    """Bash reads ~/.bashrc for an SSH command only if no other shell is its ancestor."""
    directory = pair.state / "fleets" / "default"
    host, _ = json.loads((directory / "fleet.json").read_text())["hosts"]
    ssh = ["ssh", "-F", "none", "-i", str(directory / "id_ed25519"), "-o", f"HostKeyAlias={host['key_alias']}"]
    ssh += ["-o", f"UserKnownHostsFile={directory / 'known_hosts'}", "-p", str(host["port"])]
    done = subprocess.run([*ssh, f"{host['user']}@{host['address']}", "echo $SHLVL"], capture_output=True, check=True)
    assert done.stdout == b"2\n"
