from __future__ import annotations

import os
from pathlib import Path

import pytest

from train.agent.files import times
from train.agent.files.times import ENTRY, PieceTimes, TimesWriter, offset_since, piece_times


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "times")


def write(path: str, *entries: tuple[int, float]) -> None:
    writer = TimesWriter(path)
    for offset, at in entries:
        writer.add(offset, at)
    writer.close()


def test_each_byte_has_the_time_of_the_last_entry_before_it(path: str) -> None:
    write(path, (0, 100.0), (10, 100.5), (30, 102.0))
    assert piece_times(path, 0, 40) == PieceTimes(40, 100.0, [10, 500_000, 20, 1_500_000])
    assert piece_times(path, 5, 25) == PieceTimes(25, 100.0, [5, 500_000])
    assert piece_times(path, 10, 20) == PieceTimes(20, 100.5)
    assert piece_times(path, 35, 1) == PieceTimes(1, 102.0)


def test_a_missing_or_damaged_file_means_that_times_are_unknown(path: str) -> None:
    assert piece_times(path, 0, 9) == PieceTimes(9)
    assert offset_since(path, 0.0) == -1
    Path(path).write_bytes(b"\0" * 7)  # an entry that was cut off
    assert piece_times(path, 0, 9) == PieceTimes(9)
    write(path, (5, 100.0))
    assert Path(path).stat().st_size == ENTRY.size
    assert piece_times(path, 0, 9) == PieceTimes(9, 0.0, [5, 100_000_000])


def test_the_file_grows_slowly_however_often_output_comes(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "PART", 100)
    write(path, *((number, 1000.0 + number / 1000) for number in range(100_000)))
    assert Path(path).stat().st_size // ENTRY.size == 100 + 100 + 100 - 11  # 1 s, 10 s, and 89 s at 1 s each


def test_a_clock_that_is_set_back_is_followed(path: str) -> None:
    write(path, (0, 100.0), (1, 50.0), (2, 50.001), (3, 50.02))
    assert piece_times(path, 0, 9) == PieceTimes(9, 100.0, [1, -50_000_000, 2, 20_000])


def test_a_full_disk_ends_the_file(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TimesWriter(path)
    writer.add(0, 1.0)
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", lambda *_: 3)
        writer.add(5, 2.0)
    writer.add(9, 3.0)
    writer.close()
    assert piece_times(path, 0, 20) == PieceTimes(20, 1.0)


def test_very_many_times_shorten_the_piece(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(times, "MOST_MARKS", 3)
    write(path, *((number, 10.0 + number) for number in range(10)))
    assert piece_times(path, 2, 8) == PieceTimes(4, 12.0, [1, 1_000_000] * 3)


def test_the_first_output_since_a_time(path: str) -> None:
    write(path, (0, 100.0), (10, 110.0), (30, 120.0))
    assert [offset_since(path, at) for at in (0.0, 100.0, 100.1, 110.0, 120.0, 120.1)] == [0, 0, 10, 10, 30, -1]
