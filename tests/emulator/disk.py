"""The disk of a guest: the directory of all its files, and the mounts that show them at their paths.

User accounts are not root, so they can read only files that all users can read. If the interpreter of this machine,
or the packages for pip, are in a directory that is closed to other users, or that the guest has its own version of,
they are mounted at the same path in the guest's directory of that name.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from provision.keys import generate_ed25519
from provision.local import sshd
from tests.emulator.accounts import Accounts
from tests.emulator.blueprint import Blueprint
from tests.emulator.catalog import ACCELERATORS
from tests.emulator.clock import Clock
from tests.emulator.space import UP

_IMAGES = Path(__file__).with_name("images")
_BIN = Path("/usr/local/bin")
_AGENTS = Path("/var/lib/emulator/agents")
SSH_PORT = 22
STARTUP = "startup-script: "
"""Begins the lines of the startup script's output."""
# Emptied for a guest, whatever this computer has there. sshd writes who logs in to the last two.
_OWN = (Path("/home"), Path("/root"), Path("/tmp"), Path("/run"), Path("/var/lib"), Path("/var/log"))

_IMAGED = ("passwd", "group", "shadow", "machine-id")
"""Files in /etc that an image keeps; changes of others are lost at power-off."""

_ABSENT = "absent\n"
"""State of a driver that is not there yet."""
_LOCAL_SSD_BYTES = 32 << 20
_TURING = 7.5
"""The lowest compute capability that NVIDIA's open kernel modules support."""


Access = tuple[Mapping[str, str], Mapping[str, list[str]]]
"""Metadata items of a guest, and the keys by user with which OS Login grants access if the items enable it."""


@dataclass(frozen=True)
class GuestSpec:
    """The properties of a guest.

    Attributes:
        blueprint: The instance.
        id: Its number.
        address: Loopback address of its own.
        directory: Of all its files; its own, and gone with it.
        access: Its metadata items and keys of OS Login at first.
        clock: Its time, which the program ``date`` and the metadata server show.
        index: Whether pip finds packages.
        hosts: Further lines of its /etc/hosts.
        certificate: Certificate that its image trusts, PEM.
        service_accounts: Its service account with its scopes, as the instance has it; empty: none.
        agents: Directory of its first account, of agents that fleet has compiled; None: in the home directory.
    """

    blueprint: Blueprint
    id: str
    address: str
    directory: Path
    access: Access
    clock: Clock
    index: bool
    hosts: tuple[str, ...]
    certificate: str
    service_accounts: tuple[Mapping[str, Any], ...]
    agents: Path | None = None


