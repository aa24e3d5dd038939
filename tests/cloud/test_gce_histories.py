"""After any fault, `fleet down` or `fleet gc` leaves no resource, and no error is reported as success."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloud.histories import play_histories
from tests.emulator import Emulator

SHARES = 2
HISTORIES = 16  # ./scripts/soak cloud plays any number


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


@pytest.mark.parametrize("share", range(SHARES))
def test_no_resource_is_left_after_any_history(share: int, emulator: Emulator, tmp_path: Path) -> None:
    play_histories(range(share, HISTORIES, SHARES), emulator, tmp_path)
