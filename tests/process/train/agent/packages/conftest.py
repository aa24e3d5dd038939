from __future__ import annotations

from pathlib import Path

import pytest

from tests.interpreter import shared_interpreter
from tests.process.train.agent.conftest import Connect


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter with the ensurepip of guests."""
    return shared_interpreter(tmp_path_factory)


@pytest.fixture
def connect(connect: Connect, interpreter: str) -> Connect:
    """Return the function that opens channels to hosts, with this interpreter unless another one is given."""
    return lambda host=0, **options: connect(host, **{"python": interpreter, **options})


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    """Return the directory in which pip finds wheels."""
    return tmp_path / "wheels"
