"""Hosts of a benchmark: a fleet, and the commands with which other programs do the same work on them."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.command import MeasureError, Run, find, run
from provision.local import processes
from tests.wire.machines import lab

FLEET = str(Path(sys.executable).parent / "fleet")
_FANOUT = 64
_GROUP = """
import sys
from fabric import Connection, ThreadingGroup
user, key, command, *addresses = sys.argv[1:]
hosts = [address.rsplit(":", 1) for address in addresses]
connections = [
    Connection(host, user=user, port=int(port), connect_kwargs={"key_filename": key, "allow_agent": False})
    for host, port in hosts
]
ThreadingGroup.from_connections(connections).run(command, hide=True, in_stream=False)
"""
"""A program that runs a command on many hosts with fabric's ThreadingGroup."""


class Hosts:
    """A running fleet.

    Args:
        root: A new directory with a short path.
        up: Arguments of `fleet up` that select the hosts.
        prefix: Command that runs each client, such as `ip netns exec NAME`.
    """

    def __init__(self, root: Path, up: Sequence[str], prefix: Sequence[str] = ()) -> None:
        self.root, self._prefix, self._up = root, list(prefix), list(up)
        self.state, self.marks, self.copies = root / "state", root / "marks", root / "copies"
        self.environment = {"FLEET_STATE_DIR": str(self.state)}
        self.ids: list[str] = []
        self.names: list[str] = []
        for directory in (self.marks, self.copies):
            directory.mkdir(parents=True)

    def __enter__(self) -> Hosts:
        """Create the fleet, and write the configuration of ssh."""
        try:
            self.created = self.fleet("up", *self._up)
            directory = self.state / "fleets" / "default"
            record = json.loads((directory / "fleet.json").read_text())
            self.ids += [instance["id"] for instance in record["instances"] if len(instance["id"]) == 32]
            self._hosts = record["hosts"]
            self._key = (self._hosts[0]["identities"] or [str(directory / "id_ed25519")])[0]
            self._configure(directory / "known_hosts")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Delete the fleet, and end its processes."""
        with contextlib.suppress(MeasureError):
            self.fleet("down", "--yes", codes=(0, 102))
        if self.ids:
            processes.end(self.ids)
        shutil.rmtree(self.root, ignore_errors=True)

    def _configure(self, known_hosts: Path) -> None:
        entries = ""
        for index, host in enumerate(self._hosts):
            name = f"w{index}"
            alias = f"  HostKeyAlias {host['key_alias']}\n" if host["key_alias"] else ""
            entries += (
                f"Host {name}\n  HostName {host['address']}\n  Port {host['port']}\n  User {host['user']}\n{alias}"
            )
            self.names.append(name)
            (self.copies / name).mkdir()
            (self.copies / host["address"]).symlink_to(name)
        (self.root / "ssh").write_text(
            f"{entries}Host *\n  IdentityFile {self._key}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {known_hosts}\n  StrictHostKeyChecking yes\n  UpdateHostKeys no\n  BatchMode yes\n"
            "  LogLevel ERROR\n  KexAlgorithms curve25519-sha256\n"  # as paramiko; others take more CPU
        )
        (self.root / "names").write_text("".join(f"{name}\n" for name in self.names))

    def run(self, command: Sequence[str], *, codes: Sequence[int] = (0,), lines: int = 0) -> Run:
        """Run a client to its end."""
        return run([*self._prefix, *command], self.environment, codes=codes, lines=lines)

    def fleet(self, *arguments: str, codes: Sequence[int] = (0,), lines: int = 0) -> Run:
        """Run a command of fleet."""
        return self.run([FLEET, *arguments], codes=codes, lines=lines)

    def ssh(self, name: str, command: str) -> list[str]:
        """Return a command that runs `command` on a host, in a directory of its own."""
        return [find("ssh"), "-n", "-F", str(self.root / "ssh"), name, f"cd {self.copies / name} && {command}"]

    def pdsh(self, command: str) -> list[str]:
        """Return a command that runs `command` on all hosts with pdsh."""
        option = f"PDSH_SSH_ARGS_APPEND=-F {self.root / 'ssh'}"
        return [
            "env",
            option,
            find("pdsh"),
            "-S",
            "-R",
            "ssh",
            "-f",
            str(_FANOUT),
            "-w",
            ",".join(self.names),
            command,
        ]

    def pdsh_in_copies(self, command: str) -> list[str]:
        """Return a command that runs `command` with pdsh, on each host in the directory that rsync wrote."""
        directory = f'{self.copies}/"$(echo $SSH_CONNECTION | cut -d " " -f 3)"/job'
        return self.pdsh(f"cd {directory} && {command}".replace("%", "%%"))

    def group(self, command: str) -> list[str]:
        """Return a command that runs `command` on all hosts with fabric's ThreadingGroup."""
        addresses = [f"{host['address']}:{host['port']}" for host in self._hosts]
        return [sys.executable, "-c", _GROUP, self._hosts[0]["user"], self._key, command, *addresses]

    def rsync(self, source: Path) -> list[str]:
        """Return a command that copies a directory to all hosts, side by side."""
        ssh = f"{find('ssh')} -F {self.root / 'ssh'}"
        copy = [find("rsync"), "-a", "--delete", "-e", ssh, f"{source}/", f"%:{self.copies}/%/job/"]
        return ["xargs", "-a", str(self.root / "names"), "-P", str(_FANOUT), "-I%", *copy]

    def ansible(self, source: Path, command: str) -> list[str]:
        """Return a command that packs a directory, unpacks it on all hosts, and runs `command` there."""
        (self.root / "hosts.ini").write_text(
            "".join(f"{name} ansible_python_interpreter={sys.executable}\n" for name in self.names)
        )
        (self.root / "ansible.cfg").write_text(
            f"[defaults]\nforks={_FANOUT}\n[ssh_connection]\npipelining=True\nssh_args=-F {self.root / 'ssh'}\n"
        )
        archive, target = self.root / "job.tar.gz", f"{self.copies}/{{{{inventory_hostname}}}}/job"
        (self.root / "play.yml").write_text(
            f"- hosts: all\n  gather_facts: no\n  tasks:\n  - file: path={target} state=directory\n"
            f"  - unarchive: src={archive} dest={target}\n  - shell: cd {target} && exec {command}\n"
        )
        program = find("ansible-playbook")
        variables = [f"ANSIBLE_CONFIG={self.root / 'ansible.cfg'}", f"ANSIBLE_HOME={self.root / 'ansible'}"]
        play = ["env", *variables, program, "-i", str(self.root / "hosts.ini"), str(self.root / "play.yml")]
        return joined(["tar", "-C", str(source), "-czf", str(archive), "."], play)

    def clear(self) -> None:
        """Remove what tasks and other programs wrote."""
        for directory in (self.marks, *(self.copies / name for name in self.names)):
            shutil.rmtree(directory)
            directory.mkdir()


