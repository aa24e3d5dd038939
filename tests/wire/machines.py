"""A user's machines: OpenSSH servers on this machine, each with its own host key and home directory."""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.keys import KeyPair, generate_ed25519
from provision.local import processes, sshd
from tests.ports import reserve_port
from tests.program import agents_environment, wait_for

USER = pwd.getpwuid(os.getuid()).pw_name
_READY_S = 90.0
# sshd changes to the home directory in the system's user database and ignores HOME.
_AT_HOME = 'ForceCommand cd "$HOME" && eval "$SSH_ORIGINAL_COMMAND"\n'


@dataclass(frozen=True)
class Machine:
    """An OpenSSH server.

    Attributes:
        name: Its name in configurations.
        address: Address on which it listens.
        port: Port on which it listens.
        directory: Its files.
        id: Marks its processes.
        key: Its public host key.
    """

    name: str
    address: str
    port: int
    directory: Path
    id: str
    key: str

    @property
    def home(self) -> Path:
        """Return the home directory of its users."""
        return self.directory / "home"

    @property
    def known_hosts_line(self) -> str:
        """Return its line in a known_hosts file."""
        return f"[{self.address}]:{self.port} {self.key}\n"

    @property
    def log(self) -> str:
        """Return the log of its sshd."""
        return (self.directory / processes.log_name(self.id)).read_text(errors="replace")

    def files_in_home(self) -> list[str]:
        """Return all paths in its home directory; directories that are removed meanwhile are left out."""
        paths = [Path(top, name) for top, *names in os.walk(self.home) for name in itertools.chain(*names)]
        return sorted(str(path.relative_to(self.home)) for path in paths)


def host_pair(kind: str, directory: Path) -> KeyPair:
    """Return a new key pair of a type that ssh-keygen supports."""
    path = directory / f"pair-{uuid.uuid4().hex}"
    size = ["-b", "2048"] if kind == "rsa" else []  # the default of 3072 bits takes five times as long
    subprocess.run(["ssh-keygen", "-q", "-t", kind, *size, "-N", "", "-f", str(path)], check=True)
    return KeyPair(path.read_text(), path.with_name(f"{path.name}.pub").read_text().strip())


