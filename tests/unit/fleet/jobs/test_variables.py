from __future__ import annotations

from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.jobs.program import environment, secrets
from tests.next_steps import next_lines


def test_given_variables_win_over_files(tmp_path: Path) -> None:
    file = tmp_path / "vars"
    file.write_text("# comment\n\nA=1\nexport B='two words'\nC = 3\n")
    assert environment(["A=9", "HOME"], [str(file)], {"HOME": "/h"}) == {
        "A": "9",
        "B": "two words",
        "C": "3",
        "HOME": "/h",
    }


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["1A=2"], "not a name"),
        (["=2"], "not a name"),
        (["MISSING"], "not set here"),
        (["TF_CONFIG={}"], "TF_CONFIG is set by fleet"),
    ],
)
def test_bad_variables_are_refused(given: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        environment(given, [], {})
    assert caught.value.hint


def test_secrets_come_from_here_or_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("s3cret\n")
    assert secrets(["KEY", f"TOKEN=@{file}"], {"KEY": "k"}) == {"KEY": "k", "TOKEN": "s3cret"}


def test_a_secret_on_the_command_line_is_refused_without_repeating_it() -> None:
    with pytest.raises(UsageError, match="every user of this computer") as caught:
        secrets(["KEY=hunter2"], {})
    error = caught.value
    assert "hunter2" not in error.message + error.cause + error.hint + next_lines(error)
