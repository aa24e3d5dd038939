"""Run the cases of a campaign, each in a new directory; the cases of the test command, and further ones."""

from __future__ import annotations

import random
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.faults.test_growth import play as play_growth
from tests.faults.test_histories import KINDS, play
from tests.faults.test_standins import CASES, play_cases
from tests.program import Program
from tests.wire.test_interrupts import DOWN, LAUNCH, interrupt_down, interrupt_train, kill_train

Case = tuple[str, Callable[[Path], object]]
"""Its name, and a function that raises an error if a promise is broken."""
_REPORT_EVERY = 20
_HISTORIES = 500
"""Histories in simulated time, per round and kind."""


def run_cases(cases: Iterable[Case], lanes: int = 1) -> int:
    """Play cases, and keep the files of those that fail; return the number of violations.

    Args:
        cases: The cases.
        lanes: Number of cases that run side by side.
    """
    root = Path(tempfile.mkdtemp(prefix="fleet-soak-"))

    def play(numbered: tuple[int, Case]) -> bool:
        number, (name, case) = numbered
        directory = root / str(number)
        directory.mkdir()
        try:
            case(directory)
        except Exception as error:  # noqa: BLE001 - also of the driver
            stack = "" if isinstance(error, AssertionError) else traceback.format_exc()
            print(f"violation: {name}: {type(error).__name__}: {error}\n{stack}  files: {directory}", flush=True)
            return True
        shutil.rmtree(directory, ignore_errors=True)
        return False

    played = violations = 0
    with ThreadPoolExecutor(lanes) as pool:
        for is_violation in (pool.map if lanes > 1 else map)(play, enumerate(cases)):
            played, violations = played + 1, violations + is_violation
            if played % _REPORT_EVERY == 0:
                print(f"{played} cases, {violations} violations", flush=True)
    print(f"{played} cases: {violations} violations", flush=True)
    if not violations:
        shutil.rmtree(root, ignore_errors=True)
    return violations


def standins(chance: random.Random) -> Iterator[Case]:
    """Yield all cases of tests/faults/test_standins.py, cold and warm, and random histories in simulated time."""
    for warm in (False, True):
        names = chance.sample(sorted(CASES), len(CASES))
        yield "warm cases" if warm else "cold cases", partial(_play_standins, names, warm=warm)
    for kind in (*KINDS, "growth"):
        seeds = [chance.randrange(10**9) for _ in range(_HISTORIES)]
        yield f"histories of kind {kind}", partial(_simulate, kind, seeds)


def _play_standins(names: list[str], directory: Path, *, warm: bool) -> None:
    errors = {name: done.exception() for name, done in play_cases(names, directory / "cases", warm=warm).items()}
    _report([f"{name}: {type(error).__name__}: {error}" for name, error in errors.items() if error is not None])


def _simulate(kind: str, seeds: list[int], _: Path) -> None:
    errors = []
    for seed in seeds:
        try:
            play_growth(seed) if kind == "growth" else play(seed, kind)
        except Exception as error:  # noqa: BLE001 - reported with its seed
            errors.append(f"history {seed}: {type(error).__name__}: {error}")
    _report(errors)


def _report(errors: list[str]) -> None:
    assert not errors, "\n".join(errors)


def interrupts(chance: random.Random) -> Iterator[Case]:
    """Yield interruptions of all states of commands: those of `fleet train` on one fleet."""
    launches = [partial(case, state=state) for case in (kill_train, interrupt_train) for state in LAUNCH]
    yield "train", partial(_interrupt, "2", chance.sample(launches, len(launches)))
    downs = [(number, state) for number in (signal.SIGINT, signal.SIGKILL) for state in DOWN]
    for number, state in chance.sample(downs, len(downs)):
        case = partial(interrupt_down, number=number, state=state, workers=chance.randint(1, 3))
        yield f"down, {number.name} at {state!r}", partial(_interrupt, "", [case])


def _interrupt(workers: str, cases: list[Callable[[Program], None]], directory: Path) -> None:
    program = Program(state=directory / "state", directory=directory / "work")
    program.directory.mkdir()
    errors = []
    try:
        if workers:
            program.run("up", "--workers", workers)
        for case in cases:
            try:
                case(program)
            except AssertionError as error:
                errors.append(f"{case}: {error}")
                program.run("stop", code=None)
    finally:
        program.close()
    _report(errors)
