"""Guests of the emulator: an instance of a Deep Learning image as its users see it, emulated on this machine.

A guest has mounts, processes, a host name and a boot id of its own, and shares the network: it listens at its own
loopback address. There its first process is a real OpenSSH server. It sees its own `/home`, `/root`, `/tmp`, `/run`,
`/var/log`, `/etc/ssh` and accounts, all of them in its directory; `nvidia-smi` and `python3` in `/usr/local/bin`; and
the other files of this machine, of which users can read what all users can. No user of this machine has their uids.
A login as root, possible only if metadata requests it, is root of this machine.

It ends with the program that booted it, even if that is killed.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from provision.keys import fingerprint, generate_ed25519
from provision.local import sshd
from tests.emulator import packages, python, space
from tests.emulator.accounts import FIRST_UID, granted, uses_os_login
from tests.emulator.disk import SSH_PORT, STARTUP, Access, Disk, GuestSpec
from tests.emulator.governance import account_metadata
from tests.emulator.metadata import POWER_OFF, Metadata, MetadataServer, may_publish

Publish = Callable[[str, str, str], None]
"""Called with namespace, key and value of a guest attribute."""

HOST_KEY = ("hostkeys", "ssh-ed25519")
AGENTS, PACKAGES, PYTHON = "agents", "packages", "python"
SHARED = frozenset({AGENTS, PACKAGES, PYTHON})
"""Names in the directory of `SshGuests` that all guests share; they stay when a guest is removed."""
_QUIET: dict[str, str | dict[str, str]] = {
    "maintenance-event": "NONE",
    "preempted": "FALSE",
    "upcoming-maintenance": {},
}
"""Values of the metadata server unless something threatens the instance."""
_AGENT, _SCRIPT_RUNNER, _SSHD_PID = ("google_guest_agent", 812), ("google_metadata_script_runner", 1187), 1173


@dataclass(frozen=True)
class BootDelays:
    """Delays of a boot, in seconds; with 0, everything is ready when sshd starts.

    Attributes:
        nologin_s: From the start of sshd until systemd lets users log in (pam_nologin).
        account_s: From the start of sshd until the guest agent has created the accounts of the metadata.
        host_key_s: From the start of sshd until the guest agent publishes its host key. It published the key of the
            image before, which cloud-init replaced at the first boot; 0: it publishes only the right key.
        upgrade_s: From power-on until unattended-upgrades releases dpkg's lock.
        driver_s: From the start of sshd until the image has installed NVIDIA's driver.
    """

    nologin_s: float = 0.0
    account_s: float = 0.0
    host_key_s: float = 0.0
    upgrade_s: float = 0.0
    driver_s: float = 0.0


class Console:
    """The serial console of a guest, in the format of an Ubuntu image of Compute Engine.

    Args:
        name: Host name of the guest.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lines: list[str] = []

    def text(self) -> str:
        """Return the whole output."""
        return "".join(f"{line}\r\n" for line in list(self._lines))

    def boot(self) -> None:
        """Print the first messages of the firmware, the kernel, and systemd."""
        self._lines += ["SeaBIOS (version 1.8.2-google)", "Booting from Hard Disk 0..."]
        self.kernel("Linux version 6.14.0-1021-gcp (buildd@lcy02-amd64-051) #22~24.04.1-Ubuntu SMP")
        self.kernel(f"systemd[1]: Hostname set to <{self._name}>.")

    def kernel(self, words: str) -> None:
        """Print a message of the kernel."""
        self._lines.append(f"[{time.monotonic() % 1e6:12.6f}] {words}")

    def host_key(self, public: str) -> None:
        """Print cloud-init's report of the host key."""
        key, mark = f"{' '.join(public.split()[:2])} root@{self._name}", "SSH HOST KEY"
        prefix = f"<14>{_now()} cloud-init: "
        shown = f"256 {fingerprint(public)} root@{self._name} (ED25519)"
        self._lines += [f"{prefix}-----BEGIN {mark} FINGERPRINTS-----", prefix + shown]
        self._lines += [f"{prefix}-----END {mark} FINGERPRINTS-----"]
        self._lines += [f"-----BEGIN {mark} KEYS-----", key, f"-----END {mark} KEYS-----"]

    def program(self, program: str, pid: int, words: str) -> None:
        """Print a line of a program, as the journal forwards it."""
        self._lines.append(f"{_now()} {self._name} {program}[{pid}]: {words}")


def _now() -> str:
    return time.strftime("%b %e %H:%M:%S", time.gmtime())


