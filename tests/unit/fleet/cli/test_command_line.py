from __future__ import annotations

import pytest

from fleet.cli.command_line import CommandLine, Option, parse, separate_jobs

OPTIONS = (
    Option(("--workers", "-w"), takes_value=True),
    Option(("--gpu",), takes_value=True),
    Option(("--spot", "--no-spot"), takes_value=False),
    Option(("--yes", "-y"), takes_value=False),
    Option(("--env", "-e"), takes_value=True),
    Option(("--index-url",), takes_value=True),
    Option(("--pip-proxy",), takes_value=True),
    Option(("--output", "-o"), takes_value=True),
)


def typed(*arguments: str, command: str = "up") -> CommandLine:
    return parse(command, arguments, OPTIONS)


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("--workers", "2", "--gpu", "t4"),
        ("-w", "2"),
        ("-w2",),
        ("--workers=2", "-y"),
        ("task.py", "--", "--epochs", "5"),
        ("--no-spot", "-o", "json"),
        ("--unknown", "x"),
        ("--workers",),
    ],
)
def test_an_unchanged_line_is_repeated_as_typed(arguments: tuple[str, ...]) -> None:
    assert typed(*arguments).changed({}).step().text() == " ".join(["fleet up", *arguments])


@pytest.mark.parametrize("spelling", [("--workers", "2"), ("-w", "2"), ("-w2",), ("--workers=2",)])
def test_every_spelling_of_an_option_is_replaced_and_removed(spelling: tuple[str, ...]) -> None:
    line = typed("--gpu", "t4", *spelling, "--yes")
    assert line.changed({"--workers": "3"}).step().text() == "fleet up --workers 3 --gpu t4 --yes"
    assert line.changed({"--workers": None}).step().text() == "fleet up --gpu t4 --yes"


def test_the_script_is_replaced_and_removed() -> None:
    line = typed("--yes", "tsk.py", "x", "--", "--epochs", "5", command="train")
    assert line.changed({"SCRIPT": "my task.py"}).step().text() == "fleet train --yes 'my task.py' x -- --epochs 5"
    assert (
        line.changed({"SCRIPT": None, "--env": "A=1"}).step().text() == "fleet train --env A=1 --yes x -- --epochs 5"
    )
    assert line.takes({"SCRIPT": "task.py"})


def test_a_value_that_looks_like_an_option_stays_a_value() -> None:
    assert typed("--gpu", "--workers", "2").changed({"--workers": None}).step().text() == "fleet up --gpu --workers 2"


@pytest.mark.parametrize(
    "spelling", [("--env", "API_KEY=hunter2"), ("-e", "API_KEY=hunter2"), ("--env=API_KEY=hunter2",)]
)
def test_values_of_secret_variables_are_left_out(spelling: tuple[str, ...]) -> None:
    assert typed(*spelling).step().text() == "fleet up --env API_KEY"
    assert typed("-e", "BATCH=5").step().text() == "fleet up -e BATCH=5"


def test_logins_in_urls_are_left_out_unless_they_come_from_variables() -> None:
    line = typed("--index-url", "https://reader:hunter2@index/simple", "--pip-proxy=http://a:${PASSWORD}@proxy")
    assert line.step().text() == "fleet up --index-url https://index/simple '--pip-proxy=http://a:${PASSWORD}@proxy'"


@pytest.mark.parametrize(
    ("arguments", "separated"),
    [
        (("a", "--gpu", "-1"), ("a", "--gpu", "-1")),
        (("-1",), ("--", "-1")),
        (("-1", "-y"), ("-y", "--", "-1")),
        (("-2", "--gpu", "t4", "base"), ("--gpu", "t4", "--", "-2", "base")),
        (("base", "-10", "-w2"), ("-w2", "--", "base", "-10")),
        (("--", "-1"), ("--", "-1")),
        (("-x", "-1"), ("-x", "--", "-1")),
    ],
)
def test_numbers_of_jobs_are_operands(arguments: tuple[str, ...], separated: tuple[str, ...]) -> None:
    assert tuple(separate_jobs(arguments, OPTIONS)) == separated
