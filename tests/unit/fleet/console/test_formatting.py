from __future__ import annotations

import pytest

from fleet.console import formatting
from fleet.errors import fold, order
from provision import quantities


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1, "0:00"), (42, "0:42"), (754, "12:34"), (3723, "1:02:03"), (2 * 86400 + 3723, "2d 01:02:03")],
)
def test_clock(seconds: float, text: str) -> None:
    assert formatting.format_clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h"), (12000, "3 h 20 min"),
     (86400, "1 d"), (190000, "2 d 4 h")],
)  # fmt: skip
def test_span(seconds: float, text: str) -> None:
    assert quantities.format_span(seconds) == text


@pytest.mark.parametrize(
    ("count", "long", "short"),
    [(0, "0 B", "0B"), (999, "999 B", "999B"), (1000, "1.0 KiB", "1.0K"), (5_200_000, "5.0 MiB", "5.0M"),
     (1_234_567_890, "1.1 GiB", "1.1G"), (12_345_678_900, "11.5 GiB", "11G"), (10**18, "909494.7 TiB", "909494T")],
)  # fmt: skip
def test_size(count: int, long: str, short: str) -> None:
    assert formatting.format_size(count) == long
    assert formatting.format_short_size(count) == short


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0.0000"), (0.34121, "0.3412"), (12.3456, "12.346"), (123.456, "123.5"), (99999.9, "99999.9"),
     (123456.0, "1.2e+05"), (0.00012, "1.2e-04"), (-0.5, "-0.5000"), (float("nan"), "nan"), (float("-inf"), "-inf")],
)  # fmt: skip
def test_metric_in_eight_characters(value: float, text: str) -> None:
    assert formatting.format_metric(value) == text
    assert len(text) <= 8


def test_money_never_rounds_something_to_nothing() -> None:
    assert [quantities.format_money(dollars) for dollars in (0, 0.001, 0.07, 1234.5)] == [
        "$0.00",
        "<$0.01",
        "$0.07",
        "$1,234.50",
    ]


def test_of() -> None:
    assert [formatting.format_count(3, 5), formatting.format_count(3, -1), formatting.format_count(-1, 5)] == [
        "3/5",
        "3",
        "",
    ]


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["worker-0"], "worker-0"),
        (["worker-1", "worker-0", "worker-10", "worker-2"], "worker-[0-2,10]"),
        (["worker-1", "chief-0", "worker-0"], "chief-0, worker-[0-1]"),
        (["alpha", "worker-01", "beta"], "worker-01, alpha, beta"),
    ],
)
def test_fold(names: list[str], text: str) -> None:
    assert fold(names) == text


def test_order_counts_as_people_do() -> None:
    shuffled = ["worker-10", "worker-2", "evaluator-0", "other", "chief-0"]
    assert sorted(shuffled, key=order) == ["chief-0", "worker-2", "worker-10", "evaluator-0", "other"]


def test_metric_title() -> None:
    assert formatting.shorten_metric("sparse_categorical_accuracy") == "ACCURACY"
    assert formatting.shorten_metric("val_binary_accuracy") == "VAL_ACCURACY"
    assert formatting.shorten_metric("mae") == "MAE"
