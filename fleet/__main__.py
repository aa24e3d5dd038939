"""`python -m fleet`, and where the installed program `fleet` begins."""

from __future__ import annotations

import signal
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import FrameType

_ROOT = str(Path(__file__).resolve().parent.parent)
_IMPORTING = "<frozen importlib"  # file of the frames of Python's own import
_AGAIN_S = 0.005


class _OwnPackages:
    """Finds `provision` and `train` beside this package, whatever the user's folders hold under these names."""

    @staticmethod
    def find_spec(fullname: str, _path: object = None, _target: object = None, /) -> ModuleSpec | None:
        if fullname in ("fleet", "provision", "train"):
            return PathFinder.find_spec(fullname, [_ROOT])
        return None


def catch_interrupts() -> None:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt, but not in the middle of an import.

    Python would keep its locks of that import, on which every thread that imports anything then waits for ever. Such
    a signal is sent again a little later. One that was ignored from the start, as in a job in the background of a
    shell without job control, stays so.
    """
    held: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename.startswith(_IMPORTING):
                held[:] = [number]
                signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
                return
            frame = frame.f_back
        raise KeyboardInterrupt

    def again(*_: object) -> None:
        signal.raise_signal(held[0])

    signal.signal(signal.SIGALRM, again)
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    catch_interrupts()
    sys.meta_path.insert(0, _OwnPackages())
    try:
        from fleet.cli import run
    except KeyboardInterrupt:
        sys.stderr.write("fleet: interrupted; nothing was started.\n")
        return 103
    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
