"""Text in columns that fit the terminal, without a terminal: spans, widths, tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fleet.console.colors import paint
from fleet.console.log_lines import clean

GAP = 2  # columns of space between two columns

T = TypeVar("T")


@dataclass(frozen=True)
class Span:
    """A piece of a line in one style of fleet.console.colors.SGR; empty: plain."""

    text: str
    style: str = ""


Line = tuple[Span, ...]


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        title: Heading of the column.
        cells: One for each row; a column whose cells are all empty is left out.
        rank: If space is short, columns of the highest rank are left out first; rank 0 never is.
        right: True if cells are aligned right.
        limit: Largest width; longer cells are cut.
        reserve: Smallest width in a table whose columns keep their places, also before the column has content.
        least: Smallest width.
    """

    title: str
    cells: tuple[Span, ...]
    rank: int = 0
    right: bool = False
    limit: int = 40
    reserve: int = 0
    least: int = 0

    @classmethod
    def of(cls, title: str, rows: Iterable[T], text: Callable[[T], str], **layout: Any) -> Column:
        """Return the column with the plain text of each row; `layout`: further attributes."""
        return cls(title, tuple(Span(text(row)) for row in rows), **layout)

    @property
    def width(self) -> int:
        """Return the width in terminal columns."""
        texts = [self.title, *(cell.text for cell in self.cells)]
        return min(self.limit, max(self.least, *map(measure_text, texts)))


def measure_text(text: str) -> int:
    """Return the terminal columns of `text`, which has no control characters."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fit(text: str, width: int, mark: str = "…") -> str:
    """Return `text`, or the part of it that fits `width` terminal columns, including the `mark`."""
    if measure_text(text) <= width:
        return text
    room = width - measure_text(mark)
    if room < 0:
        return ""
    if text.isascii():
        return text[:room] + mark
    from rich.cells import set_cell_size

    return set_cell_size(text, room).rstrip() + mark  # a space replaces half of a wide character


def measure_line(line: Line) -> int:
    """Return the terminal columns of a line."""
    return sum(measure_text(span.text) for span in line)


def crop(line: Line, width: int, mark: str = "…") -> Line:
    """Return `line`, or the part of it that fits `width`."""
    if measure_line(line) <= width:
        return line
    spans: list[Span] = []
    for span in line:
        room = width - measure_line(tuple(spans))
        spans.append(Span(fit(span.text, room, mark), span.style))
        if measure_text(span.text) > room:
            break
    return tuple(span for span in spans if span.text)


def justify(left: Line, right: Line, width: int, mark: str = "…") -> Line:
    """Return `left` and `right` at the two ends of a line; `left` is cut if both do not fit."""
    if not measure_line(right):
        return crop(left, width, mark)
    cut = crop(left, max(0, width - measure_line(right) - GAP), mark)
    space = width - measure_line(cut) - measure_line(right)
    return (*cut, Span(" " * space), *right)


def choose(columns: Iterable[Column], width: int) -> list[Column]:
    """Return the columns that have content and fit `width` together."""
    chosen = [column for column in columns if any(cell.text for cell in column.cells)]
    while measure_table(chosen) > width:
        worst = max(chosen, key=lambda column: column.rank)
        if worst.rank == 0:
            break
        chosen.remove(worst)
    return chosen


@dataclass(frozen=True)
class Layout:
    """The columns of a table that is drawn again and again.

    Attributes:
        room: Terminal columns of the table.
        widths: Titles of its columns with their widths, in order.
    """

    room: int = 0
    widths: tuple[tuple[str, int], ...] = ()


def settle(before: Layout, columns: Sequence[Column], room: int) -> tuple[Layout, list[Column]]:
    """Return the columns to show, and their layout; columns of the layout before keep their places.

    Columns are always in the given order. Further ones are added if they fit, those of the lowest rank first. A
    column without content is not added, unless its rank is 0, but room is left for it at its place. If cells have
    become too wide, columns of the highest rank are left out.

    Args:
        before: Layout of the table before; of another width, it does not count.
        columns: All columns.
        room: Terminal columns of the table.
    """
    widths = dict(before.widths) if before.room == room else {}
    by_title: dict[str, Column] = {}
    for column in columns:
        by_title.setdefault(column.title, replace(column, least=widths.get(column.title, column.reserve)))
    chosen = [by_title[title] for title in widths if title in by_title]
    while measure_table(chosen) > room and (worst := max(chosen, key=lambda column: column.rank)).rank > 0:
        chosen.remove(worst)
    reserved: list[Column] = []
    for column in sorted(by_title.values(), key=lambda column: column.rank):
        has_content = any(cell.text for cell in column.cells)
        if column.title in widths or not (has_content or column.reserve):
            continue
        if column.rank and measure_table([*chosen, *reserved, column]) > room:
            continue
        (chosen if has_content or not column.rank else reserved).append(column)
    order = list(by_title)
    chosen.sort(key=lambda column: order.index(column.title))
    empty = [replace(column, least=column.width) for column in reserved]
    shown = sorted([*chosen, *empty], key=lambda column: order.index(column.title))
    while shown and shown[-1] in empty:
        shown.pop()
    layout = Layout(room, tuple((column.title, column.width) for column in chosen))
    return layout, [replace(column, title="") if column in empty else column for column in shown]


def measure_table(columns: Sequence[Column]) -> int:
    """Return the terminal columns of a table."""
    return sum(column.width for column in columns) + GAP * max(0, len(columns) - 1)


def arrange_table(columns: Sequence[Column], width: int, mark: str = "…") -> list[Line]:
    """Return header and rows of a table, none longer than `width`."""
    rows = [tuple(Span(column.title, "dim") for column in columns)]
    rows += list(zip(*(column.cells for column in columns), strict=True))
    return [crop(_row(columns, row, mark), width, mark) for row in rows]


def _row(columns: Sequence[Column], cells: tuple[Span, ...], mark: str) -> Line:
    spans: list[Span] = []
    for column, cell in zip(columns, cells, strict=True):
        text = fit(cell.text, column.width, mark)
        space = Span(" " * (column.width - measure_text(text)))
        if spans:
            spans.append(Span(" " * GAP))
        spans += [space, Span(text, cell.style)] if column.right else [Span(text, cell.style), space]
    while spans and not spans[-1].text.strip():
        spans.pop()
    return tuple(span for span in spans if span.text)


def render(lines: Iterable[Line], *, color: bool) -> str:
    """Return lines as text for a stream, each with a newline, without control characters except colors."""

    def text(span: Span) -> str:
        return paint(clean(span.text), span.style if color else "")

    return "".join("".join(map(text, line)) + "\n" for line in lines)
