"""Functions of the startup script, with stand-ins for the programs that change the host."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from provision.gce.api.resources import startup_script

# A disk or an array has content if a file with its name exists; the file "array" has the name of the array.
STAND_INS = """
log() { echo "$@" >>calls; }
mountpoint() { return 1; }
find() { cat disks; }
lsblk() { [ ! -e array ] || echo "$(cat array) raid0"; }
blkid() { [ -e "$(basename "$2")" ] || return 2; }
mdadm() {
    log mdadm "$@"
    [ "$1" = --create ] || return
    for disk in a b; do touch "$disk"; done
    echo "$2" >array
}
mke2fs() { log mke2fs "$@"; shift 6; touch "$(basename "$1")"; }
mount() { log mount "$@"; }
chmod() { log chmod "$@"; }
"""
CREATE = "mdadm --create /dev/md/localssd --run --level=0 --raid-devices=2 a b"


def mounted(directory: Path, stand_ins: str = STAND_INS) -> tuple[int, list[str]]:
    """Mount the disks as at a boot; return the exit code and the calls of programs."""
    calls = directory / "calls"
    calls.write_text("")
    code = called(directory, stand_ins, "has_content", "array_of", f"local_ssd={directory}/mnt", "mount_local_ssds")
    return code, calls.read_text().splitlines()


def called(directory: Path, stand_ins: str, *functions: str) -> int:
    """Return the exit code of the last one of functions; a variable may be set among them."""
    lines = []
    for name in functions:
        function = re.search(rf"^{name}\(\) \{{.*?^\}}", startup_script(), re.M | re.S)
        assert function or "=" in name
        lines.append(function.group() if function else name)
    script = "\n".join([stand_ins, *lines, functions[-1]])
    return subprocess.run(["sh", "-c", script], cwd=directory, capture_output=True, check=False).returncode


def test_several_disks_become_one_array_which_is_formatted_once(tmp_path: Path) -> None:
    (tmp_path / "disks").write_text("a\nb\n")
    mount = [f"mount -o discard /dev/md/localssd {tmp_path}/mnt", f"chmod 1777 {tmp_path}/mnt"]
    created = ["mdadm --assemble --scan", CREATE, "mke2fs -q -F -t ext4 -m 0 /dev/md/localssd"]
    assert mounted(tmp_path) == (0, [*created, *mount])
    assert mounted(tmp_path) == (0, mount)
    (tmp_path / "array").write_text("/dev/md127\n")  # as udev names it after a restart
    (tmp_path / "md127").touch()
    assert mounted(tmp_path)[1][0] == f"mount -o discard /dev/md127 {tmp_path}/mnt"
    (tmp_path / "md127").unlink()  # the restart came before the array was formatted
    assert mounted(tmp_path)[1][0] == "mke2fs -q -F -t ext4 -m 0 /dev/md127"


def test_a_disk_with_content_does_not_become_a_part_of_an_array(tmp_path: Path) -> None:
    (tmp_path / "disks").write_text("a\nb\n")
    (tmp_path / "b").touch()
    _, calls = mounted(tmp_path)
    assert calls[:2] == ["mdadm --assemble --scan", "mke2fs -q -F -t ext4 -m 0 a"]


@pytest.mark.parametrize("disks", ["a\n", "a\nb\n"])
def test_without_mdadm_the_first_disk_is_used(tmp_path: Path, disks: str) -> None:
    (tmp_path / "disks").write_text(disks)
    stand_ins = STAND_INS + "mdadm() { return 127; }\n"
    mount = [f"mount -o discard a {tmp_path}/mnt", f"chmod 1777 {tmp_path}/mnt"]
    assert mounted(tmp_path, stand_ins) == (0, ["mke2fs -q -F -t ext4 -m 0 a", *mount])
    assert mounted(tmp_path, stand_ins) == (0, mount)


def test_a_host_without_local_ssds_mounts_nothing(tmp_path: Path) -> None:
    (tmp_path / "disks").write_text("")
    assert mounted(tmp_path) == (1, [])


@pytest.mark.parametrize("text", ["0899", "9" * 20, "soon"])
def test_an_invalid_time_of_the_stop_does_not_end_the_watch(tmp_path: Path, text: str) -> None:
    stand_ins = f"fetch() {{ echo {text}; }}\nawait_change() {{ exit 7; }}"
    assert called(tmp_path, stand_ins, "watch_stop_at") == 7


def test_a_reader_that_gives_up_does_not_end_the_reports_of_changes(tmp_path: Path) -> None:
    stand_ins = """
    await_change() { [ ! -e sent ] || exit 7; }
    echo() { if [ -e tried ]; then : >sent; else : >tried; exit 141; fi; }
    sleep() { :; }
    """
    assert called(tmp_path, stand_ins, "changes=/dev/null", "report_changes") == 7


def test_without_a_pipe_the_scripts_are_looked_for_at_intervals(tmp_path: Path) -> None:
    stand_ins = """
    mkfifo() { return 1; }
    report_changes() { :; }
    sleep() { touch slept; }
    run_all() { [ ! -e slept ] || exit 7; }
    is_requested() { [ -e asked ] && exit 8; touch asked; false; }
    """
    assert called(tmp_path, stand_ins, "changes=missing", "again=again", "watch_scripts") == 7
