"""Locks between the processes of a host."""

import fcntl
import os


def open_lock(path: str) -> int:
    """Return a file descriptor of the lock at `path`, which is not taken yet.

    Raises:
        OSError: the file cannot be created.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def wait_for_lock(lock: int) -> None:
    """Take a lock as `try_lock` does, as soon as no other process holds it."""
    fcntl.flock(lock, fcntl.LOCK_EX)


def unlock(lock: int) -> None:
    """Release a lock for all copies of its descriptor."""
    fcntl.flock(lock, fcntl.LOCK_UN)


def try_lock(lock: int) -> bool:
    """Take a lock until all copies of its descriptor are closed; return False if another process holds it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
