"""Programs that fleet.toml and inventories name run on this computer only after the user accepted them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.program import Program, lines_of
from tests.wire.machines import Lab, lab
from tests.wire.test_inventory import run_at_terminal

pytestmark = pytest.mark.wire


def python_of(program: Program) -> Path:
    """Return the file that shows that the interpreter of a fleet.toml ran, which is written above the directory."""
    mark = program.directory.parent / "python-ran"
    python = program.directory.parent / "python"
    python.write_text(f'#!/bin/sh\ntouch {mark}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (program.directory.parent / "fleet.toml").write_text(f'[fleet]\npython = "{python}"\nworkers = 1\n')
    return mark


def test_the_interpreter_of_a_settings_file_is_named_with_its_file_and_asked_about_once(program: Program) -> None:
    mark = python_of(program)
    settings = program.directory.parent / "fleet.toml"
    shown = program.run("up", "--dry-run").err
    assert f"settings: {settings}\n" in shown
    assert f"{settings} names a program to run on this computer: python {mark.parent / 'python'}" in shown
    refused = program.run("up", "--yes", code=2)
    assert "confirmation requires a terminal" in refused.err
    assert "--allow-programs" in refused.err
    assert "python-ran" not in refused.err
    for command in (("doctor",), ("status",), ("up", "--dry-run", "--allow-programs")):
        program.run(*command, code=None)
    assert not mark.exists()
    output, code = run_at_terminal(program, "n", "up", "-o", "lines")
    assert (code, output.count("[y/N]"), mark.exists()) == (103, 1, False), output
    output, code = run_at_terminal(program, "y", "up", "-o", "lines")
    assert (code, output.count("[y/N]"), mark.exists()) == (0, 1, True), output
    program.run("down", "--yes")
    assert "names a program" not in program.run("up").err  # accepted
    program.run("down", "--yes")
    mark.with_name("python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    assert "names a program" in program.run("up", code=2).err


def test_an_interpreter_that_changes_while_the_fleet_is_up_does_not_run(program: Program) -> None:
    mark = python_of(program)
    program.run("up", "--allow-programs")
    mark.unlink()
    mark.with_name("python").write_text(f'#!/bin/sh\ntouch {mark}; exec {sys.executable} "$@"\n')
    for command in (("exec", "--", "true"), ("ssh", "0", "--", "true"), ("jobs",), ("up", "--yes")):
        refused = program.run(*command, code=None)
        assert refused.code != 0, command
    assert not mark.exists()
    refused = program.run("exec", "--", "true", code=2)
    assert "what runs on this computer for worker-0 has changed since you accepted it" in refused.err
    assert "next:  fleet up" in refused.err
    program.run("up", "--allow-programs")
    program.run("exec", "--", "true")
    program.run("down", "--yes")


def test_a_typed_interpreter_is_not_asked_about(program: Program) -> None:
    python_of(program)
    assert "names a program" not in program.run("up", "--dry-run", "--python", sys.executable).err


def test_scripts_run_in_the_active_environment_if_it_has_tensorflow(program: Program, tmp_path: Path) -> None:
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "tensorflow").mkdir()
    (site / "tensorflow" / "__init__.py").touch()
    program.script("task.py", "import sys\nprint('PREFIX', sys.prefix)\n")
    created = program.run("up", "--workers", "1", env={"VIRTUAL_ENV": str(environment)})
    python = environment / "bin" / "python"
    assert f"scripts run with {python}, the interpreter of the active environment" in created.err
    ran = program.run("train", "task.py")
    assert lines_of(ran, "worker-0")[-1] == f"PREFIX {environment}"
    assert "already up with other settings" not in program.run("up").err  # also if it is not active any more


def test_an_ssh_configuration_of_an_inventory_runs_nothing_before_it_is_accepted(
    program: Program, tmp_path: Path
) -> None:
    mark = tmp_path / "ran"
    with lab(tmp_path / "lab") as home:
        home.machine("gpu1")
        config = configured(home, mark)
        inventory = home.inventory("gpu1", config=config)
        program.script("fleet.toml", f'[static]\ninventory = "{inventory}"\n')
        shown = program.run("up", "--dry-run").err
        assert f'{inventory} names a program to run on this computer: -F {config}: Match exec "touch' in shown
        for command in (("up", "--yes"), ("doctor",), ("status",), ("up", "--dry-run", "--allow-programs")):
            ran = program.run(*command, code=None)
            assert f"touch {mark}" not in ran.err.partition("next:")[2]
        assert not mark.exists()
        program.run("up", "--accept-new", env={"FLEET_ALLOW_PROGRAMS": "1"})
        assert mark.exists()
        program.run("status")
        config.write_text(config.read_text().replace("touch", "sleep 0; touch"))
        mark.unlink()
        for command in (("status",), ("exec", "--", "true"), ("up", "--dry-run")):
            program.run(*command, code=None)
        assert "sleep 0; touch" in program.run("up", code=2).err
        assert not mark.exists()
        program.run("up", "--allow-programs")
        program.run("down", "--yes")


@pytest.mark.parametrize("changed", ["line", "included file", "script", "program of PATH"])
def test_a_route_that_changes_while_the_fleet_is_up_runs_nothing(
    program: Program, tmp_path: Path, changed: str
) -> None:
    """The stored proxy of a host reads its files at each connection."""
    mark = tmp_path / "ran"
    with lab(tmp_path / "lab") as home:
        home.add_known_hosts(home.machine("bastion"), home.machine("gpu1"))
        included, script = home.write("included", ""), home.write("route", "#!/bin/sh\n")
        tool = home.write("tools/carry", f'#!/bin/sh\nexec ssh -F {home.directory}/config -W "$1:$2" bastion\n')
        tool.chmod(0o755)
        jump = "ProxyJump bastion" if changed in ("line", "included file") else f"ProxyCommand carry %h %p {script}"
        config = home.config(f"Include {included}\nHost gpu1\n  {jump}\n")
        env = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
        inventory = home.inventory("gpu1", config=config)
        program.run("up", "--inventory", str(inventory), "--allow-programs", env=env)
        program.run("exec", "--", "true", env=env)
        harm = f'Match exec "touch {mark}"\n'
        file, text = {
            "line": (config, harm + config.read_text()),
            "included file": (included, harm),
            "script": (script, f"#!/bin/sh\ntouch {mark}\n"),
            "program of PATH": (tool, tool.read_text().replace("exec", f"touch {mark}; exec")),
        }[changed]
        file.write_text(text)
        for command in (("exec", "--", "true"), ("ssh", "0", "--", "true")):
            refused = program.run(*command, code=2, env=env)
            assert "what runs on this computer for worker-0 has changed since you accepted it" in refused.err
            assert "next:  fleet up" in refused.err
        for other in ("status", "jobs", "logs"):
            program.run(other, code=None, env=env)
        assert "names a program" in program.run("up", "--yes", code=2, env=env).err
        assert not mark.exists()
        program.run("up", "--allow-programs", env=env)
        program.run("exec", "--", "true", env=env)
        program.run("down", "--yes", env=env)


@pytest.mark.parametrize("word", ["~no-such-user/proxy", "/proc/self/mem"])
def test_a_proxy_command_that_cannot_be_read_is_one_sentence(program: Program, word: str) -> None:
    program.script("hosts.ini", f"w0 ansible_host=127.0.0.1 ansible_ssh_extra_args='-o ProxyCommand={word}'\n")
    ran = program.run("up", "-i", "hosts.ini", "--dry-run", code=None)
    assert "internal error" not in ran.err
    assert "Traceback" not in ran.err
    assert ("/proc/self/mem cannot be read" in ran.err) == (word == "/proc/self/mem")


def test_an_inventory_script_runs_only_if_it_was_typed(program: Program, tmp_path: Path) -> None:
    """The program of Ansible is a stand-in: it runs the script, and writes a list in YAML."""
    mark = tmp_path / "ran"
    script = program.script("hosts", f"#!/bin/sh\ntouch {mark}\n")
    tool = tmp_path / "tools" / "ansible-inventory"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\n"$2" && echo "gpu: {hosts: {unknown.invalid: }}" >"$6"\n')
    script.chmod(0o755)
    tool.chmod(0o755)
    refused = program.run("up", "--inventory", str(script), code=2)
    assert "is executable; dynamic inventories are not supported" in refused.err
    assert "ansible-inventory, which reads it, is not installed" in refused.err
    env = {"PATH": f"{tool.parent}:{os.environ['PATH']}"}
    program.run("up", "--inventory", str(script), "--dry-run", code=2, env=env)
    program.script("fleet.toml", f'[static]\ninventory = "{script}"\n')
    refused = program.run("up", "--yes", code=2, env=env)
    assert f"ansible-inventory -i {script.name} --list --yaml --output hosts.yml\n" in refused.err
    assert not mark.exists()
    ran = program.run("up", "--inventory", str(script), "--yes", code=2, env=env)
    assert "host 'unknown.invalid'" in ran.err
    assert mark.exists()


def configured(home: Lab, mark: Path) -> Path:
    return home.config(f'Match exec "touch {mark}"\n  Compression no\n')


@pytest.mark.parametrize("option", ["-o ProxyCommand=\\'touch {mark}\\'", "-F {config}"])
def test_no_next_line_offers_a_program_of_an_inventory(program: Program, tmp_path: Path, option: str) -> None:
    mark, config = tmp_path / "ran", tmp_path / "config"
    config.write_text(f'Match exec "touch {mark}"\n')
    words = option.format(mark=mark, config=config).replace("\\'", "'")
    program.script("hosts.ini", f'w0 ansible_host=127.0.0.1 ansible_ssh_extra_args="{words}"\n')
    env = {"SSH_AUTH_SOCK": ""}
    for command in (("--dry-run",), (), ("--yes",)):
        ran = program.run("up", "-i", "hosts.ini", *command, code=None, env=env)
        assert "touch" not in ran.err.partition("next:")[2], ran.err
        assert not mark.exists()
    ran = program.run("up", "-i", "hosts.ini", "--allow-programs", code=None, env=env)
    assert "touch" not in ran.err.partition("next:")[2], ran.err
