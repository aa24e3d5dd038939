"""The documents: each command in them runs, each link has a target, and the reference matches the help texts."""

from __future__ import annotations

import contextlib
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import walkthrough
from tests.docs.reference import FILE, reference
from tests.program import Program

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
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


# Stands in for train/examples/keras_fit.py, with which the walkthrough trains.
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


@pytest.fixture
def home() -> Iterator[Path]:
    """Return an empty directory whose path is about as long as in the walkthrough: messages are wrapped at words."""
    with tempfile.TemporaryDirectory(prefix="ada-") as directory:
        yield Path(directory)


@pytest.mark.e2e
def test_the_walkthrough_and_the_readme_work_from_an_empty_directory(home: Path) -> None:
    """Type the commands of the walkthrough in a terminal, and kill the client; then run what else the README shows.

    The commands of the README run in order on the same fleet, with a stand-in script after the walkthrough's model
    was pulled. A comment after a command gives an exit code other than 0. tests/e2e/test_gce.py runs the commands
    that use Compute Engine.
    """
    files, steps = walkthrough.read_page()
    readme = commands((ROOT / "README.md").read_text().partition(CLOUD)[0])
    *walk, down = steps
    typed = [step.command for step in walk if step.command.startswith("fleet")]
    rest = list(readme)
    for command in typed:
        with contextlib.suppress(ValueError):
            rest.remove(command)
    assert len(readme) - len(rest) == 3  # up, train, pull; the text of the README has the others
    assert rest[-1] == down.command
    (home / "fleet").symlink_to(ROOT)
    program = Program(home / ".local" / "state" / "fleet", home / "digits", {"HOME": str(home)})
    shell = walkthrough.Shell(home, program.environment())
    try:
        seen = [shell.play(walk[0])]
        for name, text in files.items():
            program.script(name, text)
        seen += [shell.play(step) for step in walk[1:]]
        program.script("task.py", TASK)
        for line in rest[:-1]:
            text, _, comment = line.partition("#")
            code = re.search(r"exit code (\d+)", comment)
            program.run(*shlex.split(text)[1:], code=int(code[1]) if code else 0)
        seen.append(shell.play(down))
    finally:
        shell.close()
        program.close()
    [reattached] = [step for step in seen if step.command == "fleet logs -f"]
    for log in walkthrough.log_lines(reattached).values():
        epochs = [line for line in log if line.startswith("Epoch")]
        assert epochs == [f"Epoch {epoch}/5" for epoch in range(1, 6)], "\n".join(reattached.lines)
    for step, actual in zip(steps, seen, strict=True):
        problem = walkthrough.difference(step, actual)
        assert not problem, "\n".join([f"{walkthrough.PAGE.name}: {problem}", f"$ {step.command}", *actual.lines])


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
        help_text = help_texts.get(words[1]) or program.run(words[1], "--help-all").text
        help_texts[words[1]] = help_text
        arguments = words[2 : words.index("--")] if "--" in words else words[2:]
        for word in arguments:
            if word.startswith("-"):
                assert word.partition("=")[0] in help_text, f"{page.name}: {text}"
