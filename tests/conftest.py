from __future__ import annotations

import gc
import importlib.util
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import hypothesis
import pytest
from hypothesis.internal.conjecture import providers

from provision.local import sshd
from provision.local.sshd import AGENTS_VARIABLE
from tests.ports import reserved_port
from tests.program import Program, set_default_signals

ROOT = Path(__file__).parent
# Compiling all modules in each process that the tests start, and all tests in each worker, doubles the CPU time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The same few examples in each run; `./scripts/soak properties` tries others.
hypothesis.settings.register_profile("sample", derandomize=True, max_examples=30, deadline=None, database=None)
hypothesis.settings.load_profile("sample")


def pytest_configure(config: pytest.Config) -> None:
    """Prepare the process for all tests."""
    set_default_signals()
    if not config.getoption("--hypothesis-profile"):
        # Hypothesis would read the source of all imported modules for constants to try: up to 3 s in each worker, and
        # the examples would depend on what has been imported.
        vars(providers)["is_local_module_file"] = lambda _path: False
    if not hasattr(config, "workerinput"):  # the workers of pytest-xdist inherit it
        # All tests share compiled agents, which take 0.4 s of CPU time each.
        os.environ[AGENTS_VARIABLE] = tempfile.mkdtemp(prefix="fleet-tests-")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect garbage neither during the collection of tests, which leaves little, nor in its result later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Delete what all tests share."""
    if not hasattr(config, "workerinput"):
        shutil.rmtree(os.environ.pop(AGENTS_VARIABLE), ignore_errors=True)


def pytest_runtest_teardown() -> None:
    """Undo `ignore_interrupts`, which the command line calls in the process of a test; children would inherit it."""
    for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGTERM, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests whose programs are not installed, and say how to install them."""
    missing: dict[str, pytest.MarkDecorator] = {}
    if sshd.find() is None:
        skip = pytest.mark.skip(reason="sshd is not installed: ./scripts/test --install")
        missing |= dict.fromkeys(("wire", "faults", "docs", "e2e", "test_provider.py"), skip)
    if importlib.util.find_spec("tensorflow") is None:
        missing["e2e"] = pytest.mark.skip(reason="TensorFlow is not installed: ./scripts/setup")
    for item in items:
        for part in item.path.relative_to(ROOT).parts:
            if part in missing:
                item.add_marker(missing[part])


@pytest.fixture
def port() -> Iterator[int]:
    """Yield a port on which no other program listens."""
    with reserved_port() as reserved:
        yield reserved


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    """The program in an empty directory, with a state directory of its own; everything is taken down at the end.

    The path of the state directory is short enough for the sockets of resident agents.
    """
    directory = tmp_path / "work"
    directory.mkdir()
    with tempfile.TemporaryDirectory(prefix="fleet-", ignore_cleanup_errors=True) as parent:
        program = Program(state=Path(parent) / "state", directory=directory)
        yield program
        program.close()
