"""A cluster of real Slurm daemons on this machine: each node has its own network, host name, and processes."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from provision.keys import generate_ed25519
from provision.local import sshd
from tests.faults import namespaces as networks
from tests.faults.namespaces import Namespace, namespaces
from tests.program import PROGRAM, CommandResult, wait_for

_PROGRAMS = ("slurmctld", "slurmd", "munged", "srun", "hostname", "unshare", "nsenter")
_CONFIGURATION = """\
ClusterName=tests
SlurmctldHost=node0
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={directory}/munge.socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool-%n
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd-%n.pid
SlurmctldLogFile={directory}/slurmctld.log
SlurmdLogFile={directory}/slurmd-%n.log
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=15
NodeName=node[0-{last}] CPUs={cores} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
"""
# Run on a node: sets its host name, and replaces two files of the system with the cluster's.
_ENTER = 'hostname "$1" && mount --bind "$2/hosts" /etc/hosts && mount --bind "$2/ssh_config" /etc/ssh/ssh_config'


def obstacle() -> str:
    """Return the reason why Slurm cannot run here; empty if it can."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} not installed: apt-get install slurm-wlm"
    return networks.obstacle()


@dataclass
class Slurm:
    """A running cluster.

    Attributes:
        directory: The cluster's files. Commands run in its subdirectory ``work``, which all nodes share.
        hosts: Its nodes: node0, on which users type, node1, …
        env: Variables of all commands.
    """

    directory: Path
    hosts: Sequence[Namespace]
    env: dict[str, str] = field(default_factory=dict)
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def work(self) -> Path:
        return self.directory / "work"

    def command(self, number: int, *words: str, private_pids: bool = False) -> list[str]:
        """Return the command that runs `words` on a node."""
        network = ("nsenter", f"--net=/run/netns/{self.hosts[number].name}")
        new_pids = ("--pid", "--fork", "--kill-child", "--mount-proc") if private_pids else ()
        enter = ("sh", "-c", f'{_ENTER} && shift 2 && exec "$@"', "sh", f"node{number}", str(self.directory))
        return [*network, "unshare", "--mount", "--uts", *new_pids, *enter, *words]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        inherited = {
            key: value for key, value in os.environ.items() if not key.startswith(("FLEET_", "SLURM_", "PBS_"))
        }
        path = f"{PROGRAM.parent}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        state = str(self.directory / "fleet")
        settings = {"PATH": path, "SLURM_CONF": str(self.directory / "slurm.conf"), "FLEET_STATE_DIR": state}
        return {**inherited, **settings, **self.env, **(more or {})}

    def start(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        """Start a command on node0."""
        return subprocess.Popen(
            self.command(0, *words),
            cwd=self.work,
            env=self.environment(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    def finish(
        self, process: subprocess.Popen[bytes], *, code: int | None = 0, timeout: float = 120
    ) -> CommandResult:
        """Wait for the end of a command; `code` is the expected exit code, None for any."""
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            raise AssertionError(
                f"no end within {timeout} s\n{out.decode()[-3000:]}\n{err.decode()[-3000:]}"
            ) from None
        ran = CommandResult(process.returncode, out, err.decode("utf-8", "replace"))
        assert code is None or ran.code == code, f"exit code {ran.code}, not {code}\n{ran.text}\n{ran.err}"
        return ran

    def run(
        self, *words: str, code: int | None = 0, timeout: float = 120, env: Mapping[str, str] | None = None
    ) -> CommandResult:
        """Run a command on node0 to its end."""
        return self.finish(self.start(*words, env=env), code=code, timeout=timeout)

    def script(self, name: str, text: str) -> Path:
        path = self.work / name
        path.write_text(text)
        return path

    def enable_ssh(self) -> None:
        """Start an SSH server on each node; all share one login directory, as on a shared file system."""
        user = generate_ed25519("user")
        key = self.directory / "id_ed25519"
        key.touch(0o600)
        key.write_text(user.private)
        home = self.directory / "home"
        home.mkdir()
        lines = []
        for number, host in enumerate(self.hosts):
            lines.append(f"node{number} {self._sshd(number, host, user.public, home)}\n")
        (self.directory / "known_hosts").write_text("".join(lines))
        (self.directory / "ssh_config").write_text(
            f"Host *\n  User root\n  IdentityFile {key}\n  IdentityAgent none\n  StrictHostKeyChecking yes\n"
            f"  UserKnownHostsFile {self.directory}/known_hosts\n  GlobalKnownHostsFile /dev/null\n"
        )

    def _sshd(self, number: int, host: Namespace, authorized: str, home: Path) -> str:
        """Start the SSH server of a node; return its host key."""
        directory = self.directory / f"sshd-{number}"
        directory.mkdir()
        pair = generate_ed25519(f"node{number}")
        (directory / "host_key").touch(0o600)
        (directory / "host_key").write_text(pair.private)
        (directory / "authorized_keys").write_text(authorized + "\n")
        # sshd changes to the home directory in the system's user database and ignores HOME.
        at_home = f'SetEnv HOME={home} SHLVL=1\nForceCommand cd "$HOME" && eval "$SSH_ORIGINAL_COMMAND"\n'
        (directory / "sshd_config").write_text(sshd.configuration(directory, host.address, 22, "root") + at_home)
        sshd.make_separation_directory()
        program = sshd.find()
        assert program is not None
        self.daemon(
            self.command(number, program, "-D", "-e", "-f", str(directory / "sshd_config"), private_pids=True)
        )
        probe = ("bash", "-c", f"echo > /dev/tcp/{host.address}/22")
        wait_for("sshd", lambda: self.run(*probe, code=None).code == 0)
        return pair.public

    # --- daemons ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start all daemons, and wait until all nodes are idle."""
        names = [f"{host.address} node{number}" for number, host in enumerate(self.hosts)]
        (self.directory / "hosts").write_text("\n".join(["127.0.0.1 localhost", *names, ""]))
        (self.directory / "ssh_config").touch()
        for name in ("work", "state", *(f"spool-node{number}" for number in range(len(self.hosts)))):
            (self.directory / name).mkdir(mode=0o755)
        configuration = _CONFIGURATION.format(
            directory=self.directory, last=len(self.hosts) - 1, cores=len(os.sched_getaffinity(0))
        )
        (self.directory / "slurm.conf").write_text(configuration)
        version = "v2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "v1"
        (self.directory / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\nIgnoreSystemd=yes\n")
        self._munge()
        self.daemon(self.command(0, "slurmctld", "-D", private_pids=True))
        for number in range(len(self.hosts)):
            self.daemon(self.command(number, "slurmd", "-D", private_pids=True))
        wait_for("all nodes to be idle", self._is_idle, 30)

    def _munge(self) -> None:
        key = self.directory / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        paths = [f"--{name}-file={self.directory}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self.daemon(["munged", "--foreground", "--force", f"--socket={self.directory}/munge.socket", *paths])
        wait_for("munged", (self.directory / "munge.socket").exists)

    def daemon(self, words: Sequence[str]) -> None:
        """Start a process that ends with the cluster."""
        with (self.directory / "daemons.log").open("ab") as log:
            process = subprocess.Popen(
                words, env=self.environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        self._daemons.append(process)

    def _is_idle(self) -> bool:
        for daemon in self._daemons:
            assert daemon.poll() is None, (self.directory / "daemons.log").read_text(errors="replace")[-3000:]
        return self.run("sinfo", "-h", "-o", "%n %t", code=None).text.count(" idle") == len(self.hosts)

    def has_no_jobs(self) -> bool:
        """Return whether the queue is empty."""
        return self.run("squeue", "-h").text == ""

    def end(self) -> None:
        """End all daemons; what Slurm still runs on its nodes ends with them."""
        for daemon in reversed(self._daemons):
            _end(daemon)
        for daemon in self._daemons:
            daemon.wait(60)


def _end(daemon: subprocess.Popen[bytes]) -> None:
    """Kill a daemon; if it is the first process of a PID namespace, the others in it end too."""
    children = Path(f"/proc/{daemon.pid}/task/{daemon.pid}/children")
    with contextlib.suppress(OSError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
    if daemon.args[0] != "nsenter":  # type: ignore[index]
        daemon.kill()


@contextlib.contextmanager
def slurm(directory: Path, nodes: int = 2) -> Iterator[Slurm]:
    """Run a cluster in a subdirectory of `directory`; end it afterwards."""
    directory.chmod(0o755)
    with namespaces(nodes) as hosts:
        cluster = Slurm(directory, hosts)
        try:
            cluster.begin()
            yield cluster
        finally:
            cluster.end()
