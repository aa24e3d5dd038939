"""The clock of this computer is wrong: instances end at the right time, and users see times of their clock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.state import Store
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec, InstanceState
from tests.cloud.histories import QUICK
from tests.emulator import Emulator

NAMES = ("worker-0",)
HOUR_S = 3600.0


@pytest.fixture(scope="module")
def emulator() -> Iterator[Emulator]:
    with Emulator(operation_s=0.003) as running:
        yield running


def ends(emulator: Emulator) -> list[float]:
    """Return the hours until the jobs of the instance end and until it powers off, by the clock of the cloud."""
    [instance] = emulator.cloud.instances.values()
    items = instance.metadata()
    return [(int(items[key]) - emulator.clock.now()) / HOUR_S for key in ("fleet-end-at", "fleet-stop-at")]


@pytest.mark.parametrize("max_cost_usd", [0.0, 50.0])
@pytest.mark.parametrize("fast_h", [-3, 3])
def test_instances_end_by_the_clock_of_the_cloud(
    emulator: Emulator, tmp_path: Path, fast_h: int, max_cost_usd: float
) -> None:
    def clock() -> float:
        return emulator.clock.now() + fast_h * HOUR_S

    emulator.reset()
    store = Store(tmp_path)
    store.fleet("demo").create()
    cloud = GceOptions(
        project="proj-1",
        endpoint=emulator.url,
        zones=("us-central1-a",),
        max_duration_s=8 * 3600,
        max_cost_usd=max_cost_usd,
    )
    provider = GceProvider(store.owner(), "me", store.journal, cloud, QUICK, clock)
    spec = FleetSpec("demo", "gce", 1, "ssh-ed25519 AAAA me", options=cloud)
    provider.create(spec, NAMES, lambda *_: None)
    stops = not max_cost_usd
    length_h = 8.0 if stops else 8.0 - 1 / 6
    assert ends(emulator)[0] == pytest.approx(length_h, abs=0.01)

    def shown_h() -> float:
        """Return the hours until the instance powers off or is deleted, as the user sees them."""
        [instance] = provider.list("demo")
        return ((instance.stop_at or instance.delete_at) - clock()) / HOUR_S

    assert shown_h() == pytest.approx(8.0, abs=0.01)
    provider.extend(provider.list("demo"), 2 * HOUR_S, lambda *_: None)
    assert shown_h() == pytest.approx(2.0, abs=0.01)
    if stops:
        assert ends(emulator) == pytest.approx([2.0, 2.0], abs=0.01)
        assert provider.stop_at(provider.list("demo"), clock() + 0.5 * HOUR_S)
        assert ends(emulator)[1] == pytest.approx(0.5, abs=0.01)
        emulator.advance(0.6 * HOUR_S)
    else:
        provider.stop(provider.list("demo"), lambda *_: None)
    emulator.settle()
    [instance] = provider.list("demo")
    assert instance.state is InstanceState.STOPPED
    assert instance.stopped_at == pytest.approx(clock(), abs=0.2 * HOUR_S)
    provider.create(spec, NAMES, lambda *_: None)
    assert shown_h() == pytest.approx(8.0, abs=0.01)
    assert ends(emulator)[0] == pytest.approx(length_h, abs=0.01)
    assert provider.delete_fleet("demo", lambda *_: None) == []
