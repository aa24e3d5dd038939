"""Starts the emulator: ``python -m tests.emulator --port 8080``."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import threading
from pathlib import Path

from tests.emulator import guests
from tests.emulator.discovery import discovery
from tests.emulator.server import Emulator


def main() -> int:
    """Run the emulator until it is stopped."""
    parser = argparse.ArgumentParser(prog="python -m tests.emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="TCP port on 127.0.0.1; 0: any free one")
    parser.add_argument("--no-guests", action="store_true", help="instances have no sshd; host keys appear at once")
    parser.add_argument("--operation-s", type=float, default=0.5, help="seconds that an operation takes")
    parser.add_argument("--grace-s", type=float, default=30.0, help="seconds from a preemption's warning to its end")
    parser.add_argument("--project", default="proj-1", help="id of the project")
    parser.add_argument("--directory", type=Path, help="of the instances' files; default: a temporary one")
    options = parser.parse_args()
    try:
        discovery()
    except OSError as error:
        parser.error(f"{error}; install the development tools: pip install -e '.[dev]'")
    obstacle = "" if options.no_guests else guests.obstacle()
    if obstacle:
        parser.error(f"instances with sshd are not possible here: {obstacle}; start with --no-guests")
    with tempfile.TemporaryDirectory(prefix="fleet-emulator-") as temporary:
        directory = options.directory or Path(temporary)
        directory.chmod(0o755)
        emulator = Emulator(
            port=options.port,
            project=options.project,
            operation_s=options.operation_s,
            guests=None if options.no_guests else guests.SshGuests(directory),
            directory=directory,
            grace_s=options.grace_s,
        )
        _serve(emulator)
    return 0


def _serve(emulator: Emulator) -> None:
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with emulator:
        sys.stdout.write(f"ready: {emulator.url} project {emulator.cloud.project}\n")
        sys.stdout.flush()
        stop.wait()


if __name__ == "__main__":
    sys.exit(main())
