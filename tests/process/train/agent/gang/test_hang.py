# ruff: noqa: E501 - one row a line
"""Test which task waits for which: on stacks of real TensorFlow 2.21 gangs that hung, and on live tasks."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from pathlib import Path

import pytest

from tests.process.train.agent.processes import HeldProcess, hook_in, process, script_in
from train.agent.gang.hang import TcpConnection, describe_hang, read_connection
from train.agent.protocol.records import HangInspection, Member
from train.agent.supervisor.inspection import connections

HANGS = Path(__file__).parent / "hangs"
Gang = tuple[dict[str, HangInspection], list[Member]]


def recorded(name: str) -> Gang:
    """Return what each task of a gang did when it hung, and the members of the gang."""
    data = json.loads((HANGS / f"{name}.json").read_text())
    inspections = {task: HangInspection(slot=task, **values) for task, values in data["inspections"].items()}
    return inspections, [Member(values[0], *values) for values in data["members"]]


def edited(gang: Gang, task: str, **values: object) -> Gang:
    return {**gang[0], task: gang[0][task]._replace(**values)}, gang[1]  # type: ignore[arg-type]


def frames(*places: str) -> str:
    lines = [f'  File "{file}", line 7 in {name}' for file, _, name in (place.rpartition(" ") for place in places)]
    return "\n".join(["Main thread (most recent call first):", *lines]) + "\n"


PACKAGES = "/venv/lib/python3.11/site-packages"


# Recorded gang; changes of worker-1's inspection, None: it did not answer; the beginning of the sentence.
HANGS_AND_SENTENCES: list[tuple[str, dict[str, str] | None, str]] = [
    ("ctl-load", {}, "worker-1 is in user code (task.py:12 in load), and worker-0 and worker-2 wait for it in a collective operation"),
    ("ctl-start", {}, "worker-2 is in user code (task.py:6 in <module>), and worker-0 and worker-1 wait for it at the start of TensorFlow's server"),
    ("ctl-generator", {}, "worker-1 is in user code of its input pipeline (task.py:18 in generate), and worker-0 waits for it in a collective operation"),
    ("ctl-stop", {}, "worker-1 is stopped (by SIGSTOP or a debugger), and worker-0 waits for it in a collective operation"),
    ("ctl-uneven", {}, "all tasks wait for each other, at different places: worker-0 in a collective operation (task.py:46 in main) and worker-1 at a barrier (task.py:51 in main)"),
    ("keras-callback", {}, "worker-1 is in user code (task.py:16 in upload), and worker-0 waits for it in a collective operation"),
    ("keras-thread", {}, "worker-1 has reached the end of its script and waits for its own threads (task.py:30 in write), and worker-0 waits for it in a collective operation"),
    ("ctl-load", None, "worker-1 does not answer, and worker-0 and worker-2 wait for it in a collective operation"),
    ("ctl-load", {"state": "", "stack": ""}, "worker-1 has ended, and worker-0 and worker-2 wait for it in a collective operation"),
    ("ctl-load", {"stack": "", "kernel": "CPU 3.0 s, waits in pipe_read"}, "worker-1 shows no stack (CPU 3.0 s, waits in pipe_read), and"),
    ("ctl-load", {"stack": "", "state": "D", "kernel": "waits in nfs_wait_bit_killable"}, "worker-1 is stuck in the kernel (waits in nfs_wait_bit_killable), and"),
    ("ctl-load", {"stack": frames("/usr/lib/python3.11/ssl.py read", "/usr/lib/python3.11/socket.py readinto", "/src/task.py fetch")}, "worker-1 is in user code (task.py:7 in fetch, inside read of ssl.py), and"),
    ("ctl-load", {"stack": frames(f"{PACKAGES}/requests/api.py get", "/src/task.py fetch")}, "worker-1 is in user code (task.py:7 in fetch, inside get of api.py), and"),
    ("ctl-load", {"stack": frames(f"{PACKAGES}/tensorflow/python/framework/ops.py _create", "/src/task.py build")}, "worker-1 is in library code (task.py:7 in build, inside _create of ops.py), and"),
    ("ctl-load", {"stack": frames(f"{PACKAGES}/tensorflow/python/ops/gen_dataset_ops.py iterator_get_next", "/src/task.py train")}, "worker-1 waits for its own input data (task.py:7 in train), and"),
    ("ctl-load", {"stack": frames("/usr/lib/python3.11/runpy.py run_module")}, "worker-1 is in user code (runpy.py:7 in run_module), and"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "sentence"), HANGS_AND_SENTENCES)
def test_the_task_that_others_wait_for(name: str, changes: dict[str, str] | None, sentence: str) -> None:
    inspections, members = recorded(name)
    if changes is None:
        del inspections["worker-1"]
    else:
        inspections["worker-1"] = inspections["worker-1"]._replace(**changes)  # type: ignore[arg-type]
    assert describe_hang(inspections, members).startswith(sentence)


def all_in_a_collective() -> Gang:
    inspections, members = recorded("ctl-load")
    inspections["worker-1"] = inspections["worker-2"]._replace(
        task="worker-1", sockets=inspections["worker-1"].sockets
    )
    return inspections, members


def test_the_peer_of_a_stuck_connection_is_identified_by_its_address() -> None:
    inspections, members = all_in_a_collective()
    silent = {task: seen._replace(sockets=[]) for task, seen in inspections.items()}
    stuck = f"10.9.9.9:40000 > {members[0].address}:{members[0].port} SYN_SENT 1 unsent 0 unread"
    silent["worker-2"] = silent["worker-2"]._replace(sockets=[stuck])
    assert describe_hang(silent, members).startswith("nothing that worker-2 sends reaches worker-0 (no answer")
    silent["worker-2"] = silent["worker-2"]._replace(
        sockets=["10.9.9.9:40000 > 8.8.8.8:443 SYN_SENT 1 unsent 0 unread"]
    )
    assert describe_hang(silent, members).startswith("all tasks wait for each other")


def test_who_computes_inside_tensorflow_is_waited_for() -> None:
    gang = edited(all_in_a_collective(), "worker-1", kernel="CPU 99.0 s, now 198 % of a core")
    assert describe_hang(*gang) == (
        "worker-1 computes in TensorFlow (task.py:46 in main), "
        "and worker-0 and worker-2 wait for it in a collective operation"
    )
    for task in gang[0]:  # as NCCL does while it waits on a GPU
        gang = edited(gang, task, kernel="CPU 99.0 s, now 100 % of a core")
    assert describe_hang(*gang).startswith("all tasks wait for each other in a collective operation")


def test_a_server_in_join_does_not_block_others() -> None:
    serving = frames(f"{PACKAGES}/tensorflow/python/training/server_lib.py join", "/src/task.py main")
    gang = edited(recorded("ctl-stop"), "worker-1", stack=serving, state="S")
    assert describe_hang(*gang).startswith("all tasks wait for each other in a collective operation")
    assert (
        describe_hang({"ps-0": gang[0]["worker-1"]}, [Member("ps-0", "ps-0", "h", 1, 2)])
        == "no task waits for another"
    )


# --- live tasks -----------------------------------------------------------------------------------------------------


def inspect(held: HeldProcess) -> HangInspection:
    inspections: list[HangInspection] = []
    held.task.inspect(inspections.append)
    held.until(lambda: inspections)
    return inspections[0]


def test_a_live_task(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    script = f"""
import socket, subprocess, sys, time
def load():
    client = socket.create_connection(("127.0.0.1", {server.getsockname()[1]}))
    client.sendall(b"12345")
    subprocess.Popen([sys.executable, "-c", "import time; print('ready', flush=True); time.sleep(60)"],
                     pass_fds=[client.fileno()])
    time.sleep(60)