class Disk:
    """The files of one guest.

    Args:
        spec: What the instance is made of.
        python: Interpreter that users find as python3.

    Attributes:
        accounts: Who may log in.
        domain_name: Of the guest in its cloud's network.
    """

    def __init__(self, spec: GuestSpec, python: Path) -> None:
        self._drawn = drawn = spec.blueprint
        self._gpu = ACCELERATORS[drawn.gpu].smi if drawn.gpus else ()
        self._spec = spec
        self._python = python
        self._directory = spec.directory.resolve()
        self._etc = self._directory / "etc"
        self.accounts = Accounts(self._etc, self._seen(Path("/home")), self._seen(Path("/root")))
        self.domain_name = f"{drawn.name}.{drawn.zone}.c.{drawn.project}.internal"

    def _seen(self, place: Path) -> Path:
        """Return the path at which the guest sees `place`."""
        return self._directory / "covers" / str(place).strip("/")

    def prepare(self, *, nologin: bool = False, late_driver: bool = False) -> str:
        """Make what is missing of its files, and empty ``/tmp`` and ``/run``, before a boot; the public host key.

        Args:
            nologin: Refuse logins of users until `allow_logins`.
            late_driver: NVIDIA's driver is not there until `load_driver`.
        """
        files = self._drawn.image.files
        if files and files.exists() and not self._directory.exists():
            _copy(files, self._directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self.accounts.prepare()
        for place, mode in (("/tmp", 0o1777), ("/run", 0o755)):
            directory = self._seen(Path(place))
            if directory.exists():
                shutil.rmtree(directory)
            directory.mkdir()
            directory.chmod(mode)
        # Without it, an sshd that root starts does not run.
        for name in ("sshd", "emulator/sessions", "emulator/units"):
            (self._seen(Path("/run")) / name).mkdir(mode=0o755, parents=True)
        (self._seen(Path("/var/lib")) / "dpkg").mkdir(parents=True, exist_ok=True)
        for number in range(self._drawn.local_ssds):
            ssd = self._local_ssds / "by-id" / f"google-local-nvme-ssd-{number}"
            if not ssd.exists():
                ssd.parent.mkdir(parents=True, exist_ok=True)
                with ssd.open("wb") as file:
                    file.truncate(_LOCAL_SSD_BYTES)
        self.set_clock()
        if nologin:
            shutil.copy(_IMAGES / "nologin", self._nologin)
        if late_driver:
            self._driver.write_text(_ABSENT)
        (self._etc / "pam.d").mkdir(exist_ok=True)
        shutil.copy(_IMAGES / "pam_sshd", self._etc / "pam.d" / "sshd")
        (self._etc / "image.sh").write_text(self._drawn.image.login_script)
        (self._directory / "memory").mkdir(exist_ok=True)
        (self._directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
        machine_id = self._etc / "machine-id"
        if not machine_id.exists() or not machine_id.read_text().strip():  # as systemd does, also if it is empty
            machine_id.write_text(f"{uuid.uuid4().hex}\n")
        (self._etc / "hostname").write_text(f"{self._drawn.name}\n")
        (self._etc / "hosts").write_text(
            f"127.0.0.1 localhost\n{self._spec.address} {self.domain_name} {self._drawn.name}  # Added by Google\n"
            + "".join(f"{line}\n" for line in self._spec.hosts)
        )
        (self._etc / "authority.pem").write_text(self._spec.certificate)
        self._write_programs()
        return self._host_key()

    def save(self, directory: Path) -> None:
        """Copy what an image of this disk contains: all but host keys, ``/tmp``, ``/run``, and changes of /etc.

        The keys are left out because the image replaces them when another instance boots from it.
        """
        covers = self._seen(Path("/"))
        if not covers.exists():
            return  # it has never booted
        (directory / "etc").mkdir(parents=True)
        for name in _IMAGED:
            _copy(self._etc / name, directory / "etc" / name)
        _copy(covers, directory / covers.name)
        for place in ("tmp", "run"):
            shutil.rmtree(directory / covers.name / place)

    def stop(self) -> None:
        """Lose what ends with a stop of the instance: the content of its Local SSDs."""
        shutil.rmtree(self._local_ssds, ignore_errors=True)

    @property
    def _local_ssds(self) -> Path:
        """Return the directory of files that appear as Local SSDs, which are blank at each start of the instance."""
        return self._directory / "local-ssds"

    def set_clock(self) -> None:
        """Let ``date`` show the present time of the guest."""
        file = self._seen(Path("/run")) / "emulator" / "ahead"
        new = file.with_suffix(".new")
        new.write_text(f"{round(self._spec.clock.now() - time.time())}\n")
        new.replace(file)

    @property
    def _nologin(self) -> Path:
        return self._seen(Path("/run")) / "nologin"

    def allow_logins(self) -> None:
        """Let users log in, as systemd does late in a boot."""
        self._nologin.unlink(missing_ok=True)

    @property
    def _driver(self) -> Path:
        """Return the file that says why NVIDIA's driver does not work; it works if the file does not exist."""
        return self._seen(Path("/run")) / "emulator" / "driver"

    def load_driver(self) -> None:
        """Let NVIDIA's driver work, which the image installs late in a boot, unless it was replaced already."""
        if self._driver.exists() and self._driver.read_text() == _ABSENT:
            self._driver.unlink()

    @property
    def _visible_gpus(self) -> int:
        """Number of GPUs that the driver of the image supports."""
        driver = self._drawn.image.driver if self._gpu else ""
        is_supported = driver and (driver != "open" or float(self._gpu[3]) >= _TURING)
        return self._drawn.gpus if is_supported else 0

    def _host_key(self) -> str:
        directory = self._etc / "ssh"
        directory.mkdir(exist_ok=True)
        private, public = directory / "ssh_host_ed25519_key", directory / "ssh_host_ed25519_key.pub"
        if not public.exists():
            pair = generate_ed25519(f"root@{self._drawn.name}")
            private.touch(0o600)
            private.write_text(pair.private)
            public.write_text(f"{pair.public}\n")
        return public.read_text().strip()

    def _write_programs(self) -> None:
        directory = self._directory / "bin"
        if directory.exists():
            return
        shutil.copytree(_IMAGES / "bin", directory)
        shutil.copy(directory / "shutdown", directory / "reboot")
        # Not a link: an environment created through a link looks for the standard library next to the link.
        (directory / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(str(self._python))} "$@"\n')
        has_driver = bool(self._gpu and self._drawn.image.driver)
        for name in ("apt_get", "unattended_upgrade", *(["nvidia_smi"] if has_driver else [])):
            source = (_IMAGES / f"{name}.py").read_text()
            (directory / name.replace("_", "-")).write_text(f"#!{_BIN}/python3 -IS\n{source}")
        for program in directory.iterdir():
            program.chmod(0o755)
        if has_driver:
            name, memory, power, capability = self._gpu
            properties = {
                "count": self._visible_gpus,
                "name": name,
                "memory_mib": memory,
                "power_w": power,
                "compute_cap": capability,
            }
            (directory / "nvidia-smi.json").write_text(json.dumps(properties))

    def write_boot_script(
        self, index: Path, metadata: str, startup: str = "", upgrade_s: float = 0.0, external: str = ""
    ) -> Path:
        """Write what makes the mounts and becomes sshd; the startup script runs at the same time.

        Root of the guest is root of this machine, so that the files of this machine are mounted read-only. Changes of
        /etc are in memory.

        Args:
            index: Directory where pip finds packages.
            metadata: Address and port of the metadata server.
            startup: The startup script of the instance's metadata; empty: it has none.
            upgrade_s: Time for which unattended-upgrades holds dpkg's lock.
            external: External address, at which sshd also answers; empty: there is none.
        """
        program = sshd.find()
        assert program
        variables = " ".join(f'"{name}={value}"' for name, value in self._environment(index, metadata).items())
        addresses = filter(None, (self._spec.address, external))
        listens = "".join(f"ListenAddress {address}:{SSH_PORT}\n" for address in addresses)
        config = f"{listens}SetEnv {variables}\n{(_IMAGES / 'sshd_config').read_text()}"
        (self._etc / "ssh" / "sshd_config").write_text(config)
        lines = [
            "set -eu",
            f"cd {shlex.quote(str(self._directory))}",
            f"echo {shlex.quote(self._drawn.name)} > /proc/sys/kernel/hostname",
            (_IMAGES / "boot.sh").read_text(),
        ]
        lines += self._covers([*_needed(self._python), index, self._python.parents[1]])
        lines += ["cd /", "mount -o remount,ro,bind /", *self._boot_programs(metadata, startup, upgrade_s)]
        lines += [f"echo {shlex.quote(UP)}", f"exec {shlex.quote(program)} -D -e"]
        path = self._directory / "boot.sh"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _boot_programs(self, metadata: str, startup: str, upgrade_s: float) -> list[str]:
        """Return commands that start what runs at the same time as sshd from the beginning."""
        lines = []
        if upgrade_s:
            lines += [f"{_BIN}/unattended-upgrade {upgrade_s} &", "while ! [ -s /run/emulator/units/* ]; do :; done"]
        if startup:
            script = self._seen(Path("/run")) / "startup-script"
            script.touch(0o700)
            script.write_text(startup)
            variables = f"PATH={_BIN}:$PATH GCE_METADATA_HOST={metadata}"
            lines.append(f"{variables} /run/startup-script 2>&1 | sed -u 's/^/{STARTUP}/' &")
        return lines

    def _covers(self, needed: list[Path]) -> list[str]:
        """Commands that show the guest its own directories, with what it needs of this computer in them."""
        covers = _covered(needed)
        lines = []
        for path in needed:
            cover = next((cover_path for cover_path in covers if path.is_relative_to(cover_path)), None)
            if cover is not None:
                place = self._seen(cover) / path.relative_to(cover)
                place.mkdir(parents=True, exist_ok=True)
                lines.append(f"mount --bind {shlex.quote(str(path))} {shlex.quote(str(place))}")
        if self._spec.agents:
            place = self._seen(_AGENTS)
            place.mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --bind {shlex.quote(str(self._spec.agents))} {shlex.quote(str(place))}")
        # The directory of this disk comes last: after this mount, the disk has no path.
        for cover in sorted(covers, key=self._directory.is_relative_to):
            self._seen(cover).mkdir(parents=True, exist_ok=True)
            lines.append(f"mount --rbind {shlex.quote(str(self._seen(cover)))} {shlex.quote(str(cover))}")
        return lines

    def _environment(self, index: Path, metadata: str) -> Mapping[str, str]:
        variables = {"GCE_METADATA_HOST": metadata, "PIP_NO_INDEX": "1"}
        if self._spec.index:
            variables["PIP_FIND_LINKS"] = index.as_uri()
        if self._spec.agents:
            variables[sshd.AGENTS_VARIABLE] = str(_AGENTS)
        if self._visible_gpus:
            variables["EMULATED_GPUS"] = f"{_BIN}/nvidia-smi.json"
        return variables


def _copy(source: Path, target: Path) -> None:
    """Copy a file or directory with its owners, times, and links."""
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def _needed(python: Path) -> list[Path]:
    """Directories of this computer that must be seen at their own paths; `python` is the guest's interpreter."""
    library = (python.parents[1] / "lib" / python.name / "os.py").resolve()
    return list(dict.fromkeys([Path(sys.base_prefix), library.parents[2], Path(sys.prefix)]))


def _covered(needed: list[Path]) -> list[Path]:
    """Directories that the guest has of its own: the usual ones, and those that are closed to others on the way."""
    covers = list(_OWN)
    for path in needed:
        for directory in reversed(path.parents):
            if any(directory.is_relative_to(cover) for cover in covers):
                break
            if not directory.stat().st_mode & 0o001:
                covers.append(directory)
                break
    return covers
