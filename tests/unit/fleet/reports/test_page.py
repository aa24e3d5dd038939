from __future__ import annotations

from html.parser import HTMLParser

import pytest

from fleet.reports.page import draw, measures_of, render
from fleet.reports.record import JobRecord, decode_record, encode_record
from tests.unit.fleet.reports.records import START, job, measures


class Elements(HTMLParser):
    """Collects the elements of a page with their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))


def test_hostile_texts_become_neither_elements_nor_attributes_nor_control_characters() -> None:
    page = render(job(), measures())
    elements = Elements(page).elements
    tags = {tag for tag, _ in elements}
    assert tags.isdisjoint({"script", "img", "link", "iframe", "object", "a", "form"})
    names = {name for _, attributes in elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href")]
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "{{ 7*7 }}" in page  # not evaluated
    assert "&lt;/script&gt;" in page


def test_the_size_of_a_page_is_bounded() -> None:
    assert len(render(job(tasks=2), measures())) < 400_000  # one line of its cause has 1 MB
    assert len(render(job(tasks=40), measures(tasks=40, samples=100))) < 4_000_000


def test_a_page_needs_no_more_than_the_identifier_of_a_job() -> None:
    page = render(JobRecord("j-1", ""), [])
    assert "stored no telemetry" in page
    assert "state unknown" in page
    assert "TF_CONFIG" not in page


def test_a_page_shows_cause_cost_versions_and_charts_with_units() -> None:
    page = render(job("text"), measures("accuracy"))
    for part in ("failed", "$0.05", "$1.50/h", "2 of at most 3", "3.12.1", "Step time", "(ms)", "GPU use", "Cause"):
        assert part in page
    drawn = [
        attributes["aria-label"]
        for tag, attributes in Elements(page).elements
        if tag == "svg" and "role" in attributes
    ]
    assert len(drawn) == 7
    assert page.count("<desc>") == 7


def test_a_record_survives_its_json_and_others_are_refused() -> None:
    assert decode_record(encode_record(job())) == job()
    for data in (b"", b"[]", b"{}", b'{"format": 2, "job": "j"}', b'{"format": 1, "job": 5, "fleet": ""}', b"\xff"):
        with pytest.raises(ValueError):
            decode_record(data)


@pytest.mark.parametrize("value", [0.0, 5.0, -1e299, 1e-200])
def test_constant_and_extreme_values_have_a_chart(value: float) -> None:
    (measure,) = measures_of({"worker-0": {1: [{"at": START, "metrics": {"loss": value}}]}})
    assert len(draw(measure, {}).values.ticks) >= 2
    assert "<circle" in render(JobRecord("j-1", ""), [measure])


def test_attempts_are_separate_lines_and_unknown_rates_are_left_out() -> None:
    step_time = next(item for item in measures("m") if item.name == "Step time")
    assert [len(curve.parts) for curve in step_time.curves] == [2, 2]
    assert step_time.curves[0].parts[-1][-1][1] == 125.0
    assert not measures_of({"worker-0": {1: [{"at": START, "steps_per_s": 0}]}})
