from __future__ import annotations

import pytest

from tests.interpreter import shared_interpreter
from tests.process.train.agent.conftest import Connect


@pytest.fixture(scope="session")
def interpreter(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter whose ensurepip has pip with its bytecode."""
    return shared_interpreter(tmp_path_factory)


@pytest.fixture
def connect(connect: Connect, interpreter: str) -> Connect:
    """Return the function that opens channels to hosts, with this interpreter unless another one is given."""
    return lambda host=0, **options: connect(host, **{"python": interpreter, **options})
