"""Everyday options in the help, all of them with --help-all, and the table [train] of fleet.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fleet.cli import app as cli

TEMPLATE = Path(__file__).parents[4] / "inventories" / "fleet.local.toml"
RARE = {"up": "--reservation", "train": "--link-timeout"}


def options_of(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert cli.run([command, option]) == 0
    return set(re.findall(r"^  (?:-\w, )?(--?\w[\w-]*)", capsys.readouterr().out, re.MULTILINE))


@pytest.mark.parametrize("command", ["up", "train"])
def test_the_help_has_everyday_options_and_help_all_the_others(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    everyday = options_of(command, "--help", capsys) - {"--help", "--help-all"}
    everything = options_of(command, "--help-all", capsys)
    assert len(everyday) <= 25
    assert everyday < everything
    assert RARE[command] in everything - everyday


def test_the_template_shows_options_of_train() -> None:
    text = TEMPLATE.read_text().partition("[train]")[2]
    assert re.findall(r"^# ([\w-]+) =", text, re.MULTILINE) == ["restarts", "hang-timeout", "link-timeout"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("restart = 3", "restart in [train] is not one of its keys"),
        ('resume = "-1"', "resume in [train] is not one of its keys"),
        ("ps = -1", "ps in [train]: invalid value for '--ps': -1 is less than 0"),
        ('backoff = "soon"', "backoff in [train]: invalid value for '--backoff': invalid duration 'soon'"),
        ("chief = [true]", "chief in [train] must be true or false"),
    ],
)
def test_a_wrong_line_of_the_file_is_named(
    line: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    Path("task.py").write_text("")
    Path("fleet.toml").write_text(f"[train]\n{line}\n")
    assert cli.run(["train", "task.py"]) == 2
    assert f"fleet.toml: {reason}" in capsys.readouterr().err


def test_the_help_does_not_read_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("fleet.toml").write_text("[train\n")
    assert cli.run(["train", "--help"]) == 0
    assert "--restarts" in capsys.readouterr().out
