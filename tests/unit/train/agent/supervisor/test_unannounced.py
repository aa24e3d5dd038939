"""Test the notification of followers about output."""

from __future__ import annotations

import random
from pathlib import Path

from train.agent.files.times import TimesWriter, piece_times
from train.agent.host.control import decode_output
from train.agent.protocol.records import Log, decode
from train.agent.supervisor.unannounced import INTERVAL_S, MOST_BYTES, Unannounced


def _decode(packet: bytes) -> tuple[Log, bytes, int]:
    output = decode_output(packet)
    assert output is not None
    line, _, data = output.line.partition(b"\n")
    record = decode(line)
    assert isinstance(record, Log)
    assert (output.attempt, output.offset, output.size) == (record.attempt, record.offset, len(data))
    return record, data, output.records_size


def test_a_packet_has_the_output_since_the_last_one_with_the_times_of_the_file(tmp_path: Path) -> None:
    chooser = random.Random(1)
    path = str(tmp_path / "times")
    writer, unannounced = TimesWriter(path), Unannounced()
    log, at, begin = b"", 1000.0, 0
    for _ in range(500):
        data = bytes(chooser.choices(b"ab\n", k=chooser.randrange(1, 30)))
        unannounced.add(data, len(log), writer.add(len(log), at))
        log += data
        at += chooser.choice((0.0, 0.004, 0.02))
        if chooser.random() < 0.3:
            record, output, records_size = _decode(unannounced.take("worker-0", "chief-0", 2, 77, 0.0))
            assert output == log[begin:]
            expected = piece_times(path, begin, len(output))
            assert record == Log("worker-0", "chief-0", 2, begin, expected.size, expected.at, expected.marks)
            assert records_size == 77
            begin = len(log)
    writer.close()


def test_long_output_is_left_to_the_log() -> None:
    unannounced = Unannounced()
    unannounced.add(bytes(MOST_BYTES), 0, 1)
    unannounced.add(b"x", MOST_BYTES, 1)
    assert unannounced.take("worker-0", "worker-0", 1, 0, 0.0) == b""
    unannounced.add(b"y", MOST_BYTES + 1, 1)
    assert _decode(unannounced.take("worker-0", "worker-0", 1, 0, 0.0))[1] == b"y"
    assert unannounced.take("worker-0", "worker-0", 1, 0, 0.0) == b""


def test_the_first_line_is_due_at_once_and_what_follows_soon_after_later() -> None:
    unannounced = Unannounced()
    unannounced.add(b"line\n", 0, 1)
    assert unannounced.due(100.0) <= 100.0
    unannounced.take("worker-0", "worker-0", 1, 0, 100.0)
    unannounced.add(b"line\n", 5, 1)
    assert unannounced.due(100.001) == 100.0 + INTERVAL_S


def test_an_unfinished_line_waits_for_its_newline() -> None:
    unannounced = Unannounced()
    unannounced.add(b"line", 0, 1)
    assert unannounced.due(100.0) == 100.0 + INTERVAL_S
    unannounced.add(b"\n", 4, 1)
    assert unannounced.due(100.0) <= 100.0
