"""The loops of the startup script with a metadata server that fails, a clock, and a host that are emulated."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from provision.gce.rest.bodies.metadata import startup_script

FUNCTIONS = startup_script().partition("\nwatch_stop_at <")[0]

# Each `sleep` takes five seconds of the emulated clock. `fetch` answers from the file `answers`, one line a request:
# a value, or the exit status of curl after `!`; the last line is repeated. The loop ends at the power-off, or after
# 90 seconds.
HOST = """
cd "$1" || exit
echo 1000 >clock
: >puts
date() { cat clock; }
sleep() { now=$(($(cat clock) + 5)); echo "$now" >clock; [ "$now" -lt 1090 ] || exit 0; }
shutdown() { echo "power-off after $(($(cat clock) - 1000)) s"; exit 0; }
is_in_use() { [ "$(cat clock)" -lt "${used_until:-0}" ]; }
fetch() {
    case "$*" in *"-X PUT"*) [ -e refuses ] && return 22; echo "$*" >>puts; return ;; esac
    read -r answer <answers
    [ "$(wc -l <answers)" -le 1 ] || sed -i 1d answers
    case $answer in !*) return "${answer#!}" ;; esac
    echo "$answer"
}
"""


def play(directory: Path, loop: str, *answers: str, set_up: str = "") -> str:
    (directory / "answers").write_text("".join(f"{answer}\n" for answer in answers))
    script = "\n".join([FUNCTIONS, HOST, set_up, loop])
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", str(directory)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout.strip()


def test_a_host_powers_off_at_its_time_even_if_no_guest_attribute_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "refuses").touch()
    assert play(tmp_path, "watch_stop_at", "!7", "!22", "1030") == "power-off after 30 s"


def test_the_time_in_force_is_published_once(tmp_path: Path) -> None:
    assert play(tmp_path, "watch_stop_at", "1030", "5000", "!28", "5000") == ""
    published = (tmp_path / "puts").read_text().splitlines()
    assert [line.split()[3] for line in published] == ["1030", "5000"]


@pytest.mark.parametrize("failure", ["!7", "!22", "!28"])
def test_a_metadata_server_that_fails_at_first_does_not_disable_the_idle_timeout(
    failure: str, tmp_path: Path
) -> None:
    assert play(tmp_path, "watch_idle", failure, failure, "30", failure) == "power-off after 40 s"


def test_a_host_in_use_or_without_an_idle_timeout_runs(tmp_path: Path) -> None:
    assert play(tmp_path, "watch_idle", "!22") == ""
    assert play(tmp_path, "watch_idle", "0") == ""
    assert play(tmp_path, "watch_idle", "30", set_up="used_until=1050") == "power-off after 75 s"
