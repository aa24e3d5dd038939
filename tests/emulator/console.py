"""The serial console output of a guest, in the format of an Ubuntu image of Compute Engine."""

from __future__ import annotations

import threading
import time

from provision.keys import fingerprint


class Console:
    """A serial console.

    Args:
        name: Host name of the guest.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._lines: list[str] = []
        self._booted_at = time.monotonic()

    def text(self) -> str:
        """Return the whole output."""
        with self._lock:
            return "".join(f"{line}\r\n" for line in self._lines)

    def boot(self) -> None:
        """Print the first messages of the kernel and systemd."""
        self._booted_at = time.monotonic()
        self._say("SeaBIOS (version 1.8.2-google)", "Booting from Hard Disk 0...")
        self._kernel("Linux version 6.14.0-1021-gcp (buildd@lcy02-amd64-051) #22~24.04.1-Ubuntu SMP")
        self._kernel(
            "Command line: BOOT_IMAGE=/vmlinuz-6.14.0-1021-gcp root=PARTUUID=d7ea7b44 ro console=ttyS0,115200"
        )
        self._kernel("DMI: Google Google Compute Engine/Google Compute Engine, BIOS Google 10/03/2026")
        self._kernel("systemd[1]: Detected virtualization google.")
        self._kernel(f"systemd[1]: Hostname set to <{self._name}>.")

    def host_key(self, public: str) -> None:
        """Print cloud-init's report of the host key."""
        blob = " ".join(public.split()[:2])
        for line in (
            "-----BEGIN SSH HOST KEY FINGERPRINTS-----",
            f"256 {fingerprint(public)} root@{self._name} (ED25519)",
            "-----END SSH HOST KEY FINGERPRINTS-----",
        ):
            self._say(f"<14>{_now()} cloud-init: {line}")
        self._say("-----BEGIN SSH HOST KEY KEYS-----", f"{blob} root@{self._name}", "-----END SSH HOST KEY KEYS-----")

    def program(self, program: str, pid: int, words: str) -> None:
        """Print a line of a program, as the journal forwards it."""
        self._say(f"{_now()} {self._name} {program}[{pid}]: {words}")

    def unit(self, state: str, unit: str) -> None:
        """Print a line of systemd: ``Started`` and the unit's description."""
        self._say(f"[  OK  ] {state} {unit}.")

    def power_off(self) -> None:
        """Print the last messages of systemd."""
        self._kernel("reboot: Power down")

    def _kernel(self, words: str) -> None:
        self._say(f"[{time.monotonic() - self._booted_at:12.6f}] {words}")

    def _say(self, *lines: str) -> None:
        with self._lock:
            self._lines.extend(lines)


def _now() -> str:
    return time.strftime("%b %e %H:%M:%S", time.gmtime())