def local(root: Path, workers: int) -> Hosts:
    """Return a local fleet, to be created."""
    return Hosts(root, ["--provider", "local", "--workers", str(workers)])


@contextlib.contextmanager
def bare(root: Path, addresses: Sequence[str], *up: str, prefix: Sequence[str] = ()) -> Iterator[Hosts]:
    """Yield OpenSSH servers on given addresses as a fleet.

    Args:
        root: A new directory with a short path.
        addresses: Addresses to listen on.
        up: Further options of `fleet up`.
        prefix: Command that runs each client.
    """
    root.mkdir()
    with lab(root / "lab") as machines:
        names = [f"w{number}" for number in range(len(addresses))]
        for name, address in zip(names, addresses, strict=True):
            machines.machine(name, address=address)
        inventory = machines.inventory(*names, config=machines.config())
        options = ["--inventory", str(inventory), "--accept-new", "--yes", *up]
        with Hosts(root / "fleet", options, prefix) as hosts:
            yield hosts


@contextlib.contextmanager
def limited_link(count: int, rate: str) -> Iterator[tuple[list[str], list[str]]]:
    """Yield a network namespace that sends to this computer at a limited rate.

    Args:
        count: Number of addresses of this computer on the link.
        rate: Rate in the notation of tc, such as 200mbit.

    Yields:
        A command that runs a program in the namespace, and the addresses.
    """
    ip, tc, number = find("ip"), find("tc"), os.getpid()
    name, outer, inner, network = f"fleet-bench-{number}", f"fb{number}o", f"fb{number}i", f"10.213.{number % 250}"
    within, addresses = [ip, "netns", "exec", name], [f"{network}.{10 + each}" for each in range(count)]
    commands = [
        [ip, "netns", "add", name],
        [ip, "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", name],
        *([ip, "address", "add", f"{address}/24", "dev", outer] for address in addresses),
        [ip, "link", "set", outer, "up"],
        [*within, ip, "address", "add", f"{network}.2/24", "dev", inner],
        [*within, ip, "link", "set", "lo", "up"],
        [*within, ip, "link", "set", inner, "up"],
        [*within, tc, "qdisc", "add", "dev", inner, "root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"],
    ]
    try:
        for command in commands:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise MeasureError(f"cannot create a network namespace: {done.stderr.strip()}")
        yield within, addresses
    finally:
        subprocess.run([ip, "netns", "delete", name], check=False, capture_output=True)
        subprocess.run([ip, "link", "delete", outer], check=False, capture_output=True)


def configurations(workers: int) -> list[dict[str, str]]:
    """Return the TF_CONFIG and RANK that a user sets by hand for each worker, with free ports."""
    ports = []
    for _ in range(workers):
        with socket.create_server(("127.0.0.1", 0)) as free:
            ports.append(free.getsockname()[1])
    cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    tasks = [{"cluster": cluster, "task": {"type": "worker", "index": rank}} for rank in range(workers)]
    return [{"TF_CONFIG": json.dumps(task), "RANK": str(rank)} for rank, task in enumerate(tasks)]


def by_ssh(hosts: Hosts, command: str) -> list[list[str]]:
    """Return the commands with which a user starts a script on each host by hand."""
    commands = []
    for name, variables in zip(hosts.names, configurations(len(hosts.names)), strict=True):
        settings = " ".join(f"{key}={shlex.quote(value)}" for key, value in variables.items())
        commands.append(hosts.ssh(name, f"env {settings} {command}"))
    return commands


def joined(*commands: Sequence[str]) -> list[str]:
    """Return a command that runs commands one after the other, until one fails."""
    return ["/bin/sh", "-c", " && ".join(shlex.join(command) for command in commands)]
