"""Detect incomplete files by their format."""

import contextlib
import json
import os
import struct

_HDF5 = b"\x89HDF\r\n\x1a\n"
_ZIP = b"PK\x03\x04"
_BINARY = (".h5", ".hdf5", ".keras", ".npz")  # each begins with one of the two
_LARGEST_JSON = 1 << 20  # bytes; larger files are not parsed
_SUPERBLOCK = 96  # bytes; the largest part of one that is read
_WRITING = 0x1  # consistency flag of superblock version 3: open for writing


def is_unfinished(file: str, name: str) -> bool:
    """Return True if a file is incomplete, as far as its format shows that.

    Args:
        file: Path of the file, or of a copy.
        name: Name under which the script wrote it.

    Raises:
        OSError: The file cannot be read.
    """
    with open(file, "rb") as opened:
        head = opened.read(_SUPERBLOCK)
    if head.startswith(_HDF5):
        return _is_unfinished_hdf5(head, os.path.getsize(file))
    if head.startswith(_ZIP):
        return _is_unfinished_zip(file)
    if name.endswith(".json"):
        return os.path.getsize(file) <= _LARGEST_JSON and _is_unfinished_json(file)
    return name.endswith(_BINARY)


def _is_unfinished_hdf5(head: bytes, size: int) -> bool:
    """Compare the end-of-file address with the size; HDF5 writes that address when it closes the file.

    Source: HDF5 File Format Specification 3.0, section II.A, "Format Signature and Superblock".
    """
    version = head[8] if len(head) == _SUPERBLOCK else 0
    lengths, base = {0: (13, 24), 1: (13, 28), 2: (9, 12), 3: (9, 12)}.get(version, (0, 0))
    if not base or size < _SUPERBLOCK:
        return size < _SUPERBLOCK
    if head[lengths] != struct.calcsize("<Q"):
        return False
    if version == 3 and head[11] & _WRITING:
        return True
    (end,) = struct.unpack_from("<Q", head, base + 16)
    return bool(end != size)


def _is_unfinished_zip(file: str) -> bool:
    """Read the central directory, which is written last."""
    import zipfile

    try:
        zipfile.ZipFile(file).close()
    except (zipfile.BadZipFile, OSError, ValueError, struct.error):
        return True
    except NotImplementedError:  # a feature that this Python does not have
        return False
    return False


def _is_unfinished_json(file: str) -> bool:
    with contextlib.suppress(RecursionError), open(file, "rb") as opened:
        try:
            json.loads(opened.read())
        except ValueError:
            return True
    return False
