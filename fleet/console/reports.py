"""Events that are what a command was typed for: a price, what is left, what is missing; some lines each."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable
from typing import Any

from fleet.console.columns import Column, Span, choose, render, table
from fleet.console.figures import counted, money, size_short, span
from fleet.console.logtext import clean
from fleet.console.sentences import plan_text
from fleet.events import (
    Checked,
    Event,
    HostFacts,
    HostsChecked,
    Quoted,
    Stray,
    StraysFound,
    TaskPlanned,
    TriedAlone,
)
from train.lint.model import Finding

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
    lines = [] if event.ok else [line for line in (event.hint, *event.next_step.split("\n")) if line]
    steps = "".join(f"{' ' * 9}{clean(line)}\n" for line in lines)
    return _item("ok" if event.ok else "missing", f"{event.subject}: {event.sentence}") + steps


def _item(mark: str, words: str) -> str:
    """A line that begins with a word that says how it is, and more lines where there is no room."""
    return (
        textwrap.fill(
            clean(f"{mark:8} {words}"),
            _WIDTH,
            subsequent_indent=" " * 9,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def _hosts_checked(event: HostsChecked) -> str:
    def cells(words: Callable[[HostFacts], str]) -> tuple[Span, ...]:
        return tuple(Span(words(host) if host.python else "") for host in event.hosts)

    def versions(package: str) -> tuple[Span, ...]:
        return cells(lambda host: host.versions.get(package, "none"))

    columns = [
        Column("HOST", tuple(Span(host.host) for host in event.hosts)),
        Column("ADDRESS", tuple(Span(host.address) for host in event.hosts), rank=5),
        Column("PYTHON", versions("python")),
        Column("TENSORFLOW", versions("tensorflow")),
        Column("KERAS", versions("keras")),
        Column("TF-KERAS", versions("tf_keras"), rank=1),
        Column("GPUS", cells(_gpus), limit=20),
        Column("DISK", cells(lambda host: size_short(host.disk_free)), rank=2, right=True),
        Column("MEMORY", cells(lambda host: size_short(host.memory)), rank=3, right=True),
        Column("ARCH", cells(lambda host: host.machine), rank=4),
    ]
    text = _filled(f"fleet {event.fleet}: {counted(len(event.hosts), 'host')}") + _indented(columns)
    text += "".join(_item("warning", words) for words in event.warnings)
    text += "".join(_item("unfit", words) for words in event.problems)
    if event.script_fails:
        return text + _item("fails", "the hosts are fit, but the script is expected to fail: see `fleet lint`")
    return text + ("" if event.problems else f"{'ok':8} the hosts are fit\n")


def _gpus(host: HostFacts) -> str:
    return ", ".join(f"{host.gpus.count(name)} x {name}" for name in dict.fromkeys(host.gpus))


def _tried_alone(event: TriedAlone) -> str:
    lines = [line[: _WIDTH - len(_INDENT) - 1] for line in map(clean, event.lines)]
    return _item("ok" if event.ok else "failed", f"{event.host}: {event.sentence}") + "".join(
        f"{_INDENT} {line}\n" for line in lines
    )


def _finding(event: Finding) -> str:
    head = f"{event.place}: {event.rule} {event.severity.value}: {event.sentence}"
    parts = ((head, ""), (event.reason, "why:  "), (event.mend, "mend: "))
    return "".join(
        textwrap.fill(
            clean(words),
            _WIDTH,
            initial_indent=_INDENT + label if label else "",
            subsequent_indent=" " * 8 if label else _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
        for words, label in parts
        if words
    )


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
    HostsChecked: _hosts_checked,
    TriedAlone: _tried_alone,
    Finding: _finding,
}
