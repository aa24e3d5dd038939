"""Start the agent; the archive that train.pack builds starts with this file, which every Python 3 can read."""

import os
import sys


def _unpack(archive: str) -> None:
    """Unpack the archive that runs, and start again from its modules; do nothing if they cannot be written."""
    from train.agent.files.unpack import unpack

    directory = archive[: -len(".pyz")]
    umask = os.umask(0o077)
    try:
        unpack(archive, directory)
    except OSError:
        return
    finally:
        os.umask(umask)
    os.execv(sys.executable, [sys.executable, "-I", "-S", directory, *sys.argv[1:]])  # noqa: S606 - without a shell


def _run() -> None:
    if sys.version_info < (3, 9):
        sys.stdout.write("python-too-old %d.%d.%d\n" % sys.version_info[:3])
        sys.exit(3)
    if sys.argv[0].endswith(".pyz"):
        _unpack(sys.argv[0])
    from train.agent.requests.serve import main

    main()


if __name__ == "__main__":
    _run()
    os._exit(0)  # without freeing the memory first
