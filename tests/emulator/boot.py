"""The course of a guest's boot: what is ready only some time after sshd accepts connections."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields


@dataclass(frozen=True)
class BootDelays:
    """Delays of a boot, in seconds; with 0, everything is ready when sshd starts.

    Attributes:
        start_s: From power-on until sshd starts.
        nologin_s: From the start of sshd until systemd lets users log in (pam_nologin).
        account_s: From the start of sshd until the guest agent has created the accounts of the metadata.
        host_key_s: From the start of sshd until the guest agent publishes its host key. It published the key of the
            image before, which cloud-init replaced at the first boot; 0: it publishes only the right key.
        upgrade_s: From power-on until unattended-upgrades releases dpkg's lock.
        driver_s: From the start of sshd until the image has installed NVIDIA's driver.
    """

    start_s: float = 0.0
    nologin_s: float = 0.0
    account_s: float = 0.0
    host_key_s: float = 0.0
    upgrade_s: float = 0.0
    driver_s: float = 0.0


def parse_delays(texts: Sequence[str]) -> BootDelays:
    """Return the delays in texts such as ``account=20``.

    Raises:
        ValueError: a text is invalid; the message is for the user.
    """
    names = [field.name.removesuffix("_s") for field in fields(BootDelays)]
    seconds: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        if name not in names or not number.replace(".", "", 1).isdecimal():
            raise ValueError(f"{text!r} is not a delay: write NAME=SECONDS, with a name of {', '.join(names)}")
        seconds[f"{name}_s"] = float(number)
    return BootDelays(**seconds)