@dataclass
class Lab:
    """A user with keys and a configuration, and the machines on which this user can log in.

    Attributes:
        directory: The files of the user and the machines.
        machines: The machines by name.
    """

    directory: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    _servers: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _ports: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        pair = generate_ed25519("user")
        self.write("id", pair.private)
        self.write("id.pub", pair.public + "\n")
        self.write("known_hosts", "")

    @property
    def key(self) -> Path:
        """Return the user's private key."""
        return self.directory / "id"

    @property
    def processes(self) -> list[int]:
        """Return the processes of the servers."""
        return [server.pid for server in self._servers.values()]

    @property
    def known_hosts(self) -> Path:
        """Return the user's known_hosts."""
        return self.directory / "known_hosts"

    def write(self, name: str, text: str) -> Path:
        """Write a file of the user; return its path."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
        path.write_text(text)
        return path

    def machine(
        self,
        name: str,
        *,
        authorized: str | None = None,
        pair: KeyPair | None = None,
        first: str = "",
        more: str = "",
        env: Mapping[str, str] | None = None,
        port: int = 0,
        address: str = "",
    ) -> Machine:
        """Start a machine.

        Args:
            name: Its name in configurations.
            authorized: Public keys that may log in; None: the user's.
            pair: Its host key; None: a new one.
            first: Lines of sshd_config that take precedence over the others.
            more: Further lines of sshd_config.
            env: Variables of its processes in addition to HOME.
            port: Port to listen on; 0: any free one.
            address: Address to listen on; empty: the one that it had, or the next one.
        """
        if not address:
            address = self.machines[name].address if name in self.machines else f"127.77.0.{len(self.machines) + 1}"
        identity = uuid.uuid4().hex
        directory = self.directory / f"machine-{name}-{identity[:6]}"
        (directory / "home").mkdir(parents=True)
        pair = pair or generate_ed25519(name)
        (directory / "host_key").touch(0o600)
        (directory / "host_key").write_text(pair.private)
        keys = (self.directory / "id.pub").read_text() if authorized is None else authorized
        (directory / "authorized_keys").write_text(keys)
        if not port:
            self._ports.append(reserve_port(address))
            port = self._ports[-1].getsockname()[1]
        config = directory / "sshd_config"
        listen = f"[{address}]" if ":" in address else address
        config.write_text(first + sshd.configuration(directory, listen, port, USER) + _AT_HOME + more)
        sshd.make_separation_directory()
        variables = {processes.MARK: identity, "SHLVL": "1", "HOME": str(directory / "home"), **agents_environment()}
        variables |= env or {}
        setting = "SetEnv=" + " ".join(f"{key}={value}" for key, value in variables.items())
        program = sshd.find()
        assert program is not None
        with (directory / processes.log_name(identity)).open("wb") as log:
            self._servers[identity] = subprocess.Popen(
                [program, "-D", "-e", "-f", str(config), "-o", setting],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={"PATH": os.defpath, processes.MARK: identity},
            )  # fmt: skip
        await_answer(address, port)
        kind, text, *_ = pair.public.split()
        machine = Machine(name, address, port, directory, identity, f"{kind} {text}")
        self.machines[name] = machine
        return machine

    def add_known_hosts(self, *machines: Machine) -> None:
        """Add the host keys of these machines to the user's known_hosts."""
        self.known_hosts.write_text(
            self.known_hosts.read_text() + "".join(machine.known_hosts_line for machine in machines)
        )

    def config(self, *blocks: str, name: str = "config") -> Path:
        """Write an SSH configuration with these blocks, followed by the entries of all machines."""
        hosts = "".join(
            f"Host {machine.name}\n  HostName {machine.address}\n  Port {machine.port}\n"
            for machine in self.machines.values()
        )
        common = (
            f"Host *\n  User {USER}\n  IdentityFile {self.key}\n  IdentityAgent none\n"
            f"  UserKnownHostsFile {self.known_hosts}\n  GlobalKnownHostsFile /dev/null\n"
        )
        return self.write(name, "\n".join([*blocks, hosts, common]))

    def inventory(self, *names: str, config: Path | None = None, name: str = "hosts.ini") -> Path:
        """Write an inventory of these hosts, one per line, that uses an SSH configuration."""
        config = config or self.config()
        lines = ["[lab]", *names, "[lab:vars]", f"ansible_ssh_common_args='-F {config}'"]
        return self.write(name, "\n".join(lines) + "\n")

    def stop(self, machine: Machine) -> None:
        """End a machine and all its processes."""
        processes.end({machine.id})

    def close(self) -> None:
        """End all machines."""
        processes.end(set(self._servers))
        for server in self._servers.values():
            server.wait(60)
        for reserved in self._ports:
            reserved.close()


def await_answer(address: str, port: int) -> None:
    """Wait until an SSH server answers."""
    deadline = time.monotonic() + _READY_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection((address, port), 2) as connection:
            if connection.recv(64).startswith(b"SSH-"):
                return
        time.sleep(0.01)
    raise AssertionError(f"no answer from {address} port {port}")


@contextlib.contextmanager
def lab(directory: Path) -> Iterator[Lab]:
    """Create a user without machines; end the machines that were started."""
    user = Lab(directory)
    try:
        yield user
    finally:
        user.close()


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False


@contextlib.contextmanager
def agent(directory: Path, keys: Sequence[Path]) -> Iterator[Path]:
    """Run an SSH agent that holds `keys`; yield its socket."""
    path = directory / "agent.sock"
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(path)], stdout=subprocess.DEVNULL) as process:
        try:
            wait_for("the agent", lambda: _answers(path))
            env = {**os.environ, "SSH_AUTH_SOCK": str(path)}
            for key in keys:
                subprocess.run(["ssh-add", "-q", str(key)], env=env, check=True, capture_output=True)
            yield path
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
