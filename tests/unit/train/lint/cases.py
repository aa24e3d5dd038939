"""Read scripts with their findings from the files in cases/.

A line ``=== workers=3 adapt=false`` begins a case, ``--- data.py`` a module of it, and ``@READY`` stands for a block
of blocks.txt. A comment ``#! MW101 error`` at the end of a line names the findings of this line; a case without one
has no finding. A line ``~ text`` is a message, a reason, or a fix. A line ``### title`` is for readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from train.lint.finding import Finding
from train.lint.linter import lint
from train.script.source import Source, source_of

_DIRECTORY = Path(__file__).parent / "cases"


@dataclass
class Case:
    """A script, the options of the check, and the findings to expect: ``task.py:3 MW101 error``."""

    name: str
    options: dict[str, Any]
    sources: dict[str, str] = field(default_factory=lambda: {"task.py": ""})
    expected: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def add(self, lines: Sequence[str]) -> None:
        for line in lines:
            file = list(self.sources)[-1]
            if line.startswith("--- "):
                self.sources[line[4:]] = ""
            elif line.startswith("~ "):
                self.texts.append(line[2:])
            elif re.fullmatch(r"@[A-Z_]+", line):
                self.add(BLOCKS[line[1:]])
            else:
                code, _, findings = line.partition("#! ")
                self.sources[file] += f"{code.rstrip() if findings else code}\n"
                number = self.sources[file].count("\n")
                self.expected += [f"{file}:{number} {item}" for item in findings.split(", ") if item]


def _sections(file: Path) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the title, the rest of the first line, and the other lines of each section that begins with ``===``."""
    title = ""
    for part in re.split(r"^(?====|### )", file.read_text(), flags=re.MULTILINE):
        first, *lines = part.rstrip("\n").split("\n")
        if first.startswith("### "):
            title = first[4:]
        elif first:
            yield title, first[3:].strip(), lines


BLOCKS = {first[1:]: lines for _, first, lines in _sections(_DIRECTORY / "blocks.txt")}


def read_cases() -> list[Case]:
    """Return all cases."""
    result = []
    for file in sorted(_DIRECTORY.glob("[!b]*.txt")):
        for number, (title, first, lines) in enumerate(_sections(file)):
            case = Case(f"{file.stem} {number}: {title} {first}", _options(first))
            case.add(lines)
            result.append(case)
    return result


def _options(text: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, value in (item.split("=") for item in text.split()):
        if name == "tensorflow":
            tensorflow, has_tf_keras, _ = value.partition("+")
            keras = "3.15.1" if tensorflow > "2.16" else tensorflow
            versions = {"tensorflow": tensorflow, "keras": keras}
            result["versions"] = {**versions, "tf_keras": tensorflow} if has_tf_keras else versions
        else:
            result[name] = int(value) if value.isdigit() else value == "true"
    return result


def script(*lines: str) -> str:
    """Return a script of lines and of blocks: ``@READY``."""
    case = Case("", {})
    case.add(lines)
    return case.sources["task.py"]


def check(*lines: str, **options: Any) -> list[Finding]:
    """Return the findings in a script of these lines and blocks, and in modules after ``--- name``."""
    case = Case("", {})
    case.add([part for line in lines for part in line.splitlines()])
    return lint(sources_of(case.sources), **{"workers": 2, **options})


def sources_of(texts: Mapping[str, str]) -> list[Source]:
    """Return a script and its modules by their names, the script first."""
    return [source_of(name, text.encode("utf-8", "surrogatepass")) for name, text in texts.items()]