load()
"""
    with server, process() as held:
        command = [sys.executable, script_in(tmp_path, script)]
        held.task.start(command, {"PATH": os.defpath}, str(tmp_path), 0o022, hook_in(tmp_path))
        held.task.release()
        held.until(lambda: b"ready" in held.output)
        inspected = inspect(held)
        assert inspected.state == "S"
        assert " in load\n" in inspected.stack
        assert inspected.kernel.startswith("CPU ")
        accepted, peer = server.accept()
        mine = "{}:{}".format(*server.getsockname())
        (describe,) = inspected.sockets
        assert read_connection(describe) == TcpConnection("{}:{}".format(*peer), mine, "ESTABLISHED", 0, 0)
        accepted.close()
        assert describe_hang({"worker-1": inspected}, [Member("worker-1", "worker-1", "127.0.0.1", 1, 2)]).startswith(
            "worker-1 is in user code (task.py:"
        )

        os.kill(held.task.pid, signal.SIGSTOP)
        held.until(lambda: "T (stopped)" in Path(f"/proc/{held.task.pid}/status").read_text())
        inspected = inspect(held)
        assert (inspected.state, inspected.stack) == ("T", "")

        os.kill(held.task.pid, signal.SIGKILL)
        held.until(lambda: held.exits)
        assert inspect(held).state == ""


def test_what_is_not_read_counts_and_stuck_ones_come_first() -> None:
    ours = []
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_server(("::1", 0), family=socket.AF_INET6) as six,
    ):
        for _ in range(3):
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            ours += [client, accepted]
        ours.append(socket.create_connection(six.getsockname()[:2]))
        ours[3].sendall(b"x" * 100)
        listed = [item for item in connections(os.getpid(), [os.getpid()]) if item.state != "LISTEN"]
        for item in ours:
            item.close()
    assert listed[0].unread == 100
    assert any(item.local.startswith("[::1]:") for item in listed)
    assert len(listed) >= 7
