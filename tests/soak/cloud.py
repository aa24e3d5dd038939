"""Run the campaign `cloud`: random histories of a fleet on the emulator of Compute Engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.cloud.histories import play_histories
from tests.emulator import Emulator

_REPORT_EVERY = 100


def run(seed: int, histories: int, report: Callable[[str], None]) -> list[int]:
    """Play histories one after another; return the seeds of those that violate a rule."""
    violations = []
    with Emulator(operation_s=0.003) as emulator:
        for number in range(histories):
            with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
                try:
                    play_histories([seed + number], emulator, Path(directory))
                except AssertionError as error:
                    violations.append(seed + number)
                    report(str(error))
            if (number + 1) % _REPORT_EVERY == 0:
                report(f"{number + 1} of {histories} histories, {len(violations)} violations")
    return violations
