from __future__ import annotations

import pytest

from train.agent.supervisor.observations import Observations, split_reports


def test_reports_are_separated_from_stacks_and_may_come_in_pieces() -> None:
    reports, rest, cut = split_reports(b'Thread 1\x1e{"activity": null}\n (most recent\n\x1e{"act')
    assert (reports, rest, cut) == ([b'{"activity": null}'], b"Thread 1 (most recent\n", b'\x1e{"act')
    assert split_reports(cut + b'ivity": "x"}\nFile') == ([b'{"activity": "x"}'], b"File", b"")
    assert split_reports(b"\x1e" + b"x" * 2000)[2] == b""  # never kept


def test_the_activity_is_the_latest_one() -> None:
    observations = Observations()
    assert observations.latest(0.0) == {"activity": None}
    observations.add(b'{"activity": "importing tensorflow"}', 1.0)
    assert observations.latest(100.0)["activity"] == "importing tensorflow"
    observations.add(b'{"activity": null}', 2.0)
    assert observations.latest(100.0)["activity"] is None


@pytest.mark.parametrize(
    "report",
    [
        b"", b"[]", b"{", b"\xff", b'{"activity": "\\u001b[2J"}', b'{"activity": 7}', b"[" * 1000,
        b'{"activity": "' + b"x" * 65 + b'"}', b'{"step_s": -1}', b'{"step_s": true}', b'{"step_s": 1e9}',
        b'{"step_s": NaN}', b'{"step_s": 0}', b'{"step_s": 1, "input_s": "x"}', b'{"input_s": 1}',
    ],
)  # fmt: skip
def test_invalid_reports_are_ignored(report: bytes) -> None:
    observations = Observations()
    for _ in range(5):
        observations.add(report, 1.0)
    assert observations.latest(1.0) == {"activity": None}


def test_times_are_medians_of_at_least_three_windows_and_expire() -> None:
    observations = Observations()
    for number, input_s in enumerate((0.9, 0.1, 0.2)):
        assert "step_s" not in observations.latest(2.0 * number)
        observations.add(b'{"step_s": 1.0, "input_s": %f, "python_s": null}' % input_s, 2.0 * number)
    assert observations.latest(4.0) == {"activity": None, "step_s": 1.0, "input_s": 0.2, "python_s": None}
    assert "step_s" not in observations.latest(35.0)
