"""State directories that other users can write to, damaged files in them, and files that must not be uploaded."""

from __future__ import annotations

import os
import shlex
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.program import PROGRAM, Program, read_files

pytestmark = pytest.mark.wire


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# --- permissions -------------------------------------------------------------------------------------------------


def test_only_the_owner_can_read_state_directories(program: Program, tmp_path: Path) -> None:
    program.state = tmp_path / "home" / ".local" / "state" / "fleet"
    command = f"umask 000; exec '{PROGRAM}' up --workers 1"
    subprocess.run(["sh", "-c", command], env=program.environment(), check=True, capture_output=True, timeout=120)
    made = [program.state, *program.state.parents[:3], *(path for path in program.state.glob("*") if path.is_dir())]
    assert {path.name: oct(mode(path)) for path in made} == {path.name: "0o700" for path in made}


@pytest.mark.parametrize("bits", [0o720, 0o702, 0o777])
def test_a_state_directory_that_other_users_can_write_to_is_refused(program: Program, bits: int) -> None:
    program.state.mkdir()
    program.state.chmod(bits)
    ran = program.run("status", code=2)
    assert f"other users may write to the state directory {program.state}" in ran.err
    command = ran.err.partition("next: ")[2].strip()
    subprocess.run(command, shell=True, check=True)
    program.run("status", code=102)


def test_a_state_directory_of_another_user_is_refused(program: Program) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    program.state.mkdir(mode=0o700)
    os.chown(program.state, 12345, -1)
    try:
        assert "belongs to another user (uid 12345)" in program.run("up", code=2).err
    finally:
        os.chown(program.state, 0, -1)


# --- damaged files ----------------------------------------------------------------------------------------------

DAMAGES: dict[str, Callable[[Path], object]] = {
    "random": lambda path: path.write_bytes(os.urandom(400)),
    "nested": lambda path: path.write_bytes(b"[" * 100_000),
    "empty": lambda path: path.write_bytes(b""),
}


def test_a_damaged_fleet_does_not_hide_the_others(program: Program) -> None:
    program.run("up", "--workers", "1", "--fleet", "good")
    program.run("up", "--workers", "1", "--fleet", "bad")
    record = program.state / "fleets" / "bad" / "fleet.json"
    for damage in ("random", "nested"):
        DAMAGES[damage](record)
        ran = program.run("status", code=14)
        assert "worker-0  ready" in ran.text
        assert "the record of fleet 'bad' cannot be read" in ran.err
        assert "       fleet down --fleet bad" in ran.err
    events = program.run("status", "-o", "json", code=14).events
    assert [event["name"] for event in events if event["event"] == "fleet_status"] == ["bad", "good"]
    program.script("task.py", "print('ran')\n")
    for command in ("train", "logs", "up"):
        words = ["task.py"] if command == "train" else []
        ran = program.run(command, *words, "--fleet", "bad", code=14)
    restore, down = ran.err.partition("next:")[2].split("\n")[:2]
    assert down.strip() == "fleet down --fleet bad"
    subprocess.run(shlex.split(restore), check=True)
    assert b"ran" in program.run("train", "task.py", "--fleet", "bad").out


def test_a_damaged_private_key_is_never_replaced(program: Program) -> None:
    program.run("up", "--workers", "1")
    directory = program.state / "fleets" / "default"
    (directory / "id_ed25519").write_bytes(b"no key")
    assert "the key of fleet 'default' cannot be read" in program.run("up", "--workers", "1", code=14).err
    assert (directory / "id_ed25519").read_bytes() == b"no key"


def test_each_damaged_file_is_reported(program: Program) -> None:
    """No command ends with a bug report; down always succeeds."""
    program.script("task.py", "print('ran')\n")
    for damage in ("random", "nested"):
        program.run("up", "--workers", "1")
        program.run("train", "task.py")
        files = [path for path, _ in read_files(program.state) if "local" not in path.parts]
        assert {"fleet.json", "journal", "id_ed25519", "known_hosts"} <= {path.name for path in files}
        for path in (*files, *program.state.glob("local/*.json")):
            DAMAGES[damage](path)
        for command in (["status"], ["up", "--workers", "1"], ["train", "task.py"], ["logs"], ["stop"]):
            ran = program.run(*command, code=None)
            assert ran.code in (0, 13, 14, 102), f"{command}: {ran.code} {ran.err}"
        program.run("down", "--yes")
        assert not program.processes()


# --- secrets ----------------------------------------------------------------------------------------------------


def test_files_with_secrets_are_not_uploaded(program: Program) -> None:
    program.run("up", "--workers", "1")
    program.script("task.py", "import os\nprint(sorted(os.listdir()), os.environ['TOKEN'], os.environ['KIND'])\n")
    program.script("token", "s3cret\n")
    program.script("config/.env", "KIND=tabby\n")
    (program.directory / "link").symlink_to("token")
    ran = program.run("train", "task.py", "--secret", "TOKEN=@token", "--env-file", "config/.env")
    assert "['config', 'task.py'] s3cret tabby" in ran.text
    (note,) = [line for line in ran.err.splitlines() if "not uploaded" in line]
    for name in ("config/.env", "link", "token"):
        assert f"{name} (it holds values of --secret or --env-file)" in note
    pushed = list(read_files(program.state / "local"))
    assert not [path for path, content in pushed if b"s3cret" in content and path.name != "log"]
    assert not [path for path, content in pushed if b"KIND=tabby" in content]
