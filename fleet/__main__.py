"""`python -m fleet`, and where the installed program `fleet` begins."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import NoReturn

from fleet.interrupts import catch_interrupts, ignore_interrupts, was_interrupted

_INTERRUPTED = 103
_ROOT = str(Path(__file__).resolve().parent.parent)


class _BundledPackages:
    """Find `provision` and `train` next to this package, even if the user has packages of that name."""

    @staticmethod
    def find_spec(fullname: str, _path: object = None, _target: object = None, /) -> ModuleSpec | None:
        if fullname in ("fleet", "provision", "train"):
            return PathFinder.find_spec(fullname, [_ROOT])
        return None


def main() -> int:
    """Run the command line.

    Returns:
        The exit code.
    """
    catch_interrupts()
    sys.meta_path.insert(0, _BundledPackages())
    message = "interrupted; nothing was started"
    try:
        from fleet.cli.app import run

        message = "interrupted"
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        ignore_interrupts()
        sys.stderr.write(f"error: {message}\n")
        code = _INTERRUPTED
    ignore_interrupts()
    if was_interrupted():
        _exit(code)
    return code


def _exit(code: int) -> NoReturn:
    """End the process at once.

    If a KeyboardInterrupt has passed through code that dataclasses generated, Python ends itself by SIGINT,
    although the exception was handled (run_eval_code_obj in Python/pythonrun.c).
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
