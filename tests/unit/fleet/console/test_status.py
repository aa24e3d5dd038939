"""Printing of `fleet status`; screens.txt has the text."""

from __future__ import annotations

import io
import json
import re

from fleet.console.status import print_status, render_status, watch_status
from fleet.events import describe_maintenance
from tests.screen import Screen
from tests.unit.fleet.console.samples import START
from tests.unit.fleet.console.screens import FLEET, FLEETS


def test_planned_maintenance_is_described_with_its_hosts() -> None:
    window = START + 86400, START + 90000
    [text] = describe_maintenance({"worker-0": window, "worker-1": window})
    assert re.fullmatch(r"maintenance 1970-01-1. ..:.. to 1970-01-1. ..:..: stops worker-\[0-1\]", text)
    assert describe_maintenance({"worker-0": (1e30, 0.0), "worker-1": (0.0, 0.0), "worker-2": ()}) == []


def test_no_line_is_longer_than_the_terminal_and_an_empty_line_separates_fleets() -> None:
    long = FLEET._replace(name="demo" * 30, job=FLEET.job and FLEET.job._replace(id="j" * 90, script="x" * 90))
    for width in (40, 80, 100):
        assert max(map(len, render_status([long], now=START, width=width).splitlines())) <= width
    assert render_status([FLEETS["idle"]] * 2, now=START).count("\n\n") == 1


def test_rows_are_folded_to_the_height_of_a_terminal_only() -> None:
    assert len(render_status([FLEETS["many hosts"]], now=START, height=24).splitlines()) < 24
    assert len(render_status([FLEETS["many hosts"]], now=START).splitlines()) > 64


def test_colors() -> None:
    assert "\x1b" not in render_status([FLEET], now=START)
    assert "\x1b[1mdemo\x1b[0m" in render_status([FLEET], now=START, color=True)


def test_people_get_tables_and_programs_json() -> None:
    for is_json in (False, True):
        raw = io.BytesIO()
        stream = io.TextIOWrapper(raw, "ascii")
        print_status([FLEET, FLEET], stream, json=is_json)
        lines = raw.getvalue().decode().splitlines()
        if is_json:
            assert [json.loads(line)["event"] for line in lines] == ["schema", "fleet_status", "fleet_status"]
        else:
            assert lines[0].startswith("demo  gce")


def test_watching_draws_in_place_until_ctrl_c() -> None:
    screen, pauses = Screen(100, 24), iter([None, None, KeyboardInterrupt()])

    def pause(seconds: float) -> None:
        error = next(pauses)
        if error:
            raise error

    watch_status(lambda: [FLEET], screen.file, size=screen.read_size, pause=pause)
    lines = screen.plain
    assert sum(line.startswith("demo  gce, 2 hosts") for line in lines) == 1
    assert lines[-1] == ""
    assert screen.text.endswith("\x1b[?25h")
