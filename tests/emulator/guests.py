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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from provision.keys import generate_ed25519
from provision.local import sshd
from tests.emulator import packages, python, space
from tests.emulator.accounts import FIRST_UID, granted, uses_os_login
from tests.emulator.catalog import Image
from tests.emulator.console import Console
from tests.emulator.disk import SSH_PORT, STARTUP, Disk, GuestSpec
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


class Guest(Protocol):
    """The emulator's interface to a guest."""

    def boot(self, external: str = "") -> None:
        """Start it with this external address; returns at once."""

    def update_metadata(self, items: Mapping[str, str], os_login_keys: Mapping[str, list[str]]) -> None:
        """Set its metadata items, and grant access to the users that they name, or that OS Login names."""

    def admit(self, decide: Callable[[], bool]) -> None:
        """Let its sshd answer new connections if `decide` returns true, else leave them without an answer."""

    def serial(self) -> str:
        """Return its console output so far."""

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


__all__ = ["Guest", "GuestSpec"]
Guests = Callable[[GuestSpec, Publish], Guest]


def obstacle() -> str:
    """Return the reason why guests with sshd cannot run here; empty if they can."""
    if sshd.find() is None:
        return "sshd (openssh-server) is not installed"
    return space.obstacle() or space.cannot_listen(SSH_PORT)


class NoGuest:
    """An instance without a computer: it publishes its host key while `boot` is called, and powers off in time."""

    def __init__(self, spec: GuestSpec, publish: Publish) -> None:
        self._metadata = spec.metadata
        self._publish = publish
        self._console = Console(spec.name)
        self._prints_key = spec.cloud_init
        self._key = generate_ed25519(f"root@{spec.name}").public
        self._clock = spec.clock
        self._boots = 0

    def boot(self, external: str = "") -> None:
        self._console.boot()
        self._boots += 1
        self._await_stop_time()
        if self._prints_key:
            self._console.host_key(self._key)
        if may_publish(self._metadata):
            self._publish(*HOST_KEY, self._key.split()[1])

    def update_metadata(self, items: Mapping[str, str], os_login_keys: Mapping[str, list[str]]) -> None:
        """Take other items; of fleet's startup script it confirms two of them, and powers off in time."""
        self._metadata = items
        if may_publish(items) and "startup-script" in items:
            for item, attribute in (("fleet-stop-at", "stop-at"), ("fleet-image", "image")):
                if item in items:
                    self._publish("fleet", attribute, items[item])
        self._await_stop_time()

    def _await_stop_time(self) -> None:
        at, boots = self._metadata.get("fleet-stop-at", "0"), self._boots

        def power_off() -> None:
            if boots == self._boots and self._metadata.get("fleet-stop-at") == at:
                self._publish(*POWER_OFF)

        if at != "0" and "startup-script" in self._metadata:
            self._clock.call_at(float(at), power_off)

    def admit(self, decide: Callable[[], bool]) -> None:
        """Do nothing: it has no sshd."""

    def serial(self) -> str:
        return self._console.text()

    def report(self, key: str, value: str | Mapping[str, str]) -> None:
        """Do nothing: no process runs on it."""

    def follow_clock(self) -> None:
        """Do nothing: no process runs on it."""

    def power_off(self) -> None:
        self._boots += 1
        self._console.power_off()

    def restart(self) -> None:
        """Do nothing: no process runs on it."""

    def save(self, directory: Path) -> None:
        """There is nothing to copy."""

    def remove(self) -> None:
        """There is nothing to remove."""


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
            interpreter = self._interpreter(spec.image)
        return SshGuest(replace(spec, agents=self._agents), publish, self._packages, interpreter, self.boot)

    def _interpreter(self, image: Image | None) -> Path:
        """Return the interpreter of an image: it has the version of this program."""
        is_managed = image is None or image.is_managed
        if is_managed not in self._interpreters:
            name = "managed" if is_managed else "unmanaged"
            self._interpreters[is_managed] = python.build(self._python / name, is_managed=is_managed)
        return self._interpreters[is_managed]


class SshGuest:
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
        self._spec = spec
        self._index = index
        self._delays = boot
        self._has_accounts = False
        self._console = Console(spec.name)
        self._disk = Disk(spec, interpreter)
        self._items = dict(spec.metadata)
        self._keys = granted(spec.metadata, spec.os_login_keys)
        self._metadata = Metadata(
            {
                "attributes": self._items,
                "hostname": self._disk.domain_name,
                "id": spec.id,
                "name": spec.name,
                **_QUIET,
                "service-accounts": account_metadata(spec.service_accounts[0]) if spec.service_accounts else {},
                "zone": f"projects/{spec.project}/zones/{spec.zone}",
            },
            spec.project,
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
            target=self._boot, args=(self._off, external), name=f"{self._spec.name} boots", daemon=True
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
        if self._spec.cloud_init:
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
        self._console.unit("Started", "ssh.service - OpenBSD Secure Shell server")
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

    def update_metadata(self, items: Mapping[str, str], os_login_keys: Mapping[str, list[str]]) -> None:
        with self._lock:
            self._items = dict(items)
            self._keys = granted(items, os_login_keys)
            self._metadata.set("attributes", self._items)
            if self._server is not None and self._has_accounts:
                self._refresh_accounts()

    def admit(self, decide: Callable[[], bool]) -> None:
        with self._lock:
            self._decide = decide
            if self._space is not None:
                self._space.pause(not decide())

    def serial(self) -> str:
        return self._console.text()

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
            self._console.power_off()

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
