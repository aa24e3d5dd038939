"""The requests MeasureNetwork and MeasureSteps: what a prediction of the speedup on more hosts depends on."""

from __future__ import annotations

import math
import os
import socket
import statistics
import time
from collections import deque
from typing import Deque, Dict, List, NamedTuple, Optional, Tuple

from train.agent.host.processes import end_leftovers
from train.agent.host.runner import OverdueError, Steps, run
from train.agent.host.startup import Hook
from train.agent.injected.measurement import ALONE, TOGETHER, VARIABLE, WARMUP
from train.agent.peers import network
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import (
    Exit,
    MeasureNetwork,
    MeasureSteps,
    NetworkMeasured,
    Refusal,
    StepsMeasured,
)
from train.agent.protocol.session import Credentials, LinkError
from train.agent.requests.preparation.smoke_test import DEADLINE_S, LINES, LONGEST_LINE, LONGEST_S, yield_environment
from train.agent.requests.prepare import Reservation

MOST_STEPS = 1000
_MOST_BYTES = 4 << 20  # of the file of observations
_FILE = "measurement"


def measure_network(reservation: Reservation, request: MeasureNetwork) -> NetworkMeasured:
    """Measure the connections to the next host, and from the one before.

    Raises:
        RefusedError: nothing was prepared, or the request is invalid.
    """
    prepared, listener = reservation.request, reservation.listener
    slots = [member.slot for member in request.members]
    if listener is None or len(slots) < 2 or prepared.slot not in slots:
        raise RefusedError(Refusal.REQUEST, f"{prepared.slot} is not a member of a ring")
    try:
        credentials = Credentials(prepared.job, bytes.fromhex(request.secret), prepared.slot)
        samples = network.measure(listener, credentials, request.members)
    except (OSError, LinkError, ValueError) as error:
        reason = "timed out" if isinstance(error, socket.timeout) else str(error)
        return NetworkMeasured([], [], reason)
    return NetworkMeasured(samples.latencies_s, samples.bytes_s)


def measure_steps(channel: Channel, reservation: Reservation, request: MeasureSteps) -> StepsMeasured:
    """Run the script until it has made the steps; afterwards no process is left and the reservation can be released.

    Raises:
        RefusedError: nothing was prepared that could be run, or the interpreter ignores the hook.
        ClientGoneError: the client disconnected, and the task was ended.
        OSError: it cannot be started.
    """
    proof = reservation.proof()
    if proof is None:
        reason = f"{reservation.interpreter.path} does not run sitecustomize, by which steps are measured"
        raise RefusedError(Refusal.PYTHON, reason)
    if not 0 < request.steps <= MOST_STEPS:
        raise RefusedError(Refusal.REQUEST, f"{request.steps} steps cannot be measured")
    paths = reservation.paths
    file = os.path.join(paths.directory, _FILE)
    command, env = yield_environment(reservation, request, request.members)
    kind = ALONE if len(request.members) == 1 else TOGETHER
    env[VARIABLE] = f"{kind}:{request.steps}:{file}"
    watch = _Watch(Steps(channel), file, request.steps, min(request.seconds, LONGEST_S))
    ended: Optional[Exit] = None
    try:
        ended = run(
            command,
            env,
            paths.source,
            watch.reports,
            deadline_s=DEADLINE_S,
            on_lines=watch.on_lines,
            hook=Hook(proof.directory, holds_task=False, for_children=True),
        )
    except OverdueError:
        pass
    finally:
        end_leftovers(paths)
    seen = observe(_read(file))
    return StepsMeasured(
        seconds=round(watch.seconds, 1),
        exit=None if seen.is_done else ended,
        lines=list(watch.lines),
        step_s=seen.step_s[: request.steps],
        wait_s=seen.wait_s[: request.steps],
        gradient_bytes=sum(size for size, _ in seen.gradients),
        dtypes=sorted({dtype for _, dtype in seen.gradients}),
        input_s=_median(seen.input_s[len(seen.input_s) // 2 :]),  # the first batches come from a buffer
        in_loop=seen.in_loop,
    )


class _Watch:
    """Watch a script until its time limit, and report its steps."""

    def __init__(self, reports: Steps, file: str, steps: int, limit_s: float) -> None:
        self.reports = reports
        self.lines: Deque[str] = deque(maxlen=LINES)
        self._file = file
        self._steps = steps
        self._limit_s = limit_s
        self._began = time.monotonic()
        reports.report_step("starting the script to measure its steps")

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def on_lines(self, lines: List[str]) -> bool:
        """Keep the last lines of output; return True if there were any.

        Raises:
            OverdueError: its time is over.
        """
        self.lines.extend(line.rstrip()[:LONGEST_LINE] for line in lines if line.strip())
        if self.seconds > self._limit_s:
            raise OverdueError
        count = min(_read(self._file).count("step "), self._steps)
        if count:
            self.reports.report_step("measuring steps", "", count, self._steps)
        else:
            self.reports.report_step("starting the script to measure its steps", f"{self.seconds:.0f} s")
        return bool(lines)


class Observations(NamedTuple):
    """The file of observations, read."""

    step_s: List[float]
    wait_s: List[float]
    gradients: List[Tuple[int, str]]  # bytes and type of each variable's
    input_s: List[float]
    in_loop: bool
    is_done: bool


def observe(text: str) -> Observations:
    """Return the observations of `train.agent.injected.measurement`; lines that are not complete are left out."""
    lines: Dict[str, List[List[str]]] = {}
    for line in text.split("\n")[:-1]:
        name, *words = line.split()[:3] or [""]
        lines.setdefault(name, []).append(words)
    times = [(_number(words[0]), _number(words[1])) for words in lines.get("step", []) if len(words) == 2]
    pairs = list(zip(times, times[1:]))[WARMUP - 1 :]  # noqa: B905, RUF007 - Python 3.10
    return Observations(
        step_s=[round(later[1] - earlier[1], 6) for earlier, later in pairs],
        wait_s=[round(max(later[0] - earlier[1], 0.0), 6) for earlier, later in pairs],
        gradients=[(int(_number(words[0])), words[1]) for words in lines.get("gradient", []) if len(words) == 2],
        input_s=[_number(words[0]) for words in lines.get("input", []) if words],
        in_loop="loop" in lines,
        is_done="done" in lines,
    )


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        return 0.0
    return value if math.isfinite(value) and 0 <= value < 1e15 else 0.0


def _median(values: List[float]) -> Optional[float]:
    return statistics.median(values) if values else None


def _read(file: str) -> str:
    try:
        with open(file, "rb") as stream:
            return stream.read(_MOST_BYTES).decode("ascii", "replace")
    except OSError:
        return ""
