from __future__ import annotations

import _thread
import resource
import signal
import threading
from typing import NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import CapacityError, FleetError, InternalError, NotReadyError, UnreachableError, fold
from fleet.remote.client import RefusedError
from fleet.remote.fanout import Outcome, fan_out, raise_failures, where
from fleet.steps import Shell, Step
from provision.model import Host
from tests.next_steps import next_lines


def host(index: int, port: int = 22) -> Host:
    name = f"worker-{index}"
    return Host(name, f"10.0.0.{index}", port, "me", "ssh-ed25519 AAAA", name, f"10.0.0.{index}")


HOSTS = [host(index) for index in range(10)]


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        ([], ""),
        (["worker-0"], "worker-0"),
        (["worker-3", "worker-1", "worker-0", "worker-2", "worker-7"], "worker-[0-3,7]"),
        (["worker-2", "worker-4"], "worker-[2,4]"),
        (["chief-0", "worker-0", "worker-1", "ps-0"], "chief-0, worker-[0-1], ps-0"),
        (["worker-9", "worker-10"], "worker-[9-10]"),
        (["gpu-a", "worker-1", "gpu-a"], "worker-1, gpu-a"),
        (["worker-01", "worker-1"], "worker-01, worker-1"),
    ],
)
def test_fold(names: list[str], folded: str) -> None:
    assert fold(names) == folded


@given(st.sets(st.integers(0, 50), min_size=1))
def test_fold_names_exactly_those_it_was_given(numbers: set[int]) -> None:
    text = fold(f"worker-{number}" for number in numbers).removeprefix("worker-").strip("[]")
    named: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        named |= set(range(int(first), int(last or first) + 1))
    assert named == numbers


def test_every_host_finishes_though_some_fail() -> None:
    def action(target: Host) -> str:
        if target.name in ("worker-2", "worker-5"):
            raise UnreachableError(f"{target.name} is gone")
        return target.address

    outcomes = fan_out(HOSTS, action)
    assert [outcome.host for outcome in outcomes] == HOSTS
    assert [outcome.host.name for outcome in outcomes if outcome.error is not None] == ["worker-2", "worker-5"]
    assert [outcome.value for outcome in outcomes if outcome.error is None] == [
        target.address for target in HOSTS if target.name not in ("worker-2", "worker-5")
    ]


def test_an_unknown_exception_is_the_error_of_its_host_and_hides_no_other() -> None:
    def action(target: Host) -> str:
        if target.name == "worker-3":
            raise ZeroDivisionError("by zero")
        return target.address

    outcomes = fan_out(HOSTS, action)
    assert [outcome.value for outcome in outcomes if outcome.error is None] == [
        target.address for target in HOSTS if target.name != "worker-3"
    ]
    error = outcomes[3].error
    assert isinstance(error, InternalError)
    assert isinstance(error.__cause__, ZeroDivisionError)
    with pytest.raises(InternalError, match=r"cannot go: worker-3 \(10\.0\.0\.3\): internal error: ZeroDivision"):
        raise_failures(outcomes, "go")


def test_an_interrupt_aborts_what_runs() -> None:
    begun, aborted = threading.Barrier(len(HOSTS), _thread.interrupt_main), threading.Event()

    def action(_: Host) -> NoReturn:
        begun.wait(30)
        assert aborted.wait(30)
        raise UnreachableError("closed")

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # earlier tests may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            fan_out(HOSTS, action, abort=aborted.set)
    finally:
        signal.signal(signal.SIGINT, before)
    for thread in threading.enumerate():
        if thread.name.startswith("fan-out"):  # on a busy machine they may end a moment later
            thread.join(30)
            assert not thread.is_alive()


def failed(index: int, error: FleetError) -> Outcome[str]:
    return Outcome(host(index), error=error)


def test_identical_reasons_are_folded() -> None:
    outcomes = [
        failed(
            index,
            NotReadyError(f"{where(host(index))}: no space left", cause="disk", next_steps=[Shell("free some")]),
        )
        for index in range(8)
    ]
    with pytest.raises(NotReadyError, match=r"^cannot prepare: worker-\[0-7\]: no space left$") as raised:
        raise_failures(outcomes, "prepare")
    assert (raised.value.cause, next_lines(raised.value)) == ("disk", "free some")


def test_reasons_are_folded_though_each_host_signs_its_hint() -> None:
    def refused(number: int) -> Outcome[str]:
        name = host(number).name
        error = RefusedError(f"{where(host(number))}: no space left", hint=f"{name} suggests: free some space")
        return failed(number, error)

    with pytest.raises(RefusedError) as raised:
        raise_failures([refused(0), refused(1)], "prepare")
    assert raised.value.message == "cannot prepare: worker-[0-1]: no space left"
    assert raised.value.hint == "worker-0 suggests: free some space"


def test_different_reasons_are_listed_and_the_lowest_exit_code_wins() -> None:
    outcomes = [
        failed(0, NotReadyError("worker-0: no Python", next_steps=[Shell("install it")])),
        failed(1, UnreachableError("worker-1 does not answer", cause="timed out", next_steps=[Step("status")])),
        failed(2, NotReadyError("worker-2: no Python", next_steps=[Shell("install it")])),
        Outcome(host(3), value="fine"),
    ]
    with pytest.raises(UnreachableError) as raised:
        raise_failures(outcomes, "prepare")
    assert raised.value.message == "cannot prepare: worker-[0,2]: no Python; worker-1 does not answer"
    assert (raised.value.cause, next_lines(raised.value)) == ("timed out", "fleet status")


def test_a_reason_that_names_no_host_gets_one() -> None:
    with pytest.raises(CapacityError, match=r"^cannot go: worker-\[1-2\]: nothing left$"):
        raise_failures([failed(1, CapacityError("nothing left")), failed(2, CapacityError("nothing left"))], "go")


def test_the_limit_of_open_files_is_raised_as_far_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    for limit in ((256, 1000), (64, 64), (256, 1 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, current=limit: current)
        assert fan_out([host(1)], lambda each: each.name)[0].value == "worker-1"
    assert limits == [(1000, 1000), (4096, 1 << 20)]
