"""Hosts as users have them: a fleet of all kinds of SSH servers and accounts goes the whole way."""

from __future__ import annotations

import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.program import Program, find_paths, lines_of
from tests.wire.machines import Lab, host_pair, lab

pytestmark = pytest.mark.wire

TASK = """
import os
from pathlib import Path
rank = os.environ["FLEET_RANK"]
print(f"task {rank} is in", Path(os.environ["HOME"]).name, flush=True)
Path(os.environ["FLEET_MODEL_DIR"], f"weights-{rank}").write_text(rank * 100_000)
"""


def command(line: str) -> str:
    """Return the setting that runs this line, in the home directory, in place of what a client requests."""
    return f'ForceCommand cd "$HOME" && {line}\n'


def shell(name: str) -> str:
    """Return the setting of an account with this login shell."""
    return command(f'exec {name} -c "$SSH_ORIGINAL_COMMAND"')


@dataclass(frozen=True)
class Kind:
    """A kind of host.

    Attributes:
        sshd: Lines of its sshd_config.
        program: Program that this computer needs for it.
        key: Type of its host key.
        address: Its address, or empty.
    """

    sshd: str = ""
    program: str = "sh"
    key: str = "ed25519"
    address: str = ""


RUN = 'eval "$SSH_ORIGINAL_COMMAND"'
KINDS = {
    "dash": Kind(shell("dash"), "dash"),
    "tcsh": Kind(shell("tcsh"), "tcsh"),
    "fish": Kind(shell("fish"), "fish"),
    "prints-on-login": Kind(command(f"echo Welcome && echo to the cluster >&2 && {RUN}")),
    "sets-options-on-login": Kind(command(f"set -eu && umask 077 && unset LANG && {RUN}")),
    "one-session": Kind("MaxSessions 1\n"),
    "one-login-at-a-time": Kind("MaxStartups 1\n"),
    "no-sftp": Kind(command(f'case "$SSH_ORIGINAL_COMMAND" in *sftp*) exit 1 ;; esac; {RUN}')),
    "no-forwarding-no-terminal": Kind("DisableForwarding yes\nPermitTTY no\n"),
    "forced-wrapper": Kind(command('exec sh -c "$SSH_ORIGINAL_COMMAND"')),
    "slow-login": Kind('AuthorizedKeysCommand /bin/sh -c "sleep 1"\nAuthorizedKeysCommandUser root\n'),
    "re-keys-often": Kind("RekeyLimit 64K\n"),
    "banner": Kind("Banner /etc/passwd\n"),
    "old-algorithms": Kind("KexAlgorithms ecdh-sha2-nistp256\nCiphers aes128-ctr\nMACs hmac-sha1\n"),
    "rsa-host-key": Kind(key="rsa"),
    "ecdsa-host-key": Kind(key="ecdsa"),
    "ipv6": Kind(address="::1"),
}


def has_ipv6() -> bool:
    """Return whether this computer has the loopback address of IPv6."""
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lab]:
    """Start a machine of each kind whose program is installed, and two more that share a home directory."""
    with lab(tmp_path / "lab") as user:
        for name, kind in KINDS.items():
            if shutil.which(kind.program) and (not kind.address or has_ipv6()):
                pair = None if kind.key == "ed25519" else host_pair(kind.key, tmp_path)
                user.machine(name, pair=pair, first=kind.sshd, address=kind.address)
        shared = tmp_path / "shared"
        shared.mkdir()
        for name in ("shares-home-1", "shares-home-2"):
            user.machine(name, env={"HOME": str(shared)})
        user.add_known_hosts(*user.machines.values())
        yield user


def test_up_and_down_name_the_host_that_takes_long_to_answer(program: Program, tmp_path: Path) -> None:
    with lab(tmp_path / "lab") as user:
        user.add_known_hosts(user.machine("slow", first=command(f"sleep 3 && {RUN}")))
        ran = program.run("up", "--inventory", str(user.inventory("slow")))
        assert "waiting for SSH on worker-0" in ran.err
        assert "waiting for SSH on worker-0" in program.run("down", "--yes").err


def test_a_fleet_of_all_kinds_of_hosts_goes_the_whole_way(program: Program, home: Lab) -> None:
    names = list(home.machines)
    program.run("up", "--inventory", str(home.inventory(*names)))
    ran = program.run("exec", "--", "sh", "-c", "printf '%s\\n' \"$FLEET_NOTHING-$0\"", "a word")
    assert "-a word" in ran.text
    program.script("task.py", TASK)
    train = program.run("train", "task.py")
    logs = program.run("logs")
    for rank, name in enumerate(names):
        place = "shared" if name.startswith("shares") else "home"
        for output in (train, logs):
            assert lines_of(output, f"worker-{rank}") == [f"task {rank} is in {place}"], name
    program.run("pull", "--to", "here")
    pulled = {path.name: path.read_text() for path in program.directory.glob("here/**/weights-*")}
    assert pulled == {f"weights-{rank}": str(rank) * 100_000 for rank in range(len(names))}
    down = program.run("down", "--yes")
    assert f"{len(names)} hosts released; no files remain on them" in down.err
    homes = [*(home.machines[name].home for name in names), home.directory.parent / "shared"]
    assert [path for path in homes if find_paths(path, ".fleet*")] == []
