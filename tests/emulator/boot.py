"""The course of a guest's boot: what is ready only some time after sshd accepts connections."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    start_s: float = 0.0
    nologin_s: float = 0.0
    account_s: float = 0.0
    host_key_s: float = 0.0
    upgrade_s: float = 0.0
