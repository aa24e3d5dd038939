from __future__ import annotations

import pytest

from fleet.cli.application import root_command


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("1", "1"),
        ("--job", "--job -1"),
        ("1 --job", "1 --job -1"),
        ("--job 1", "--job -1 1"),
        ("--job worker-1 --fleet demo", "--job -1 worker-1 --fleet demo"),
        ("--job --fleet demo", "--job -1 --fleet demo"),
        ("1 --job -2", "1 --job -2"),
        ("1 --job baseline", "1 --job baseline"),
        ("--job 20261122-194348-ecf6 1", "--job 20261122-194348-ecf6 1"),
        ("1 --job -- env --job 3", "1 --job -1 -- env --job 3"),
        ("1 -- env --job 3", "1 -- env --job 3"),
    ],
)
def test_a_job_is_optional(typed: str, parsed: str) -> None:
    assert root_command("ssh").commands["ssh"].complete(typed.split()) == parsed.split()
