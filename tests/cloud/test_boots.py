"""Fleets on images that take time to boot: accounts, host keys, drivers, and package locks come after sshd."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.emulator import Emulator
from tests.emulator.guests import BootDelays, SshGuests, obstacle
from tests.program import Program, lines_of

pytestmark = pytest.mark.wire
UP = ("up", "--workers", "1", "--provider", "gce", "--python", "/usr/bin/python3", "--yes")


@pytest.fixture(scope="module")
def guests(tmp_path_factory: pytest.TempPathFactory) -> SshGuests:
    if reason := obstacle():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("guests")
    directory.chmod(0o755)
    return SshGuests(directory)


@pytest.fixture(scope="module")
def running(guests: SshGuests) -> Iterator[Emulator]:
    with Emulator(operation_s=0.02, guests=guests, directory=guests.directory) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator, guests: SshGuests) -> Iterator[Emulator]:
    yield running
    guests.boot = BootDelays()
    assert running.state()["violations"] == []
    running.reset()


@pytest.fixture
def rented(program: Program, emulator: Emulator) -> Iterator[Program]:
    program.env.update(FLEET_GCE_ENDPOINT=emulator.url, FLEET_GCE_PROJECT="proj-1")
    yield program
    program.close()


def test_up_waits_for_logins_the_account_and_the_right_host_key(rented: Program, guests: SshGuests) -> None:
    guests.boot = BootDelays(nologin_s=0.3, account_s=0.6, host_key_s=0.9)
    ran = rented.run(*UP)
    assert "worker-0" in ran.err
    assert "every host answers" in rented.run("up", "--yes").err
    # Shared memory of a job outlives the last session.
    rented.run("exec", "--", "sh", "-c", "until grep -qs no /etc/systemd/logind.conf.d/*; do sleep 0.1; done")
    rented.run("exec", "--", "touch", "/dev/shm/kept")
    for _ in range(2):
        assert "kept" in rented.run("exec", "--", "ls", "/dev/shm").text


def test_root_prepares_an_instance_before_its_packages(
    rented: Program, emulator: Emulator, guests: SshGuests
) -> None:
    guests.boot = BootDelays(upgrade_s=1.0)
    (rented.directory / "boot.sh").write_text("#!/usr/bin/env bash\nid -un; echo ${BASH_VERSION:+bash}\n")
    setup = "apt-get install -y libfoo && echo at $(date +%s%N) >>/var/lib/times"
    scripts = ("--startup-script", "boot.sh", "--setup", setup)
    rented.run(*UP, *scripts, "--label", "team=vision", "--tag", "web", "--metadata", "note=a,b=c")
    [instance] = emulator.cloud.instances.values()
    files = emulator.cloud.directory / instance.body["id"] / "covers"
    assert (files / "var/lib/dpkg/installed").read_text() == "libfoo\n"
    assert instance.guest is not None
    assert "startup-script: bash" in instance.guest.serial()
    check = "cat /etc/systemd/logind.conf.d/fleet.conf; readlink /etc/systemd/system/apt-daily-upgrade.timer"
    lines = lines_of(rented.run("exec", "--", "sh", "-c", check), "worker-0")
    assert lines == ["[Login]", "RemoveIPC=no", "/dev/null"]
    [disk] = emulator.cloud.disks.values()
    assert instance.body["labels"]["team"] == disk["labels"]["team"] == "vision"
    assert "web" in instance.body["tags"]["items"]
    assert instance.metadata()["note"] == "a,b=c"

    rented.run("up", "--yes")
    assert len((files / "var/lib/times").read_text().splitlines()) == 1


@pytest.mark.skipif(not os.access("/dev/loop-control", os.W_OK), reason="this computer has no loop devices")
def test_local_ssds_keep_files_at_a_restart_and_lose_them_at_a_stop(rented: Program, emulator: Emulator) -> None:
    ran = rented.run(*UP, "--local-ssd", "2")
    assert "Local SSDs are at /mnt/localssd (FLEET_LOCAL_SSD)" in " ".join(ran.text.split())
    rented.run("exec", "--", "touch", "/mnt/localssd/kept")
    check = ("exec", "--", "sh", "-c", "findmnt -no FSTYPE /mnt/localssd; ls /mnt/localssd")
    [instance] = emulator.cloud.instances.values()
    assert instance.guest is not None
    instance.guest.restart()
    rented.run("up", "--yes")
    assert lines_of(rented.run(*check), "worker-0") == ["ext4", "kept", "lost+found"]
    stopped = rented.run("down", "--keep-disks", "--yes")
    assert "the content of Local SSDs is lost with the stop" in stopped.err
    rented.run("up", "--yes")
    assert lines_of(rented.run(*check), "worker-0") == ["ext4", "lost+found"]


@pytest.mark.e2e
def test_up_waits_for_the_driver_and_restarts_after_an_upgrade_of_it(
    rented: Program, emulator: Emulator, guests: SshGuests
) -> None:
    guests.boot = BootDelays(driver_s=1.0)
    image = "projects/gpu-images/global/images/family/ubuntu-2204-nvidia-535"
    machine = ("--gpu", "p100", "--image", image, "--zone", "us-central1-c", "--package", "six")
    ran = rented.run("up", "--workers", "1", *machine, "--setup", "apt-get upgrade -y", "--yes", timeout=180)
    assert "restarting the host, because an upgrade replaced the NVIDIA driver" in ran.err
    assert "1 of Tesla P100" in ran.err
    [instance] = emulator.cloud.instances.values()
    assert instance.guest is not None
    assert instance.guest.serial().count("Linux version") == 2


def test_a_failed_setup_keeps_the_hosts_and_runs_again(rented: Program, emulator: Emulator) -> None:
    failed = rented.run(*UP, "--setup", "echo begin; ls /var/lib/needed", code=14)
    error = " ".join(failed.err.split())
    assert "the script of --setup failed with exit code 2" in error
    assert "/var/lib/needed" in error
    assert "worker-0 kept until" in error
    [(before, instance)] = emulator.cloud.instances.items()
    library = emulator.cloud.directory / instance.body["id"] / "covers" / "var" / "lib"
    (library / "needed").touch()
    rented.run("up", "--yes")
    rented.run("up", "--yes", "--setup", "echo changed >>/var/lib/result")
    assert (library / "result").read_text() == "changed\n"
    assert list(emulator.cloud.instances) == [before]
