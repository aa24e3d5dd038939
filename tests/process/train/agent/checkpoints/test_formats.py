"""Test files whose structure shows whether they were written completely."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import pytest

from train.agent.checkpoints.formats import is_unfinished


def zipped() -> bytes:
    """Return a small file in the format of .keras and .npz."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", bytes(500))
    return buffer.getvalue()


def hdf5(libver: str = "earliest") -> bytes:
    """Return a small HDF5 file."""
    h5py = pytest.importorskip("h5py")
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=libver) as file:
        file["weights"] = list(range(100))
    return buffer.getvalue()


def unfinished(directory: Path, name: str, data: bytes) -> bool:
    (directory / name).write_bytes(data)
    return is_unfinished(str(directory / name), name)


@pytest.mark.parametrize("name", ["model.keras", "a.npz", "model.weights.h5", "latest.h5", "state.json"])
def test_each_beginning_of_a_file_is_unfinished_and_all_of_it_is_not(tmp_path: Path, name: str) -> None:
    data = {
        "model.keras": zipped(),
        "a.npz": zipped(),
        "model.weights.h5": hdf5(),
        "latest.h5": hdf5("latest"),
        "state.json": b'{"epoch": 3, "batch": [1, 2.5, null]}',
    }[name]
    assert not unfinished(tmp_path, name, data)
    assert all(unfinished(tmp_path, name, data[:size]) for size in range(len(data)))


@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_hdf5_counts_only_when_it_was_closed(tmp_path: Path, libver: str) -> None:
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "model.h5"
    file = h5py.File(path, "w", libver=libver)
    for number in range(5):
        file.create_dataset(str(number), data=list(range(2000)))
        assert is_unfinished(str(path), path.name)
    file.flush()
    file.create_dataset("more", data=list(range(2000)))
    assert is_unfinished(str(path), path.name)
    file.close()
    assert not is_unfinished(str(path), path.name)


def test_what_has_no_known_format_is_never_unfinished(tmp_path: Path) -> None:
    for name, data in (("a.bin", b""), ("weights.npy", b"x"), ("ckpt-1.index", b""), ("checkpoint", b"model")):
        assert not unfinished(tmp_path, name, data)
    assert not unfinished(tmp_path, "deep.json", b"[" * 100_000)
    assert not unfinished(tmp_path, "large.json", b"[" * (1 << 20) + b"[")
    assert unfinished(tmp_path, "renamed.bin", zipped()[:-1])
    assert not unfinished(tmp_path, "old.keras", hdf5())
