"""`fleet up --inventory`: existing hosts, from the first probe until all of fleet's files are deleted."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from provision.keys import fingerprint, generate_ed25519
from tests.program import PROGRAM, Program, find_paths, task_config, wait_for
from tests.wire.machines import USER, Lab, Machine, lab

pytestmark = pytest.mark.wire


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lab]:
    """Start two machines of a user; no host key is in known_hosts."""
    with lab(tmp_path / "lab") as user:
        for name in ("gpu1", "gpu2"):
            user.machine(name)
        yield user


def machines(home: Lab) -> tuple[Machine, Machine]:
    return home.machines["gpu1"], home.machines["gpu2"]


# --- life cycle -------------------------------------------------------------------------------------------------


def test_down_deletes_all_files_and_ends_all_processes_on_existing_hosts(program: Program, home: Lab) -> None:
    first, second = machines(home)
    inventory = str(home.inventory("gpu1", "gpu2"))
    before = home.known_hosts.read_text()
    up = program.run("up", "--inventory", inventory, "--accept-new")
    for machine in (first, second):
        assert f"{machine.name} (worker-" in up.err
        assert fingerprint(machine.key) in up.err
    assert home.known_hosts.read_text() == before
    program.script(
        "task.py",
        "import os, time\nprint('TF_CONFIG=' + os.environ['TF_CONFIG'], flush=True)\ntime.sleep(600)\n",
    )
    program.run("train", "task.py", "--detach")
    homes = [machine.home for machine in (first, second)]
    logs = "**/attempt-1/log"
    wait_for("output", lambda: all(any(log.read_text() for log in find_paths(home, logs)) for home in homes))
    lines = [line for line in program.run("logs", code=101).text.splitlines() if "TF_CONFIG=" in line]
    configs = [task_config(line.partition(" | ")[2]) for line in sorted(lines)]
    assert [config["task"]["index"] for config in configs] == [0, 1]
    assert first.files_in_home()
    assert second.files_in_home()
    down = program.run("down", "--yes")
    assert "2 hosts released; no files remain on them" in down.err
    assert first.files_in_home() == second.files_in_home() == []
    assert not list((program.state / "static").iterdir())
    assert "no fleet" in program.run("status", code=102).err
    wait_for("the end of the sessions", lambda: not any(running(machine) for machine in machines(home)))


def running(machine: Machine) -> list[int]:
    """Return the processes that were started on a machine, without those of its sshd."""
    processes = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            mine = f"HOME={machine.home}".encode() in (directory / "environ").read_bytes().split(b"\0")
            if mine and directory.name != str(os.getpid()):
                processes.append(int(directory.name))
    return processes


def test_a_limit_selects_a_host_behind_a_bastion(program: Program, home: Lab) -> None:
    bastion = home.machine("bastion")
    home.add_known_hosts(bastion)
    config = home.config("Host gpu*\n  ProxyJump bastion\n")
    inventory = home.inventory("gpu1", "gpu2", config=config)
    program.script(
        "fleet.toml", f'[static]\ninventory = "{os.path.relpath(inventory, program.directory)}"\nlimit = "lab[1]"\n'
    )
    program.run("up", "--accept-new")
    _, status = program.run("status", "-o", "json").events
    assert [host["name"] for host in status["hosts"]] == ["worker-0"]
    program.script("task.py", "import os\nprint(os.environ['HOME'])\n")
    assert str(machines(home)[1].home) in program.run("train", "task.py").text
    assert bastion.log.count("Accepted publickey") >= 2
    program.run("down", "--yes")
    assert machines(home)[1].files_in_home() == []


# --- host keys --------------------------------------------------------------------------------------------------


def test_unknown_host_keys_are_refused_without_a_terminal(program: Program, home: Lab) -> None:
    up = program.run("up", "--yes", "--inventory", str(home.inventory("gpu1", "gpu2")), code=2)
    for machine in machines(home):
        assert fingerprint(machine.key) in up.err
        assert machine.files_in_home() == []
    assert "the host keys of gpu1, gpu2 are unknown, and confirmation requires a terminal" in up.err
    assert "--accept-new" in up.err
    assert not list((program.state / "fleets").glob("*/"))
    assert not list((program.state / "static").iterdir())


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("", 103)])
def test_the_user_is_asked_once_for_all_host_keys(program: Program, home: Lab, answer: str, code: int) -> None:
    output, actual_code = run_at_terminal(
        program, answer, "up", "-o", "lines", "-i", str(home.inventory("gpu1", "gpu2"))
    )
    assert actual_code == code, output
    assert output.count("[y/N]") == 1
    assert "Are these the keys of gpu1, gpu2?" in output
    assert all(fingerprint(machine.key) in output for machine in machines(home))
    assert bool((program.state / "fleets/default").is_dir()) == (code == 0)


def run_at_terminal(program: Program, answer: str, *arguments: str) -> tuple[str, int]:
    """Run the program on a terminal, where `answer` is typed; return its output and its exit code."""
    near, far = pty.openpty()
    with subprocess.Popen(
        [str(PROGRAM), *arguments], cwd=program.directory, env=program.environment({"TERM": "dumb"}),
        stdin=far, stdout=far, stderr=far,
    ) as process:  # fmt: skip
        os.close(far)
        output = b""
        with contextlib.suppress(OSError):  # raised when the program has closed its end
            while data := os.read(near, 4096):
                output += data
                if b"[y/N]" in data:
                    os.write(near, f"{answer}\n".encode())
        code = process.wait(60)
    os.close(near)
    return output.decode(), code


def test_a_fleet_keeps_its_hosts_and_their_accepted_keys(program: Program, home: Lab) -> None:
    inventory = home.inventory("gpu1", "gpu2")
    program.run("up", "--inventory", str(inventory), "--accept-new")
    assert "worker-1 released; it has 1 worker now" in program.run("up", "--workers", "1").err
    assert machines(home)[0].files_in_home()
    assert not machines(home)[1].files_in_home()
    home.inventory("gpu2", "gpu1")
    assert "it is worker-0 of the fleet already" in program.run("up", "--workers", "2", code=2).err
    home.inventory("gpu1", "gpu2")
    program.run("up", "--inventory", str(inventory), "--workers", "2", "--accept-new")
    home.inventory("gpu2", "gpu1")
    assert "every host answers" in program.run("up").err
    up = program.run("up", "--inventory", str(inventory), code=2)
    assert "hosts gpu2, gpu1 requested, the fleet has gpu1, gpu2" in up.err
    inventory.unlink()
    assert "every host answers" in program.run("up").err
    home.inventory("gpu1", "gpu2")
    home.stop(machines(home)[0])
    home.machine("gpu1", port=machines(home)[0].port)
    up = program.run("up", "--accept-new", code=13)
    assert "has a different host key than before" in up.err
    assert "ssh-keygen -R" in up.err


def test_keys_that_known_hosts_does_not_confirm_are_refused(program: Program, home: Lab) -> None:
    first, second = machines(home)
    kind, text, *_ = generate_ed25519("other").public.split()
    inventory = str(home.inventory("gpu1", "gpu2"))
    different = f"[{first.address}]:{first.port} {kind} {text}\n{second.known_hosts_line}"
    revoked = f"@revoked {first.known_hosts_line}{second.known_hosts_line}"
    authority = f"@cert-authority [127.77.0.*]:* {first.key}\n"
    for content, options, code, message in (
        (different, ("--accept-new",), 13, "has a different host key than before"),
        (revoked, ("--accept-new",), 13, "presented a host key that your known_hosts revokes"),
        (authority, (), 2, "fleet does not read host certificates"),
    ):
        home.known_hosts.write_text(content)
        assert message in program.run("up", "--inventory", inventory, *options, code=code).err
        assert first.files_in_home() == second.files_in_home() == []


def test_strict_host_key_checking_is_honored(program: Program, home: Lab) -> None:
    config = home.config("Host gpu*\n  StrictHostKeyChecking yes\n")
    inventory = str(home.inventory("gpu1", config=config))
    assert "StrictHostKeyChecking is yes" in program.run("up", "--inventory", inventory, code=2).err
    home.config("Host gpu*\n  StrictHostKeyChecking no\n")
    assert "is new; accepted its key" in program.run("up", "--inventory", inventory).err


# --- user errors ---------------------------------------------------------------------------------------------


def test_invalid_arguments_and_inventories_change_nothing(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    first, _ = machines(home)
    same = f"gpu3 ansible_host={first.address} ansible_port={first.port}"
    inventory = home.inventory("gpu1", "gpu2", "gpu9 ansible_host=gpu9.invalid", same)
    cases = {
        (): "gpu9.invalid has no address",
        ("--limit", "none"): "none",
        (
            "--limit",
            "gpu1:gpu3",
        ): f"hosts 'gpu1' and 'gpu3' are the same: both are {first.address} on port {first.port}",
        ("--limit", "gpu1", "--workers", "2"): "2 workers requested, but --limit gpu1 selects 1 host",
        ("--provider", "local"): "does not support --inventory",
        ("--provider", "gce"): "does not support --inventory",
        ("--spot",): "several providers: --spot selects Compute Engine, --inventory selects existing hosts",
    }
    for options, message in cases.items():
        ran = program.run("up", "--inventory", str(inventory), *options, code=2)
        assert message in ran.err
        assert len(ran.err.splitlines()) <= 4
    assert "hosts.ini:4" in program.run("up", "-i", str(inventory), code=2).err
    assert "--inventory FILE" in program.run("up", "--provider", "static", code=2).err
    assert not (program.state / "fleets").exists()
    assert [machine.files_in_home() for machine in machines(home)] == [[], []]


def test_a_host_that_is_down_and_a_missing_interpreter_are_named(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    plain = str(home.inventory("gpu1", "gpu2 ansible_python_interpreter=/opt/none/python", name="one.ini"))
    up = program.run("up", "--inventory", plain, code=14)
    assert "worker-1" in up.err
    assert "has no /opt/none/python that runs" in up.err
    home.stop(machines(home)[1])
    up = program.run("up", "--inventory", str(home.inventory("gpu1", "gpu2")), code=13)
    assert "worker-1" in up.err
    assert machines(home)[0].files_in_home() == []
    assert not (program.state / "fleets/default").exists()


def test_an_expired_password_is_named_with_the_login_that_changes_it(program: Program, home: Lab) -> None:
    says = "echo WARNING: Your password has expired. >&2; echo Password change required but no TTY available. >&2"
    expired = home.machine("gpu3", first=f"ForceCommand {says}; exit 1\n")  # as session.c of OpenSSH
    home.add_known_hosts(expired)
    up = program.run("up", "--inventory", str(home.inventory("gpu3")), code=14)
    assert f"the password of {USER} on worker-0 ({expired.address}:{expired.port}) has expired" in up.err
    assert f"next:  ssh -i {home.key} -p {expired.port} {USER}@{expired.address}\n" in up.err


def test_a_host_with_only_a_post_quantum_key_exchange_is_named(program: Program, home: Lab) -> None:
    newer = home.machine("gpu3", first="KexAlgorithms sntrup761x25519-sha512@openssh.com\n")
    home.add_known_hosts(newer)
    up = program.run("up", "--inventory", str(home.inventory("gpu3")), code=13)
    assert "worker-0" in up.err
    assert "hint:  let its SSH server offer one of both, such as the key exchange curve25519-sha256" in up.err
    assert "fleet up" not in up.err


def test_down_logs_in_once_on_each_host(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    program.run("up", "--inventory", str(home.inventory("gpu1", "gpu2")))
    before = [machine.log.count("Accepted publickey") for machine in machines(home)]
    program.run("down", "--yes")
    assert [machine.log.count("Accepted publickey") for machine in machines(home)] == [at + 1 for at in before]
    assert [machine.files_in_home() for machine in machines(home)] == [[], []]


def test_down_succeeds_on_the_other_hosts_if_a_host_is_lost(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    program.run("up", "--inventory", str(home.inventory("gpu1", "gpu2")))
    home.stop(machines(home)[1])
    down = program.run("down", "--yes")
    assert "files of fleet in ~/.fleet/default-worker-1-" in down.err
    assert "files remain on 1" in down.err
    assert machines(home)[0].files_in_home() == []
    assert not (program.state / "fleets/default").exists()


def test_two_fleets_share_a_host_whose_key_is_listed_without_a_port(program: Program, home: Lab) -> None:
    first, _ = machines(home)
    home.known_hosts.write_text(f"{first.address} {first.key}\n")
    inventory = str(home.inventory("gpu1", "gpu2"))
    for name in ("default", "other"):
        up = program.run("up", "--inventory", inventory, "--workers", "1", "--fleet", name)
        assert "is new" not in up.err
    program.run("down", "--yes", "--fleet", "default")
    assert len(list((first.home / ".fleet").iterdir())) == 1
    program.run("down", "--yes", "--fleet", "other")
    assert first.files_in_home() == []


def test_gc_releases_hosts_without_a_fleet_record(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    program.run("up", "--inventory", str(home.inventory("gpu1")))
    (program.state / "fleets/default").rename(program.directory / "lost")
    assert machines(home)[0].files_in_home()
    program.run("gc", "--yes")
    assert machines(home)[0].files_in_home() == []
    assert not list((program.state / "static").iterdir())


# --- exported configuration --------------------------------------------------------------------------------------


def test_other_programs_reach_the_same_hosts(program: Program, home: Lab) -> None:
    home.add_known_hosts(*machines(home))
    program.run("up", "--inventory", str(home.inventory("gpu1", "gpu2")))
    config = home.write("exported", program.run("inventory", "--format", "ssh-config").text)
    command = ["ssh", "-F", str(config), "-o", "BatchMode=yes", "default-worker-1", "echo $HOME"]
    ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=True)
    assert ran.stdout == f"{machines(home)[1].home}\n"
    again = home.write("exported.ini", program.run("inventory", "--format", "ansible").text)
    program.run("down", "--yes")
    other = Program(program.state.with_name("other-state"), program.directory)
    # The pinned keys were deleted with the fleet.
    other.run("up", "--inventory", str(again), "--accept-new")
    other.run("down", "--yes")