class Guest:
    """The emulator's interface to a guest, and one that has no disk and no processes.

    Args:
        spec: The properties of the guest.
    """

    def __init__(self, spec: GuestSpec) -> None:
        self._spec = spec
        self._items = dict(spec.access[0])
        self._console = Console(spec.blueprint.name)

    def boot(self, external: str = "") -> None:
        """Start it with this external address; returns at once."""

    def update(self, access: Callable[[], Access]) -> None:
        """Set its present metadata items, and grant access to the users of the items, or to those of OS Login."""

    def admit(self, decide: Callable[[], bool]) -> None:
        """Let its sshd answer new connections if `decide` returns true, else leave them without an answer."""

    def serial(self) -> str:
        """Return its console output so far."""
        return self._console.text()

    def report(self, key: str, value: str | Mapping[str, str]) -> None:
        """Let its metadata server report a preemption, or maintenance of its host."""

    def follow_clock(self) -> None:
        """Show its programs that the clock was advanced."""

    def power_off(self) -> None:
        """End it; no process of it is left when this returns. It can boot again, with its files."""

    def restart(self) -> None:
        """Power it off and boot it again, unless it is off."""

    def save(self, directory: Path) -> None:
        """Copy the files of its disk to a new directory, for an image."""

    def remove(self) -> None:
        """End it, and delete its files."""


Guests = Callable[[GuestSpec, Publish], Guest]


def obstacle() -> str:
    """Return the reason why guests with sshd cannot run here; empty if they can."""
    if sshd.find() is None:
        return "sshd (openssh-server) is not installed"
    return space.obstacle() or space.cannot_listen(SSH_PORT)


class NoGuest(Guest):
    """An instance without a computer: it publishes its host key while `boot` is called, and powers off in time."""

    def __init__(self, spec: GuestSpec, publish: Publish) -> None:
        super().__init__(spec)
        self._publish = publish
        self._key = generate_ed25519(f"root@{spec.blueprint.name}").public
        self._boots = 0

    def boot(self, external: str = "") -> None:
        self._console.boot()
        self._boots += 1
        self._await_stop_time()
        if self._spec.blueprint.image.cloud_init:
            self._console.host_key(self._key)
        if may_publish(self._items):
            self._publish(*HOST_KEY, self._key.split()[1])

    def update(self, access: Callable[[], Access]) -> None:
        """Take other items; of fleet's startup script it confirms two of them, and powers off in time."""
        self._items = dict(access()[0])
        if may_publish(self._items) and "startup-script" in self._items:
            for item, attribute in (("fleet-stop-at", "stop-at"), ("fleet-image", "image")):
                if item in self._items:
                    self._publish("fleet", attribute, self._items[item])
        self._await_stop_time()

    def _await_stop_time(self) -> None:
        at, boots = self._items.get("fleet-stop-at", "0"), self._boots

        def power_off() -> None:
            if boots == self._boots and self._items.get("fleet-stop-at") == at:
                self._publish(*POWER_OFF)

        if at != "0" and "startup-script" in self._items:
            self._spec.clock.call_at(float(at), power_off)

    def power_off(self) -> None:
        self._boots += 1


class SshGuests:
    """Makes guests that are real to SSH.

    If ``FLEET_AGENTS`` is set, as in tests, they share what fleet compiles for the first account of each.

    Args:
        directory: Of what the guests have in common, readable by all.
        boot: What is ready only some time after power-on.

    Attributes:
        boot: As given; it applies to guests that are made afterwards.
        directory: As given, without links.
    """

    def __init__(self, directory: Path, boot: BootDelays = BootDelays()) -> None:
        self.directory = directory.resolve()
        self._packages = self.directory / PACKAGES
        self._python = self.directory / PYTHON
        self._agents = self.directory / AGENTS if sshd.AGENTS_VARIABLE in os.environ else None
        self.boot = boot
        self._interpreters: dict[bool, Path] = {}
        self._lock = threading.Lock()

    def __call__(self, spec: GuestSpec, publish: Publish) -> Guest:
        with self._lock:
            if not self._interpreters:
                packages.build(self._packages)
                if self._agents:
                    self._agents.mkdir(mode=0o700, parents=True, exist_ok=True)
                    os.chown(self._agents, FIRST_UID, FIRST_UID)
            interpreter = self._interpreter(spec.blueprint.image.is_managed)
        return SshGuest(replace(spec, agents=self._agents), publish, self._packages, interpreter, self.boot)

    def _interpreter(self, is_managed: bool) -> Path:
        """Return the interpreter of an image: it has the version of this program."""
        if is_managed not in self._interpreters:
            name = "managed" if is_managed else "unmanaged"
            self._interpreters[is_managed] = python.build(self._python / name, is_managed=is_managed)
        return self._interpreters[is_managed]


