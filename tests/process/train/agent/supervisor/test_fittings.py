from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import venv
from pathlib import Path

import psutil
import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Bundle
from train.agent.host.facts import Probe
from train.agent.protocol.records import Prepared, Refusal, Refused
from train.agent.supervisor.environment import HostEnvironment, create_host_environment, interface_of

SHOW = "import json, sys; print(json.dumps([sys.executable, sys.prefix, sys.argv[1:]]))"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_the_interface_of_an_address(family: socket.AddressFamily) -> None:
    for name, addresses in psutil.net_if_addrs().items():
        for address in (item.address.partition("%")[0] for item in addresses if item.family is family):
            if not address.startswith(("127.", "::1")):
                assert interface_of(address) == name.partition(":")[0]
    assert interface_of("127.0.0.9") == interface_of("::1") == "lo"
    assert interface_of("203.0.113.7") == interface_of("2001:db8::7") == interface_of("host.example") == ""


@pytest.mark.parametrize("quoted", [False, True])
def test_python_by_name_is_the_chosen_interpreter(tmp_path: Path, quoted: bool) -> None:
    directory = tmp_path / ("it's" if quoted else "env")
    venv.create(directory, with_pip=False, symlinks=True)
    chosen = str(directory / "bin" / "python")
    host_environment = create_host_environment(str(tmp_path / "bin"), chosen, "127.0.0.1", gpus=1)
    assert host_environment == HostEnvironment(chosen, (str(tmp_path / "bin"), str(directory / "bin")), "lo", 1)
    env = {"PATH": os.pathsep.join([*host_environment.directories, os.defpath])}
    for name in ("python", "python3"):
        line = f"{name} -c '{SHOW}' 'a b' '$HOME'"
        shown = subprocess.run(["sh", "-c", line], env=env, check=True, capture_output=True).stdout
        assert json.loads(shown) == [chosen, str(directory), ["a b", "$HOME"]]


# --- what a job needs -----------------------------------------------------------------------------------------------


def test_modules_are_looked_for_and_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "own"
    directory.mkdir()
    (directory / "there.py").write_text("raise SystemExit(3)\n")
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(directory)}
    probe = Probe(str(tmp_path / "probe.json"), env, str(tmp_path / "hook"))
    python = probe.interpreter(sys.executable)
    names = ["json", "there", "nowhere_at_all", "tmp", "sys"]  # the probe runs in /, where tmp is a directory
    assert probe.missing_modules(python, names) == ["nowhere_at_all", "tmp"]
    assert probe.missing_modules(python, []) == []
    monkeypatch.setattr("train.agent.host.facts.run_program", None)  # it is kept
    assert probe.missing_modules(python, names) == ["nowhere_at_all", "tmp"]


def test_prepare_reports_what_is_missing_and_which_computer_it_is(connect: Connect) -> None:
    answer = connect().prepare("j", Bundle("pass"), imports=["json", "nowhere_at_all"], dry_run=True)
    assert isinstance(answer, Prepared)
    assert answer.missing == ["nowhere_at_all"]
    assert answer.machine == os.uname().machine


def test_a_program_that_is_not_there_is_refused(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("sh", "ls", "cat", "mkdir", "mv", "dd", "head", "rm", "chmod"):  # what the agent comes with
        (tmp_path / "bin" / name).symlink_to(f"/bin/{name}")
    agent = connect(env={"PATH": str(tmp_path / "bin")})
    for program, hint in (
        ("no-such-program", "install it on the host"),
        ("/no/such/program", "install it on the host"),
        ("Rscript", "install it on the host: sudo apt-get install -y r-base-core"),
    ):
        answer = agent.prepare("j", Bundle("pass"), program=program, dry_run=True)
        assert isinstance(answer, Refused)
        assert (answer.kind, answer.hint) == (Refusal.PROGRAM, hint)
        assert answer.reason == f"{program} does not exist on this host"
