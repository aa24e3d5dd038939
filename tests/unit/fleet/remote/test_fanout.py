from __future__ import annotations

import _thread
import resource
import signal
import threading
from typing import Any, NoReturn

import pytest

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


def test_every_host_finishes_though_some_fail() -> None:
    def action(target: Host) -> str:
        if target.name == "worker-2":
            raise UnreachableError(f"{target.name} is gone")
        if target.name == "worker-3":
            raise ZeroDivisionError("by zero")
        return target.address

    outcomes = fan_out(HOSTS, action)
    assert [outcome.host for outcome in outcomes] == HOSTS
    assert [outcome.value or type(outcome.error) for outcome in outcomes] == [
        HOSTS[0].address, HOSTS[1].address, UnreachableError, InternalError, *(host.address for host in HOSTS[4:])
    ]  # fmt: skip
    with pytest.raises(InternalError, match=r"worker-3 \(10\.0\.0\.3\): internal error: ZeroDivision") as raised:
        raise_failures(outcomes, "go")
    assert isinstance(raised.value.__cause__, InternalError)
    assert isinstance(raised.value.__cause__.__cause__, ZeroDivisionError)


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


def same(index: int, text: str, **texts: Any) -> NotReadyError:
    """Return an error that names its host in its message and in its hint."""
    return RefusedError(
        f"{where(host(index))}: {text}", hint=f"{host(index).name} suggests: free some space", **texts
    )


@pytest.mark.parametrize(
    ("errors", "message", "cause", "steps"),
    [
        (
            [same(at, "no space left", cause="disk", next_steps=[Shell("free some")]) for at in range(8)],
            "cannot prepare: worker-[0-7]: no space left",
            "disk",
            "free some",
        ),
        (
            [
                NotReadyError("worker-0: no Python", next_steps=[Shell("install it")]),
                UnreachableError("worker-1 does not answer", cause="timed out", next_steps=[Step("status")]),
                NotReadyError("worker-2: no Python", next_steps=[Shell("install it")]),
                None,
            ],
            "cannot prepare: worker-[0,2]: no Python; worker-1 does not answer",
            "timed out",
            "fleet status",
        ),
        ([CapacityError("nothing left")] * 2, "cannot prepare: worker-[0-1]: nothing left", "", ""),
    ],
)
def test_equal_reasons_are_folded_and_the_lowest_exit_code_wins(
    errors: list[FleetError | None], message: str, cause: str, steps: str
) -> None:
    with pytest.raises(FleetError) as raised:
        raise_failures([Outcome(host(at), value="fine", error=error) for at, error in enumerate(errors)], "prepare")
    assert (raised.value.message, raised.value.cause, next_lines(raised.value)) == (message, cause, steps)
    assert raised.value.exit_code == min(error.exit_code for error in errors if error)


def test_the_limit_of_open_files_is_raised_as_far_as_possible(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    for limit in ((256, 1000), (64, 64), (256, 1 << 20)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, current=limit: current)
        assert fan_out([host(1)], lambda each: each.name)[0].value == "worker-1"
    assert limits == [(1000, 1000), (4096, 1 << 20)]
