from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.gce.options import GceOptions
from provision.model import FleetSpec, Instance, InstanceState, Plan
from provision.names import index_of, instance_name
from provision.planner import conflicts, plan, resize


def spec(workers: int) -> FleetSpec:
    return FleetSpec("demo", "local", workers)


def instance(index: int, state: InstanceState = InstanceState.RUNNING, number: int = 0) -> Instance:
    return Instance(instance_name(index), "demo", f"{index}.{number}", state, "localhost")


@st.composite
def observations(draw: st.DrawFn) -> list[Instance]:
    """Generate instances of any index and state, some with the same name, in any order."""
    drawn = draw(st.lists(st.tuples(st.integers(0, 12), st.sampled_from(InstanceState)), max_size=14))
    return [instance(index, state, number) for number, (index, state) in enumerate(drawn)]


def apply(steps: Plan, observed: list[Instance]) -> list[Instance]:
    """Return the instances after the deletions and then the creations of a plan; check that names are unique."""
    left = {each.name: each for each in observed if each not in steps.delete}
    assert len(left) == len(observed) - len(steps.delete)
    for name in steps.create:
        existing = left.get(name, instance(index_of(name), InstanceState.STARTING, 99))
        left[name] = replace(existing, state=InstanceState.RUNNING)
    return list(left.values())


@given(st.integers(1, 10), observations())
def test_a_plan_reaches_what_is_wanted_and_a_second_one_has_nothing_to_do(
    workers: int, observed: list[Instance]
) -> None:
    after = apply(plan(spec(workers), observed), observed)
    assert sorted(index_of(each.name) for each in after) == list(range(workers))
    assert {each.state for each in after} == {InstanceState.RUNNING}
    again = plan(spec(workers), after)
    assert (again.create, again.delete) == ((), ())
    assert sorted(each.id for each in again.keep) == sorted(each.id for each in after)


@given(st.integers(1, 10), observations())
def test_each_instance_is_either_kept_or_deleted_and_running_ones_are_not_given_away(
    workers: int, observed: list[Instance]
) -> None:
    steps = plan(spec(workers), observed)
    started_again = [each for each in observed if each not in steps.delete and each not in steps.keep]
    at_rest = (InstanceState.STOPPED, InstanceState.STOPPING, InstanceState.RESTARTING)
    assert all(each.state in at_rest and each.name in steps.create for each in started_again)
    assert not set(steps.keep) & set(steps.delete)
    running = {each.name for each in observed if each.state is InstanceState.RUNNING}
    wanted = {instance_name(index) for index in range(workers)}
    assert {each.name for each in steps.keep} == running & wanted
    assert set(steps.create) == wanted - running


def test_the_order_is_that_of_the_index() -> None:
    steps = plan(spec(12), [instance(11), instance(10), instance(2)])
    assert [each.name for each in steps.keep] == ["worker-2", "worker-10", "worker-11"]
    assert list(steps.create) == [instance_name(index) for index in range(12) if index not in (2, 10, 11)]


@pytest.mark.parametrize("state", [InstanceState.STARTING, InstanceState.QUEUED])
def test_an_incomplete_instance_is_deleted_and_created_again(state: InstanceState) -> None:
    half = instance(0, state)
    assert plan(spec(1), [half]) == Plan(create=("worker-0",), delete=(half,))


@given(st.integers(1, 10), st.integers(1, 10), observations())
def test_a_resize_adds_and_releases_the_last_workers(before: int, workers: int, observed: list[Instance]) -> None:
    change = resize(before, spec(workers), plan(spec(workers), observed))
    assert change.added == tuple(instance_name(index) for index in range(before, workers))
    assert set(change.released) == {each for each in observed if index_of(each.name) >= workers}


def test_each_setting_that_differs_is_described() -> None:
    asked = FleetSpec("demo", "gce", 4, python="/opt/python")
    assert conflicts(asked, FleetSpec("demo", "local", 1)) == [
        "4 workers requested, the fleet has 1",
        "provider gce requested, the fleet was created by local",
        "Python interpreter /opt/python requested, the fleet has that of the host",
    ]
    assert conflicts(FleetSpec("demo", "local", 1), FleetSpec("demo", "local", 2)) == [
        "1 worker requested, the fleet has 2"
    ]


def test_each_cloud_setting_that_differs_is_described() -> None:
    has = FleetSpec("demo", "gce", 2, packages=("tensorflow",), options=GceOptions(gpu="nvidia-tesla-t4", gpus=1))
    asked = replace(
        has,
        packages=(),
        options=GceOptions(
            gpu="nvidia-l4", gpus=2, spot=True, external=False, max_duration_s=0, zones=("us-central1", "us-west1-a"),
            machine_type="g2-standard-24", disk_gb=200,
        ),
    )  # fmt: skip
    assert conflicts(asked, has) == [
        "packages none requested, the fleet has tensorflow",
        "zones us-central1, us-west1-a requested, the fleet has the default",
        "machine type g2-standard-24 requested, the fleet has the default",
        "GPU type nvidia-l4 requested, the fleet has nvidia-tesla-t4",
        "spot yes requested, the fleet has no",
        "maximum lifetime none requested, the fleet has 8h",
        "disk size in GB 200 requested, the fleet has 100",
        "Identity-Aware Proxy: yes requested, the fleet has no",
        "2 GPUs per instance requested, the fleet has 1",
    ]
    assert conflicts(has, has) == []


@pytest.mark.parametrize("field", [field.name for field in fields(GceOptions)])
def test_no_setting_of_a_cloud_is_overlooked(field: str) -> None:
    value = getattr(GceOptions(), field)
    changes: dict[type, Any] = {str: "x", int: 5, float: 5.0, bool: not value, tuple: ("x",)}
    has = FleetSpec("demo", "gce", 2, options=GceOptions(gpu="a"))
    asked = replace(has, options=replace(GceOptions(gpu="a"), **{field: changes[type(value)]}))
    # Firewall rules, root's scripts, and limits of new instances can change while the instances run.
    changeable = {"ssh_from", "firewall", "startup_script", "setup", "max_cost_usd"}
    changeable |= {"max_price_usd_h", "anywhere", "wait_s", "is_temporary"}
    assert len(conflicts(asked, has)) == (0 if field in changeable else 1)
