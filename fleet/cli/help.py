"""The layout of help texts: lines end at spaces, and fit terminals of any width."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import typer

_WIDTH_MAX = 78
_WIDTH_MIN = 20
_TERMS_MAX = 30  # columns of the terms of a list
_GAP = 2
_VERBATIM = "\b\n"  # begins a paragraph that is not wrapped


class HelpFormatter:
    """Takes the parts of a help text, with the interface of Typer's formatter, which breaks lines at hyphens.

    Attributes:
        width: Columns of a line.
    """

    def __init__(self, **_: Any) -> None:
        self.width = max(_WIDTH_MIN, min(shutil.get_terminal_size().columns - 2, _WIDTH_MAX))
        self._indent = 0
        self._text = ""

    def getvalue(self) -> str:
        """Return the text."""
        return self._text

    def write_usage(self, prog: str, args: str = "") -> None:
        """Add the line with the arguments of the command."""
        from fleet.console.pages import wrap_text

        head = f"Usage: {prog} "
        self._text += wrap_text(args, self.width, head, " " * min(len(head), self.width // 3)) + "\n"

    def write_heading(self, heading: str) -> None:
        """Add the heading of a section."""
        self._text += f"{' ' * self._indent}{heading}:\n"

    def write_paragraph(self) -> None:
        """Add an empty line, except at the beginning."""
        self._text += "\n" if self._text else ""

    def write_text(self, text: str) -> None:
        """Add paragraphs."""
        self._text += "\n\n".join(map(self._lay_out, text.split("\n\n"))) + "\n"

    def _lay_out(self, paragraph: str) -> str:
        from fleet.console.pages import wrap_text

        indent = " " * self._indent
        if paragraph.startswith(_VERBATIM):
            return "\n".join(indent + line for line in paragraph.removeprefix(_VERBATIM).split("\n"))
        return wrap_text(" ".join(paragraph.split("\n")), self.width, indent, indent)

    def write_dl(self, rows: Sequence[tuple[str, str]]) -> None:
        """Add a list of terms with their definitions; a long term has a line for itself."""
        from fleet.console.pages import wrap_text

        terms_max = _TERMS_MAX if self.width == _WIDTH_MAX else self.width // 3
        column = min(max(len(term) for term, _ in rows), terms_max) + _GAP
        start = " " * self._indent
        for term, definition in rows:
            is_long = len(term) > column - _GAP
            head = f"{start}{term}\n{' ' * column}{start}" if is_long else f"{start}{term:{column}}"
            indent = " " * (self._indent + column)
            lines = wrap_text(definition, self.width, indent, indent)
            self._text += head + lines[len(indent) :] + "\n"

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Add a heading after an empty line; what is added in the context is indented."""
        self.write_paragraph()
        self.write_heading(name)
        with self.indentation():
            yield

    @contextmanager
    def indentation(self) -> Iterator[None]:
        """Indent what is added in the context."""
        self._indent += _GAP
        try:
            yield
        finally:
            self._indent -= _GAP


class HelpContext(typer.Context):
    """The context of a command whose help has this layout."""

    formatter_class: Any = HelpFormatter
