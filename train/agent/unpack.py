"""Unpacks the agent beside its archive and compiles it, so that the next start takes no time for either."""

import importlib.util
import os
import py_compile
import zipfile

from train.agent.disk import remove_tree


def unpack(archive: str, folder: str) -> None:
    """Make `folder` hold the modules of `archive`; it appears whole or not at all.

    Raises:
        OSError: the disk is full.
    """
    temporary = f"{folder}.{os.getpid()}.new"
    try:
        with zipfile.ZipFile(archive) as packed:
            packed.extractall(temporary)
            names = packed.namelist()
        for name in names:
            path = os.path.join(temporary, name)
            py_compile.compile(path, dfile=os.path.join(folder, name), doraise=True)
            for written in (path, importlib.util.cache_from_source(path)):
                _sync(written)
        os.rename(temporary, folder)
    except OSError:
        if not os.path.isdir(folder):  # or another start was faster
            raise
    finally:
        remove_tree(temporary)


def _sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
