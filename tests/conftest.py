from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.program import Program


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """The program in an empty folder, with a state folder of its own; everything is taken down at the end."""
    folder = tmp_path / "work"
    folder.mkdir()
    program = Program(state=tmp_path / "state", folder=folder)
    yield program
    program.close()
