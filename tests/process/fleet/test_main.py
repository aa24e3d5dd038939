"""Signals while the program starts and ends."""

from __future__ import annotations

import os
import random
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fleet import interrupts
from tests.program import catches_signals

SCRIPT = """
import sys, time
from fleet.__main__ import catch_interrupts
catch_interrupts()
try:
    import half
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted", sys.modules["half"].whole)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_for_the_end_of_an_import(tmp_path: Path, number: str) -> None:
    (tmp_path / "half.py").write_text(
        f"import os, signal\nos.kill(os.getpid(), signal.{number})\nfor _ in range(10**6): pass\nwhole = True\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("interrupted True\n", "", 0)


def test_a_signal_that_was_ignored_stays_so() -> None:
    code = (
        "import signal; from fleet.__main__ import catch_interrupts\n"
        "catch_interrupts(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"


def test_a_signal_before_main_handles_signals_ends_the_program_without_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(interrupts, "catch_interrupts", interrupt)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(Path(interrupts.__file__).parents[1] / "scripts/fleet"))
    assert (ended.value.code, capsys.readouterr().err) == (103, "error: interrupted; nothing was started\n")


def test_repeated_signals_end_a_command_with_its_exit_code(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "fleet", "status"],
        env={**os.environ, "FLEET_STATE_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None and not catches_signals(process):
        time.sleep(0.002)
    chance = random.Random(1)
    time.sleep(chance.uniform(0.0, 0.6))
    while process.poll() is None:
        process.send_signal(chance.choice([signal.SIGINT, signal.SIGTERM]))
        time.sleep(chance.uniform(0.0, 0.05))
    _, err = process.communicate()
    assert process.returncode in (102, 103)
    assert "Traceback" not in err
    assert err.startswith("error: ")
