"""Run the campaigns `cloud` and `costs`: random histories of a fleet on the emulator of Compute Engine."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.emulator import Emulator

Play = Callable[[Sequence[int], Emulator, Path], None]
_REPORT_EVERY = 100


class Campaign(NamedTuple):
    """A campaign of histories.

    Attributes:
        play: Plays the histories of some seeds.
        summary: One line of help.
        description: Help.
        histories: Default number of histories.
    """

    play: Play
    summary: str
    description: str
    histories: int


def add_parser(campaigns: Any, name: str, campaign: Campaign) -> None:
    """Add the command of a campaign."""
    parser = campaigns.add_parser(name, help=campaign.summary, description=campaign.description)
    parser.add_argument("--seed", type=int, default=None, help="seed of the first history [default: random]")
    text = f"number of histories [default: {campaign.histories}]"
    parser.add_argument("--histories", type=int, default=campaign.histories, help=text)


def run(play: Play, seed: int, histories: int, report: Callable[[str], None]) -> list[int]:
    """Play histories one after another; return the seeds of those that violate a rule."""
    violations = []
    with Emulator(operation_s=0.003) as emulator:
        for number in range(histories):
            with tempfile.TemporaryDirectory(prefix="fleet-soak-") as directory:
                try:
                    play([seed + number], emulator, Path(directory))
                except AssertionError as error:
                    violations.append(seed + number)
                    report(str(error))
            if (number + 1) % _REPORT_EVERY == 0:
                report(f"{number + 1} of {histories} histories, {len(violations)} violations")
    return violations
