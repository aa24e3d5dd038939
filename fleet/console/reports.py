"""Events that are what a command was typed for: a price, what is left, what is missing; some lines each."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

from fleet.console.columns import Column, Span, choose, render, table
from fleet.console.figures import counted, money, span
from fleet.console.logtext import clean
from fleet.console.sentences import plan_text
from fleet.events import Checked, Event, Quoted, Stray, StraysFound, TaskPlanned

_INDENT = "  "
_WIDTH = 80
_OFFERS = 5  # shown
_STRAYS = 40  # shown


def report_text(event: Event) -> str:
    """Lines for `event`, the last one ended, too, none longer than 80 columns; empty where it is no report."""
    words = _REPORTS.get(type(event))
    return words(event) if words else ""


def _quoted(event: Quoted) -> str:
    kind = "spot instance" if event.spot else "instance"
    payer = f", project {event.project}" if event.project else ""
    head = f"fleet {event.fleet}: {counted(event.instances, kind)}{payer}"
    if len(event.offers) > 1:
        head += ", all in the first of these zones that has room"
    shown = event.offers[:_OFFERS]
    columns = [
        Column("ZONE", tuple(Span(offer.place) for offer in shown)),
        Column("MACHINE", tuple(Span(offer.machine) for offer in shown)),
        Column("USD/H EACH", tuple(Span(_price(offer.price_usd_h, 1)) for offer in shown), right=True),
        Column("USD/H ALL", tuple(Span(_price(offer.price_usd_h, event.instances)) for offer in shown), right=True),
    ]
    text = _filled(head) + _indented(columns)
    if len(event.offers) > len(shown):
        text += f"{_INDENT}and {len(event.offers) - len(shown)} more\n"
    priced = "spot prices" if event.spot else "prices on demand"
    dated = f", estimate of {event.priced_at}" if event.priced_at else ", an estimate"
    end = (
        f"each is deleted by itself {span(event.delete_after_s)} after its start"
        if event.delete_after_s
        else "nothing but `fleet down` deletes them"
    )
    return text + _filled(f"{priced}{dated}, disks and traffic left out; {end}") + "".join(map(_filled, event.notes))


def _price(usd_h: float | None, count: int) -> str:
    return "unknown" if usd_h is None else f"{usd_h * count:,.3f}"


def _strays_found(event: StraysFound) -> str:
    if not event.strays:
        return "nothing is left of any fleet that is not known here\n"
    now = time.time()
    shown = event.strays[:_STRAYS]

    def cells(words: Callable[[Stray], str]) -> tuple[Span, ...]:
        return tuple(Span(words(stray)) for stray in shown)

    columns = [
        Column("KIND", cells(lambda stray: stray.kind)),
        Column("NAME", cells(lambda stray: stray.name), limit=32),
        Column("PLACE", cells(lambda stray: stray.place), rank=3),
        Column("MADE BY", cells(lambda stray: stray.user), rank=2, limit=16),
        Column(
            "AGE", cells(lambda stray: span(now - stray.created_at) if stray.created_at else ""), rank=1, right=True
        ),
        Column("COST", cells(lambda stray: money(stray.cost_usd) if stray.cost_usd > 0 else ""), right=True),
    ]
    text = _filled(f"{counted(len(event.strays), 'thing')} of fleets that are not known here:") + _indented(columns)
    if len(event.strays) > len(shown):
        text += f"{_INDENT}and {len(event.strays) - len(shown)} more\n"
    others = sum(not stray.doomed for stray in event.strays)
    if others:
        text += _filled(f"{others} of them somebody else made, and they stay; --all deletes them, too")
    return text


def _checked(event: Checked) -> str:
    text = textwrap.fill(
        clean(f"{'ok' if event.ok else 'missing':8} {event.subject}: {event.sentence}"),
        _WIDTH,
        subsequent_indent=" " * 9,
        break_long_words=False,
        break_on_hyphens=False,
    )
    step = "" if event.ok or not event.next_step else f"{' ' * 9}{clean(event.next_step)}\n"
    return f"{text}\n{step}"


def _filled(text: str) -> str:
    return textwrap.fill(clean(text), _WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _indented(columns: list[Column]) -> str:
    room = _WIDTH - len(_INDENT)
    lines = table(choose(columns, room), room)
    return render(((Span(_INDENT), *line) for line in lines), color=False)


_REPORTS: dict[type, Callable[[Any], str]] = {
    TaskPlanned: plan_text,
    Quoted: _quoted,
    StraysFound: _strays_found,
    Checked: _checked,
}
