"""After any fault, no resource is left, no error is reported as success, and no fleet costs more than its limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cloud import spending
from tests.cloud.histories import play_histories
from tests.emulator import Emulator

SHARES = 2
HISTORIES = 10  # ./scripts/soak cloud, and ./scripts/soak costs, play any number


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


@pytest.mark.parametrize("play", [play_histories, spending.play])
@pytest.mark.parametrize("share", range(SHARES))
def test_any_history_keeps_the_rules(
    play: Callable[..., None], share: int, emulator: Emulator, tmp_path: Path
) -> None:
    play(range(share, HISTORIES, SHARES), emulator, tmp_path)
