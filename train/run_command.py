"""Run a program until it ends, or end it when the connection ends, which ends the input of this process.

The command to the host carries this text: the rules of train.start_agent apply to it, see train.pack. The program is
in a session of its own, so that all of its processes can be ended.
"""

import os
import select
import signal
import subprocess
import sys

_GRACE_S = 5.0
_NOT_RUN, _NOT_FOUND = 126, 127  # exit codes of a shell
_SIGNAL = 128


def _start() -> "subprocess.Popen[bytes]":
    code = _NOT_RUN
    try:
        return subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL, start_new_session=True)
    except FileNotFoundError:
        code, text = _NOT_FOUND, "command not found"
    except OSError as error:
        text = error.strerror or str(error)
    os.write(2, (sys.argv[1] + ": " + text + chr(10)).encode("utf-8", "replace"))
    os._exit(code)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(_GRACE_S)
        except (OSError, subprocess.TimeoutExpired):
            continue


def _run() -> None:
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writes)
    process = _start()
    while process.poll() is None:
        ready, _, _ = select.select([0, reads], [], [])
        if reads in ready:
            os.read(reads, 4096)
        if 0 in ready and not os.read(0, 4096):
            _end(process)
            break
    code = process.returncode
    os._exit(_NOT_RUN if code is None else code if code >= 0 else _SIGNAL - code)


if __name__ == "__main__":
    _run()
