"""The documents: every command in them runs, every link leads somewhere, the reference is what the program says."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.docs.reference import FILE, reference
from tests.program import Program

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SESSION = re.compile(r"```console\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


CLOUD = "## On Compute Engine"


def commands(text: str) -> list[str]:
    """The commands of a page's sessions: lines that begin with ``$ fleet``."""
    return [
        line.removeprefix("$ ")
        for session in SESSION.findall(text)
        for line in session.splitlines()
        if line.startswith("$ fleet")
    ]


def test_the_reference_is_what_the_program_says() -> None:
    assert FILE.read_text() == reference(), "write it anew: .venv/bin/python -m tests.docs.reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.e2e
def test_the_readme_is_followed_from_an_empty_directory(program: Program) -> None:
    """Each command of the README in its order; a comment behind it names an exit code that is not 0.

    Those on Compute Engine are followed in tests/e2e/test_gce.py.
    """
    lines = commands((ROOT / "README.md").read_text().partition(CLOUD)[0])
    assert len(lines) >= 8
    shutil.copy(ROOT / "train" / "examples" / "keras_fit.py", program.directory / "task.py")
    shutil.copy(ROOT / "train" / "examples" / "digits.npz", program.directory)
    for line in lines:
        text, _, comment = line.partition("#")
        code = re.search(r"exit code (\d+)", comment)
        program.run(*shlex.split(text)[1:], code=int(code[1]) if code else 0, timeout=180)
    assert not program.processes()


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "README.md"], ids=lambda page: page.name)
def test_commands_outside_the_readme_are_known(page: Path, program: Program) -> None:
    """Inline commands name verbs and options that exist."""
    for text in re.findall(r"`(fleet [a-z][^`]*)`", page.read_text()):
        words = shlex.split(text.partition(" | ")[0].replace("[", "").replace("]", ""))
        known = program.run(words[1], "--help").text
        own = words[2 : words.index("--")] if "--" in words else words[2:]
        for word in own:
            if word.startswith("-"):
                assert word.partition("=")[0] in known, f"{page.name}: {text}"
