"""Run the campaign `interrupts`: Ctrl-C and SIGKILL in all states of commands, in random orders.

The states and the checks are those of tests/wire/test_interrupts.py.
"""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tests.program import Program
from tests.wire.test_interrupts import DOWN, LAUNCH, interrupt_down, interrupt_train, kill_train


def run(seed: int, rounds: int, report: Callable[[str], None]) -> int:
    """Interrupt commands in all states `rounds` times; return the number of violations."""
    chance = random.Random(seed)
    violations = 0
    for number in range(rounds):
        launches = [(case, state) for case in (kill_train, interrupt_train) for state in LAUNCH]
        violations += _play(
            "train", [partial(case, state=state) for case, state in chance.sample(launches, len(launches))], report
        )
        downs = [(signal_number, state) for signal_number in (signal.SIGINT, signal.SIGKILL) for state in DOWN]
        for signal_number, state in chance.sample(downs, len(downs)):
            case = partial(interrupt_down, number=signal_number, state=state, workers=chance.randint(1, 3))
            violations += _play("down", [case], report)
        report(f"round {number + 1} of {rounds}: {len(launches) + len(downs)} cases, {violations} violations")
    return violations


def _play(command: str, cases: list[partial[None]], report: Callable[[str], None]) -> int:
    """Play cases that interrupt a command on one fleet; return the number of violations."""
    violations = 0
    with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
        program = Program(state=Path(directory) / "state", directory=Path(directory) / "work")
        program.directory.mkdir()
        try:
            if command == "train":
                program.run("up", "--workers", "2")
            for case in cases:
                try:
                    case(program)
                except AssertionError as error:
                    violations += 1
                    report(f"violation: {case.func.__name__} {case.keywords}: {error}")
                    program.run("stop", code=None)
        finally:
            program.close()
    return violations
