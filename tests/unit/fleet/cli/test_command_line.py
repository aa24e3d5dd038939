from __future__ import annotations

import pytest

from fleet.cli.application import root_command
from fleet.cli.command_line import CommandLine, Option, parse

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


def typed(*arguments: str) -> CommandLine:
    return parse("up", arguments, OPTIONS)


@pytest.mark.parametrize(
    ("line", "repeated"),
    [
        ("", ""),
        ("--workers 2 --gpu t4", "--workers 3 --gpu t4"),
        ("--gpu t4 -w 2", "--workers 3 --gpu t4"),
        ("-w2", "--workers 3"),
        ("--workers=2 -y", "--workers 3 -y"),
        ("--gpu --workers 2", "--workers 3 --gpu --workers 2"),  # a value that looks like an option
        ("task.py -- --workers 5", "--workers 3 task.py -- --workers 5"),
        ("--no-spot -o json", "--workers 3 --no-spot -o json"),
        ("--unknown x", "--workers 3 --unknown x"),
        ("--workers", "--workers 3"),
    ],
)
def test_a_line_is_repeated_as_typed_or_with_another_option(line: str, repeated: str) -> None:
    words = line.split()
    assert typed(*words).changed({}).step().text() == " ".join(["fleet up", *words])
    changed = typed(*words).changed({"--workers": "3"}).step().text()
    assert changed == f"fleet up {repeated or '--workers 3'}"


@pytest.mark.parametrize(
    ("typed_words", "shown"),
    [
        (("--env", "API_KEY=hunter2"), "--env API_KEY"),
        (("-e", "API_KEY=hunter2"), "--env API_KEY"),
        (("--env=API_KEY=hunter2",), "--env API_KEY"),
        (("-e", "BATCH=5"), "-e BATCH=5"),
        (("--index-url", "https://reader:hunter2@index/simple"), "--index-url https://index/simple"),
        (("--pip-proxy=http://a:${PASSWORD}@proxy",), "'--pip-proxy=http://a:${PASSWORD}@proxy'"),
    ],
)
def test_secrets_are_left_out_unless_they_come_from_variables(typed_words: tuple[str, ...], shown: str) -> None:
    assert typed(*typed_words).step().text() == f"fleet up {shown}"


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("--job", "--job -1"),
        ("1 --job", "1 --job -1"),
        ("--job 1", "--job -1 1"),
        ("--job worker-1 --fleet demo", "--job -1 worker-1 --fleet demo"),
        ("1 --job baseline", "1 --job baseline"),
        ("1 --job -- env --job 3", "1 --job -1 -- env --job 3"),
        ("1 -- env --job 3", "1 -- env --job 3"),
    ],
)
def test_the_job_of_ssh_is_optional(typed: str, parsed: str) -> None:
    assert root_command("ssh").commands["ssh"].complete(typed.split()) == parsed.split()
