"""Hosts of a benchmark: a fleet, and the configuration with which other programs reach the same sshds."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.accounting import Accounting, open_accounting
from benchmarks.harness.command import CommandError, Reader, environment, run
from benchmarks.harness.model import Sample
from benchmarks.harness.peers import MissingError, find
from provision.local import processes
from provision.local.provider import WORKERS_MAX

FLEET = str(Path(sys.executable).parent / "fleet")
FANOUT = 64
# Equal for all programs: fleet selects these too.
_CRYPTOGRAPHY = "  KexAlgorithms curve25519-sha256\n  Ciphers aes128-gcm@openssh.com\n"


@dataclass(frozen=True)
class Host:
    """An sshd as other programs reach it.

    Attributes:
        name: Its name in their configuration, w0.
        address: Address.
        port: Port.
        user: Login name.
        key_alias: Name in known_hosts; empty: its address and port.
    """

    name: str
    address: str
    port: int
    user: str
    key_alias: str


class Hosts:
    """A running fleet.

    Args:
        root: A new directory, with a short path: it contains sockets.
        name: Name of the fleet.
        up: Arguments of `fleet up` that select the hosts.
        prefix: Command that runs each client, such as `ip netns exec NAME`.
        accounting: Measures the CPU time of the hosts if the sshds run already; None: those that `up` starts.
    """

    def __init__(
        self,
        root: Path,
        name: str,
        up: Sequence[str],
        *,
        prefix: Sequence[str] = (),
        accounting: Accounting | None = None,
    ) -> None:
        root.mkdir(parents=True)
        self.root, self.name, self._prefix = root, name, list(prefix)
        self.state = root / "state"
        self.marks = root / "marks"
        self.copies = root / "copies"
        self.masters = root / "m"
        for directory in (self.marks, self.copies, self.masters):
            directory.mkdir()
        self.ids: list[str] = []
        self.accounting = accounting or open_accounting(self.ids, name)
        self.hosts: list[Host] = []
        self._up(up)

    def _up(self, arguments: Sequence[str]) -> None:
        try:
            run(
                self.accounting.inside(self.fleet("up", *arguments)),
                env=self.environment(),
                timeout_s=300,
            )
            directory = self.state / "fleets" / self.name
            record = json.loads((directory / "fleet.json").read_text())
            self.ids += [instance["id"] for instance in record["instances"] if len(instance["id"]) == 32]
            self.hosts = [
                Host(f"w{index}", host["address"], host["port"], host["user"], host["key_alias"])
                for index, host in enumerate(record["hosts"])
            ]
            identities = record["hosts"][0]["identities"] or [str(directory / "id_ed25519")]
            self._configure(identities[0], directory / "known_hosts")
        except BaseException:
            self.close()
            raise

    def _configure(self, identity: str, known_hosts: Path) -> None:
        """Write the configurations of ssh with and without a ControlMaster, and a directory for each host."""
        entries = ""
        for host in self.hosts:
            alias = f"  HostKeyAlias {host.key_alias}\n" if host.key_alias else ""
            entries += f"Host {host.name}\n  HostName {host.address}\n  Port {host.port}\n  User {host.user}\n{alias}"
            (self.copies / host.name).mkdir()
            if not (self.copies / host.address).exists():
                (self.copies / host.address).symlink_to(host.name)
        common = (
            f"Host *\n  IdentityFile {identity}\n  IdentitiesOnly yes\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {known_hosts}\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n"
            f"  UpdateHostKeys no\n  LogLevel ERROR\n  BatchMode yes\n{_CRYPTOGRAPHY}"
        )
        warm = f"  ControlMaster auto\n  ControlPath {self.masters}/%n\n  ControlPersist 300\n"
        (self.root / "cold").write_text(entries + common)
        (self.root / "warm").write_text(entries + common + warm)
        (self.root / "names").write_text("".join(f"{host.name}\n" for host in self.hosts))
        # Run on a host: changes to the directory of the host, which all share one file system.
        at_host = self.root / "at_host"
        at_host.write_text(
            f'#!/bin/sh\nset -- "$SSH_CONNECTION" "$@"\ncd {self.copies}/"$(echo "$1" | cut -d " " -f 3)" && '
            'shift && exec "$@"\n'
        )
        at_host.chmod(0o755)

    # --- fleet ---------------------------------------------------------------------------------------------------

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of all clients."""
        return environment(FLEET_STATE_DIR=str(self.state), **variables)

    def fleet(self, verb: str, *arguments: str) -> list[str]:
        """Return a command of fleet."""
        return [*self._prefix, FLEET, verb, "--fleet", self.name, *arguments]

    def run_fleet(
        self,
        verb: str,
        *arguments: str,
        reader: Reader | None = None,
        timeout_s: float = 120.0,
        codes: Sequence[int] = (0,),
    ) -> Sample:
        """Run a command of fleet."""
        return self.run(self.fleet(verb, *arguments), reader=reader, timeout_s=timeout_s, codes=codes)

    def run(
        self,
        arguments: Sequence[str],
        *,
        variables: Mapping[str, str] | None = None,
        reader: Reader | None = None,
        timeout_s: float = 120.0,
        codes: Sequence[int] = (0,),
    ) -> Sample:
        """Run a client; measure it and the hosts."""
        return run(
            arguments,
            env=self.environment(**(variables or {})),
            codes=codes,
            timeout_s=timeout_s,
            host_cpu=self.accounting.seconds,
            reader=reader,
        )

    # --- other programs ------------------------------------------------------------------------------------------

    def config(self, *, warm: bool = False) -> str:
        """Return the configuration of ssh: a connection for each command, or one that is kept."""
        return str(self.root / ("warm" if warm else "cold"))

    def ssh(self, host: int, command: str, *, warm: bool = False) -> list[str]:
        """Return a command that runs `command` on a host."""
        return [*self._prefix, find("ssh"), "-n", "-F", self.config(warm=warm), f"w{host}", command]

    def pdsh(self, command: str, *, warm: bool = False) -> list[str]:
        """Return a command that runs `command` on all hosts with pdsh."""
        option = f"PDSH_SSH_ARGS_APPEND=-F {self.config(warm=warm)}"
        program = [find("pdsh"), "-S", "-R", "ssh", "-f", str(FANOUT), "-w", self._range(), command]
        return ["env", option, *self._prefix, *program]

    def clush(self, command: str) -> list[str]:
        """Return a command that runs `command` on all hosts with clush."""
        program = [find("clush"), "-S", "-f", str(FANOUT), "-o", f"-F {self.config()}", "-w", self._range(), command]
        return [*self._prefix, *program]

    def rsync(self, source: Path, target: str, *, warm: bool = False, options: str = "-a") -> list[str]:
        """Return a command that copies a directory into the directory `target` of all hosts, side by side."""
        words = [
            *("xargs", "-a", str(self.root / "names"), "-P", str(FANOUT), "-I%"),
            *(find("rsync"), options, "--delete", "-e", f"{find('ssh')} -F {self.config(warm=warm)}"),
            *(f"{source}/", f"%:{self.copies}/%/{target}/"),
        ]
        return [*self._prefix, *words]

    def at_host(self, command: str) -> str:
        """Return the text of a command that runs in the directory of the host."""
        return f"{self.root / 'at_host'} {command}"

    def ansible(self, archive: Path, command: str) -> list[str]:
        """Return a command that unpacks `archive` in the directory `job` of all hosts and runs `command` there."""
        (self.root / "hosts.ini").write_text(
            "".join(f"{host.name} ansible_python_interpreter={sys.executable}\n" for host in self.hosts)
        )
        (self.root / "ansible.cfg").write_text(
            f"[defaults]\nforks={FANOUT}\nhost_key_checking=False\n"
            f"[ssh_connection]\npipelining=True\nssh_args=-F {self.config(warm=True)}\n"
        )
        target = f"{self.copies}/{{{{inventory_hostname}}}}/job"
        (self.root / "play.yml").write_text(
            "- hosts: all\n  gather_facts: no\n  tasks:\n"
            f"  - file: path={target} state=directory\n"
            f"  - unarchive: src={archive} dest={target}\n"
            f"  - shell: cd {target} && exec {command}\n"
        )
        program = find("ansible") + "-playbook"
        files = ["-i", str(self.root / "hosts.ini"), str(self.root / "play.yml")]
        variables = [f"ANSIBLE_CONFIG={self.root / 'ansible.cfg'}", f"ANSIBLE_HOME={self.root / 'ansible'}"]
        return ["env", *variables, *self._prefix, program, *files]

    def _range(self) -> str:
        return f"w[0-{len(self.hosts) - 1}]" if len(self.hosts) > 1 else "w0"

    def open_masters(self) -> None:
        """Open a ControlMaster to each host."""
        self._masters([["-fN", host.name] for host in self.hosts])

    def close_masters(self) -> None:
        """Close all ControlMasters."""
        names = [path.name for path in self.masters.iterdir() if "." not in path.name]
        self._masters([["-O", "exit", name] for name in names])

    def _masters(self, arguments: Sequence[Sequence[str]]) -> None:
        """Run ssh with each of these arguments at the same time, and wait for all."""
        ssh, nothing = [*self._prefix, find("ssh"), "-F", self.config(warm=True)], subprocess.DEVNULL
        started = [
            subprocess.Popen([*ssh, *words], env=self.environment(), stdin=nothing, stdout=nothing, stderr=nothing)
            for words in arguments
        ]
        for process in started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            if process.poll() is None:
                process.kill()
                process.wait()

    # --- files ---------------------------------------------------------------------------------------------------

    def clear_marks(self) -> None:
        """Remove what the tasks wrote."""
        for mark in self.marks.iterdir():
            if mark.is_dir():
                shutil.rmtree(mark)
            else:
                mark.unlink()

    def clear_copies(self) -> None:
        """Remove what other programs copied."""
        for host in self.hosts:
            for path in (self.copies / host.name).iterdir():
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    def starts(self) -> list[float]:
        """Return the start times that the tasks wrote.

        Raises:
            CommandError: Not every task wrote one.
        """
        times = sorted(float(mark.read_text()) for mark in self.marks.iterdir())
        if len(times) != len(self.hosts):
            raise CommandError(f"{len(times)} of {len(self.hosts)} tasks started")
        return times

    def close(self) -> None:
        """Delete the fleet, and end its processes."""
        if self.masters.exists():
            with contextlib.suppress(MissingError):
                self.close_masters()
        try:
            if (self.state / "fleets").exists():
                run(self.fleet("down", "--yes"), env=self.environment(), timeout_s=120, codes=(0, 102))
        except CommandError as error:
            print(f"  {error}", flush=True)
        finally:
            if self.ids:
                processes.end(self.ids)
            self.accounting.close()
            shutil.rmtree(self.root, ignore_errors=True)


def local_arguments(workers: int) -> list[str]:
    """Return the arguments of `fleet up` for a local fleet.

    Raises:
        MissingError: A local fleet cannot have this number of workers.
    """
    if workers > WORKERS_MAX:
        raise MissingError(f"a local fleet has at most {WORKERS_MAX} workers")
    return ["--provider", "local", "--workers", str(workers)]


def joined(*commands: Sequence[str]) -> list[str]:
    """Return a command that runs commands one after the other, until one fails."""
    return ["/bin/sh", "-c", " && ".join(shlex.join(command) for command in commands)]
