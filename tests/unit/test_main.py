"""Where the program begins: signals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from fleet.__main__ import catch_interrupts
catch_interrupts()
try:
    import half
    print(half.whole)
    time.sleep(20)
except KeyboardInterrupt:
    print("interrupted", "half" in sys.modules)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM"])
def test_a_signal_waits_for_the_end_of_an_import(tmp_path: Path, number: str) -> None:
    (tmp_path / "half.py").write_text(
        f"import os, signal\nos.kill(os.getpid(), signal.{number})\nfor _ in range(10**6): pass\nwhole = True\n"
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{SCRIPT}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("True\ninterrupted True\n", "", 0)


def test_a_signal_that_was_ignored_stays_so() -> None:
    code = (
        "import signal; from fleet.__main__ import catch_interrupts\n"
        "catch_interrupts(); print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    )
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "True\n"
