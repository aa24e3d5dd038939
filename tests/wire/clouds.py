"""The emulator of Compute Engine whose instances are guests with a real sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.emulator import Emulator
from tests.emulator.guests import SshGuests, obstacle


@contextmanager
def emulator_with_guests(tmp_path_factory: pytest.TempPathFactory, operation_s: float = 0.02) -> Iterator[Emulator]:
    """Run the emulator with guests, each operation of which takes `operation_s`; skip the test if they cannot run."""
    if reason := obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    with Emulator(operation_s=operation_s, guests=SshGuests(directory), directory=directory) as running:
        yield running


def count_files(emulator: Emulator, name: str) -> int:
    """Return the number of files with a name on the disks of the instances, whether they run or not."""
    disks = [emulator.cloud.directory / each.body["id"] for each in emulator.cloud.instances.values()]
    return sum(name in files for disk in disks for _, _, files in os.walk(disk / "covers" / "home"))