class SshGuest(Guest):
    """A guest with a real OpenSSH server.

    Its host key, made at its first boot, is published just before sshd starts, as Google's guest agent does it:
    clients that have the key must still wait for sshd. Afterwards, logins can still fail, see `BootDelays`.

    Args:
        spec: What it is made of.
        publish: Called from a thread of the guest's own.
        index: Where its pip finds packages.
        interpreter: Its python3.
        boot: What is ready only some time after power-on.
    """

    def __init__(self, spec: GuestSpec, publish: Publish, index: Path, interpreter: Path, boot: BootDelays) -> None:
        super().__init__(spec)
        drawn, accounts = spec.blueprint, spec.service_accounts
        self._index = index
        self._delays = boot
        self._has_accounts = False
        self._disk = Disk(spec, interpreter)
        self._keys = granted(*spec.access)
        self._metadata = Metadata(
            {
                "attributes": self._items,
                "hostname": self._disk.domain_name,
                "id": spec.id,
                "name": drawn.name,
                **_QUIET,
                "service-accounts": account_metadata(accounts[0]) if accounts else {},
                "zone": f"projects/{drawn.project}/zones/{drawn.zone}",
            },
            drawn.project,
            publish,
            spec.clock.now,
        )
        self._lock = threading.Lock()
        self._off = threading.Event()
        self._off.set()
        self._external = ""
        self._decide: Callable[[], bool] = lambda: True
        self._space: space.Space | None = None
        self._server: MetadataServer | None = None

    def boot(self, external: str = "") -> None:
        with self._lock:
            if not self._off.is_set():
                return
            self._off = threading.Event()
            self._external = external
        threading.Thread(
            target=self._boot, args=(self._off, external), name=f"{self._spec.blueprint.name} boots", daemon=True
        ).start()

    def _boot(self, off: threading.Event, external: str) -> None:
        self._console.boot()
        with self._lock:
            if off.is_set():
                return
            key = self._disk.prepare(nologin=self._delays.nologin_s > 0, late_driver=self._delays.driver_s > 0)
            self._has_accounts = not self._delays.account_s
            if self._has_accounts:
                self._refresh_accounts()
            for name, value in _QUIET.items():
                self._metadata.set(name, value)
            self._server = MetadataServer(self._metadata, self._spec.address)
            startup = self._items.get("startup-script", "")
            script = self._disk.write_boot_script(
                self._index, self._server.place, startup, self._delays.upgrade_s, external
            )
        first_key = generate_ed25519("root@image").public if self._delays.host_key_s else key
        self._console.program(*_AGENT, "GCE Agent Started (version 20261015.00)")
        self._metadata.set_guest_attribute(*HOST_KEY, first_key.split()[1])
        if self._spec.blueprint.image.cloud_init:
            self._console.host_key(key)
        with self._lock:
            if off.is_set():
                return
            try:
                self._space = space.Space(script, self._hear)
                self._space.pause(not self._decide())
            except OSError as error:
                self._console.program("systemd", 1, f"Failed to start: {error}")
                return
        self._console.program("systemd", 1, "Started ssh.service - OpenBSD Secure Shell server.")
        self._complete(off, key)

    def _complete(self, off: threading.Event, key: str) -> None:
        """Do what comes after the start of sshd, each at its time."""
        steps: list[tuple[float, Callable[[], object]]] = [
            (self._delays.nologin_s, self._disk.allow_logins),
            (self._delays.account_s, self._create_accounts),
            (self._delays.driver_s, self._disk.load_driver),
        ]
        if self._delays.host_key_s:
            right_key = (*HOST_KEY, key.split()[1])
            steps.append((self._delays.host_key_s, lambda: self._metadata.set_guest_attribute(*right_key)))
        passed_s = 0.0
        for at_s, act in sorted(steps, key=lambda step: step[0]):
            if off.wait(at_s - passed_s):
                return
            passed_s = at_s
            act()

    def _create_accounts(self) -> None:
        with self._lock:
            for user in self._keys:
                self._console.program(*_AGENT, f"Updating keys for user {user}.")
            if not self._has_accounts:
                self._has_accounts = True
                self._refresh_accounts()

    def _refresh_accounts(self) -> None:
        """Grant access to the users of the metadata, who become root by sudo, or to those of OS Login, who do not."""
        self._disk.accounts.refresh(self._keys, sudo=not uses_os_login(self._items))

    def _hear(self, line: str) -> None:
        if line.startswith(STARTUP):
            self._console.program(*_SCRIPT_RUNNER, line)
        else:
            self._console.program("sshd", _SSHD_PID, line)

    def update(self, access: Callable[[], Access]) -> None:
        with self._lock:  # whichever of several updates comes last, it takes the present state
            items, keys = access()
            self._items, self._keys = dict(items), granted(items, keys)
            self._metadata.set("attributes", self._items)
            if self._server is not None and self._has_accounts:
                self._refresh_accounts()

    def admit(self, decide: Callable[[], bool]) -> None:
        with self._lock:
            self._decide = decide
            if self._space is not None:
                self._space.pause(not decide())

    def report(self, key: str, value: str | Mapping[str, str]) -> None:
        self._metadata.set(key, value)

    def follow_clock(self) -> None:
        with self._lock:
            if self._server is not None:
                self._disk.set_clock()
                self._metadata.end_waiting()

    def power_off(self) -> None:
        self._end()
        with self._lock:
            self._disk.stop()

    def _end(self) -> None:
        """End all processes."""
        with self._lock:
            was_on = not self._off.is_set()
            self._off.set()
            if self._space is not None:
                self._space.kill()
                self._space = None
            if self._server is not None:
                self._server.close()
                self._server = None
        if was_on:
            self._console.kernel("reboot: Power down")

    def restart(self) -> None:
        if not self._off.is_set():
            self._end()
            self.boot(self._external)

    def save(self, directory: Path) -> None:
        with self._lock:
            self._disk.save(directory)

    def remove(self) -> None:
        self.power_off()
        with self._lock:  # a deletion and the end of the emulator may come together
            if self._spec.directory.exists():
                shutil.rmtree(self._spec.directory)
