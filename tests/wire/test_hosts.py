"""Commands that use the hosts of a fleet directly, against real OpenSSH servers."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import psutil
import pytest

from tests.program import PROGRAM, Program, wait_for

pytestmark = pytest.mark.wire

WAITS = """
import time
print("started", flush=True)
time.sleep(600)
"""


@contextmanager
def at_a_terminal(program: Program, *arguments: str) -> Iterator[tuple[subprocess.Popen[bytes], BinaryIO]]:
    """Run a command at a terminal of 31 lines and 97 columns; yield it and the other end of the terminal."""
    master, slave = pty.openpty()
    with os.fdopen(master, "r+b", buffering=0) as terminal:
        resize(terminal, 31, 97)

        def take_terminal() -> None:
            os.setsid()
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        process = subprocess.Popen(
            [str(PROGRAM), *arguments], cwd=program.directory, env=program.environment({"TERM": "dumb"}),
            stdin=slave, stdout=slave, stderr=slave, preexec_fn=take_terminal,  # noqa: PLW1509 - it only makes system calls
        )  # fmt: skip
        os.close(slave)
        try:
            yield process, terminal
        finally:
            process.kill()
            process.wait()


def resize(terminal: BinaryIO, lines: int, columns: int) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))


def read_until(terminal: BinaryIO, text: bytes) -> bytes:
    shown = b""
    while text not in shown:
        shown += terminal.read(4096)
    return shown


def test_a_shell_on_a_host_has_the_terminal(pair: Program) -> None:
    """Size, resizes, Ctrl-C, and the exit code of the remote shell."""
    with at_a_terminal(pair, "ssh", "1") as (process, terminal):
        terminal.write(b"stty size\n")
        read_until(terminal, b"31 97")
        terminal.write(b"""until [ "$(stty size)" = "40 120" ]; do sleep 0.1; done; echo resi""zed\n""")
        resize(terminal, 40, 120)
        read_until(terminal, b"resized")
        terminal.write(b"""sh -c 'trap "exit 3" INT; echo be""gun; while :; do sleep 0.1; done'; echo ended $?\n""")
        read_until(terminal, b"begun")
        terminal.write(b"\x03")
        read_until(terminal, b"ended 3")
        terminal.write(b"exit 7\n")
        while process.poll() is None:  # ssh waits until its output was read
            try:
                terminal.read(4096)
            except OSError:  # the terminal is closed
                process.wait()
    assert process.returncode == 7


def test_a_command_runs_on_a_host_and_in_the_environment_of_a_task(pair: Program) -> None:
    words = ["printf", "%s|", "a b", "$HOME", "it's; exit 3"]
    assert pair.run("ssh", "1", "--", *words).text == "a b|$HOME|it's; exit 3|"
    assert (
        pair.run("ssh", "worker-0", "--", "sh", "-c", "echo to stderr >&2; exit 255", code=255).messages
        == "to stderr\n"
    )
    assert "no host 'worker-7'" in pair.run("ssh", "7", code=102).err

    pair.script("task.py", WAITS)
    pair.run("train", "-d", "--env", "GIVEN=a b", "--secret", "HIDDEN", "task.py", env={"HIDDEN": "s3cret"})
    show = (
        "sh",
        "-c",
        'pwd; echo "$FLEET_RANK $GIVEN $HIDDEN [$FLEET_HOOK$FLEET_TASK_DIRECTORY]"; echo "$TF_CONFIG"',
    )
    directory, values, config = pair.run("ssh", "worker-1", "--job", "--", *show).text.splitlines()
    assert (Path(directory) / "task.py").read_text() == WAITS
    assert values == "1 a b s3cret []"
    assert "has no job 'nothing'" in pair.run("ssh", "--job", "nothing", code=102).err
    pair.run("stop", "--grace", "0s")
    again = pair.run("ssh", "--job", "-1", "1", "--", *show).text.splitlines()
    assert again == [directory, "1 a b  []", config]  # secrets are not stored


def test_ssh_reaches_hosts_by_name(pair: Program, tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "config"
    [_, changed] = pair.run("ssh-config", "--install", "-o", "json", env={"HOME": str(tmp_path)}).events
    assert changed["file"] == str(file)
    assert changed["hosts"] == ["default-worker-0", "default-worker-1"]
    ssh = ["ssh", "-F", str(file), changed["hosts"][1], "echo works"]
    assert subprocess.run(ssh, capture_output=True, check=True).stdout == b"works\n"
    assert pair.run("ssh-config").text == pair.run("inventory", "--format", "ssh-config").text
    pair.run("ssh-config", "--remove", env={"HOME": str(tmp_path)})
    assert file.read_bytes() == b""


def test_a_command_runs_on_all_hosts(pair: Program) -> None:
    ran = pair.run("exec", "--", "sh", "-c", "printf 'same\\nlines'; echo fails >&2; exit $1", "name", "4", code=4)
    assert ran.text == "worker-[0-1] | same\nworker-[0-1] | lines\n"
    assert ran.messages == "worker-[0-1] | fails\nworker-[0-1]: exit code 4\n"
    assert (
        sorted(pair.run("exec", "--", "sh", "-c", "echo $SSH_CONNECTION").text.splitlines())[1][:11] == "worker-1 | "
    )
    assert pair.run("exec", "--worker", "1", "--", "printf", "%s|", "a b", "$HOME").text == "a b|$HOME|"
    many = pair.run("exec", "--", "sh", "-c", "yes | head -c 1000000").text.splitlines()
    assert [many.count(f"worker-{index} | y") for index in (0, 1)] == [500_000, 500_000]
    assert "nosuch: command not found" in pair.run("exec", "--", "nosuch", code=127).err
    assert pair.run("exec", "--", "sh", "-c", "kill -KILL $$", code=137).messages == "worker-[0-1]: exit code 137\n"


def test_files_are_pushed_to_the_hosts(pair: Program) -> None:
    directory, target = pair.directory / "a b\n", pair.directory / "to" / "here"
    directory.mkdir()
    (directory / "data").write_bytes(os.urandom(1 << 20))
    (directory / "link").symlink_to("data")
    pushed = pair.run("push", str(directory), "--to", str(target), "--worker", "1", "-o", "json").events
    assert pushed[-1]["hosts"] == [{"host": "worker-1", "directory": str(target), "written": 1, "error": ""}]
    assert [event["sent"] for event in pushed if event["event"] == "push_progress"][-1] == 1 << 20
    assert (target / directory.name / "link").read_bytes() == (directory / "data").read_bytes()
    again = pair.run("push", str(directory), "--to", str(target))
    assert f"worker-[0-1]: 1 file, 1.0 MiB, in {target} (1 unchanged)\n" in again.err
    assert "fleet down does not delete these files" in again.err
    assert "'missing' does not exist" in pair.run("push", "missing", code=2).err
    assert "no host 'worker-7'" in pair.run("push", "--worker", "7", str(directory), code=102).err
    refused = pair.run("push", str(directory), "--to", "/proc/here", code=14)
    assert "cannot push to all hosts: worker-[0-1]: cannot write to /proc/here" in refused.err


def test_ctrl_c_ends_a_command_on_all_hosts(pair: Program) -> None:
    command = 'echo $$ > "$(mktemp -p "$1")"; sleep 600; true'
    running = pair.start("exec", "--", "sh", "-c", command, "name", str(pair.directory))
    texts = wait_for("the command on both hosts", lambda: _written(pair.directory, 2) or None)
    running.send_signal(signal.SIGINT)
    assert "interrupted" in pair.finish(running, code=103).err
    wait_for("its end", lambda: not any(psutil.pid_exists(int(text)) for text in texts))


def _written(directory: Path, count: int) -> list[str]:
    texts = [text for path in directory.iterdir() if (text := path.read_text())]
    return texts if len(texts) == count else []


def test_a_host_that_does_not_answer_is_an_error(pair: Program) -> None:
    for listener in pair.listeners("worker-1"):
        listener.kill()
    ran = pair.run("exec", "--", "echo", "works", code=13)
    assert ran.text == "worker-0 | works\n"
    assert "cannot run the command on all hosts: worker-1 (127." in ran.err
    pair.script("data", "some")
    pushed = pair.run("push", str(pair.directory / "data"), "--to", str(pair.directory / "to"), code=13)
    assert f"worker-0: 1 file, 4 B, in {pair.directory / 'to'}\n" in pushed.err
    assert "cannot push to all hosts: worker-1 (127." in pushed.err
    failed = pair.run("ssh", "1", "--", "true", code=13)
    assert "cannot open a session: worker-1 (127." in failed.err
    assert "next:  fleet up\n" in failed.err
    pair.run("up")
    pair.run("ssh", "1", "--", "true")
