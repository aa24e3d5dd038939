"""Records the results of Ansible and ssh for the inventories in files/, for the tests to compare with.

    .venv/bin/python -m tests.unit.provision.inventory.record [FILE...]

Ansible runs as a program, in an environment without Ansible settings. Its order of hosts depends on Python's hash
seed if groups are nested, so several seeds are tried and every order is recorded. The ssh arguments of Ansible are
passed to ``ssh -G``, with a configuration that marks unset options.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[4]
FILES = Path(__file__).parent / "files"
INVENTORIES = sorted(
    path
    for pattern in ("*", "next_to*/hosts.ini", "next_to*/inventory.yml", "limits/hosts.ini")
    for path in FILES.glob(pattern)
    if path.is_file() and not path.name.endswith(".expected.json")
)
LIMITS = FILES / "limits" / "limits.expected.json"
UNSAID = {"user": "unsaid", "port": "1", "userknownhostsfile": "/unsaid", "stricthostkeychecking": "ask"}


# Importing Ansible takes a second, so that one process forks for each inventory.
_LIST_ALL = """
import os, sys
from ansible.cli.inventory import main
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.vars.manager import VariableManager
InventoryManager(DataLoader(), sys.argv[2:3])
for path in sys.argv[2:]:
    if not os.fork():
        os.dup2(os.open(f"{sys.argv[1]}/{path.replace('/', '+')}", os.O_WRONLY | os.O_CREAT), 1)
        sys.exit(main(["ansible-inventory", "-i", path, "--list"]))
    os.wait()
"""


def find_tool(name: str) -> str | None:
    """Return the path of a program of another project: on PATH, or installed by scripts/setup."""
    return shutil.which(name) or shutil.which(name, path=str(ROOT / ".tools/bin"))


def expected(path: Path) -> Path:
    """Return the path of the record of an inventory."""
    return path.with_name(f"{path.name}.expected.json")


def run(*argv: str, seed: int = 0, **variables: str) -> str:
    """Return the standard output of a program of Ansible; empty if it selects no host."""
    with tempfile.TemporaryDirectory() as directory:
        (settings := Path(directory, "ansible.cfg")).touch()
        clean = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
        env = {
            **clean,
            "HOME": directory,
            "ANSIBLE_CONFIG": str(settings),
            "ANSIBLE_NOCOLOR": "1",
            "PYTHONHASHSEED": str(seed),
            **variables,
        }
        words = [find_tool(argv[0]) or argv[0], *argv[1:]]
        done = subprocess.run(words, cwd=directory, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout


def ansible_list(path: Path) -> dict[str, Any]:
    """Return the output of ``ansible-inventory --list`` for an inventory."""
    return ansible_lists([path])[path]


def ansible_lists(paths: Sequence[Path]) -> dict[Path, dict[str, Any]]:
    """Return the output of ``ansible-inventory --list`` for each inventory."""
    program = Path(find_tool("ansible-inventory") or "").resolve()
    lists: dict[Path, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as directory:
        run(str(program.with_name("python")), "-c", _LIST_ALL, directory, *map(str, paths))
        for path in paths:
            lists[path] = json.loads(Path(directory, str(path).replace("/", "+")).read_text(encoding="utf-8"))
            lists[path]["_meta"].pop("profile", None)
    return lists


def ansible_hosts(path: Path, limit: str = "all", seed: int = 0) -> list[str]:
    """Return the hosts that Ansible would use, in its order."""
    words = ("ansible", "-i", str(path), "all", "--list-hosts", "--limit", limit)
    return [line.strip() for line in run(*words, seed=seed).splitlines()[1:]]


def orders(path: Path) -> list[list[str]]:
    """Return every order of the hosts that several hash seeds give."""
    tried = [ansible_hosts(path, seed=seed) for seed in range(4)]
    return [order for index, order in enumerate(tried) if order not in tried[:index]]


def ssh_options(path: Path, hosts: list[str]) -> dict[str, dict[str, Any]]:
    """Return the ``ssh -G`` output for Ansible's arguments of each host, without unset options."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "config").write_text("".join(f"{option} {value}\n" for option, value in UNSAID.items()))
        program = directory / "ssh"
        program.write_text(
            f'#!/bin/sh\nexec ssh -G -F {directory}/config "$@" >{directory}/"${{0##*/}}".out 2>/dev/null\n'
        )
        program.chmod(0o755)
        for host in hosts:
            (directory / host).symlink_to(program)
        executable = "ansible_ssh_executable=" + str(directory) + "/{{ inventory_hostname }}"
        run("ansible", "-i", str(path), "all", "-m", "ansible.builtin.raw", "-a", "true", "-e", executable)
        return {host: given_to_ssh((directory / f"{host}.out").read_text()) for host in hosts}


def given_to_ssh(text: str) -> dict[str, Any]:
    """Return the options of an output of ``ssh -G`` that were set."""
    wanted = ("hostname", "proxyjump", "proxycommand", "hostkeyalias", *UNSAID)
    lines = [line.split(" ", 1) for line in text.splitlines() if " " in line]
    given: dict[str, Any] = {name: value for name, value in lines if name in wanted and UNSAID.get(name) != value}
    given["identityfile"] = [
        value for name, value in lines if name == "identityfile" and not value.startswith("~/.ssh/id_")
    ]
    return given


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(names: list[str]) -> None:
    """Record the inventories of these names, or all."""
    if not find_tool("ansible-inventory"):
        sys.exit("ansible-inventory is not installed: ./scripts/setup")
    for path in INVENTORIES:
        if names and path.name not in names and path.parent.name not in names:
            continue
        host_orders = orders(path)
        _write(
            expected(path),
            {"list": ansible_list(path), "orders": host_orders, "ssh": ssh_options(path, sorted(host_orders[0]))},
        )
    if not names or "limits" in names:
        lab = FILES / "limits" / "hosts.ini"
        _write(LIMITS, {pattern: ansible_hosts(lab, pattern) for pattern in json.loads(LIMITS.read_text("utf-8"))})


if __name__ == "__main__":
    main(sys.argv[1:])
