"""The documents: each command in them runs, each link has a target, and the reference matches the help texts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.docs.reference import FILE, reference
from tests.program import Program

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
SESSION = re.compile(r"```console\n(.*?)```", re.DOTALL)
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")
MODULE = re.compile(r"`((?:[a-z_]+/)+(?:[a-z_]+\.py)?)`")
DESCRIPTIONS = (ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md")


CLOUD = "## On Compute Engine"


def commands(text: str) -> list[str]:
    """Return the commands of a page's sessions: lines that begin with ``$ fleet``."""
    return [
        line.removeprefix("$ ")
        for session in SESSION.findall(text)
        for line in session.splitlines()
        if line.startswith("$ fleet")
    ]


def test_the_reference_matches_the_help_texts() -> None:
    assert FILE.read_text() == reference(), "regenerate it: .venv/bin/python -m tests.docs.reference"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_has_a_target(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", DESCRIPTIONS, ids=lambda page: page.name)
def test_each_module_that_a_description_names_exists(page: Path) -> None:
    packages = ["", "fleet/", "provision/", "train/", "train/agent/", "provision/gce/", "train/lint/"]
    for name in MODULE.findall(page.read_text()):
        assert any((ROOT / package / name).exists() for package in packages), f"{page.name}: {name}"


def test_no_package_has_more_than_15_modules() -> None:
    for package in ("fleet", "provision", "train"):
        for directory in {file.parent for file in (ROOT / package).rglob("*.py")}:
            modules = [
                file.name for file in directory.glob("*.py") if file.name not in ("__init__.py", "__main__.py")
            ]
            assert len(modules) <= 15, f"{directory.relative_to(ROOT)}: {len(modules)} modules"


# Stands in for train/examples/keras_fit.py, with which the demo and the README's commands for Compute Engine train.
TASK = """
import argparse, os, time
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
epochs = parser.parse_args().epochs
for epoch in range(1, epochs + 1):
    print(f"Epoch {epoch}/{epochs}", flush=True)
    time.sleep(0.5 if epochs > 5 else 0)
with open(os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "checkpoint"), "w") as file:
    file.write(str(epochs))
"""


def test_the_readme_works_from_an_empty_directory(program: Program) -> None:
    """Run the commands of the README in order; a comment after a command gives an exit code other than 0.

    tests/e2e/test_gce.py runs the commands that use Compute Engine.
    """
    lines = commands((ROOT / "README.md").read_text().partition(CLOUD)[0])
    assert len(lines) >= 8
    program.script("task.py", TASK)
    for line in lines:
        text, _, comment = line.partition("#")
        code = re.search(r"exit code (\d+)", comment)
        program.run(*shlex.split(text)[1:], code=int(code[1]) if code else 0, timeout=180)
    assert [path.read_text() for path in program.directory.glob("results/*/checkpoints/checkpoint")] == ["5"]
    assert not program.processes()


def test_commands_outside_the_readme_exist(program: Program, subtests: pytest.Subtests) -> None:
    """Inline commands use existing commands and options."""
    help_texts: dict[str, str] = {}
    for page in PAGES:
        if page.name != "README.md":
            with subtests.test(page.name):
                check_inline_commands(page, program, help_texts)


def check_inline_commands(page: Path, program: Program, help_texts: dict[str, str]) -> None:
    for text in re.findall(r"`(fleet [a-z][^`]*)`", page.read_text()):
        words = shlex.split(text.partition(" | ")[0].replace("[", "").replace("]", ""))
        help_text = help_texts.get(words[1]) or program.run(words[1], "--help").text
        help_texts[words[1]] = help_text
        arguments = words[2 : words.index("--")] if "--" in words else words[2:]
        for word in arguments:
            if word.startswith("-"):
                assert word.partition("=")[0] in help_text, f"{page.name}: {text}"
