"""Measure the steps of a script and the network of a fleet, and predict the speedup on more workers."""

from __future__ import annotations

import math
import secrets
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from fleet.events import BootstrapProgress, ScalingEstimated, ScalingPrediction, Sink, SmokeTested
from fleet.fleets.agents import call_all, call_each
from fleet.jobs.scaling.model import (
    ASSUMED_LATENCY_S,
    FEWEST_STEPS,
    WORKERS,
    Measurements,
    Network,
    find_bottleneck,
    predict,
)
from fleet.remote.client import AgentClient
from fleet.remote.quoting import one_line
from provision.quantities import counted
from train.agent.injected.measurement import WARMUP
from train.agent.protocol.records import (
    Exit,
    MeasureNetwork,
    MeasureSteps,
    Member,
    NetworkMeasured,
    Prepared,
    StepsMeasured,
)

STEPS = 200
"""Largest number of steps that are measured."""

RUN_S = 600.0
"""Time limit of each run, in seconds."""

_USUAL_STEPS, _USUAL_S, _MOST_S = 30, 5.0, 20.0  # of several workers: as many steps as one worker makes in this time
_FASTER = 0.9  # share of a step alone below which a step together means that the workers share a batch
_GBIT = 1e9 / 8  # bytes
_LONGEST_S = 86400.0
_MOST_BYTES = 1 << 50

NOT_MODELLED = (
    "not modelled: communication that overlaps with computation, hosts of different speed, storage and input"
    " pipelines that the workers share"
)
_SHARED = (
    "the workers of a local fleet share the cores of this computer: the prediction does not hold for them, and the"
    " measured steps of several workers are slower than on separate hosts"
)
_ASSUMED = (
    "the bandwidth is assumed, and TensorFlow rarely reaches it: the interval covers half and twice the time of an"
    " all-reduce"
)


@dataclass(frozen=True)
class ScalingRun:
    """The script and the fleet of a measurement.

    Attributes:
        fleet: Name of the fleet.
        script: Name of the script.
        clients: The agents of the hosts.
        prepare: Prepares the script on a host.
        command: Returns the command on a prepared host.
        env: Environment variables.
        secrets: Secret environment variables.
        sink: Takes the events.
        bandwidth_gbit_s: Assumed bandwidth; None: the network is measured.
        is_local: The hosts share one computer.
    """

    fleet: str
    script: str
    clients: Sequence[AgentClient]
    prepare: Callable[[AgentClient], Prepared]
    command: Callable[[Prepared], list[str]]
    env: dict[str, str]
    secrets: dict[str, str]
    sink: Sink
    bandwidth_gbit_s: float | None
    is_local: bool

    def estimate(self) -> list[str]:
        """Measure, and emit the prediction; return the reasons why this is not possible, a sentence each.

        Raises:
            FleetError: a host refuses to prepare the script, or does not answer.
        """
        network = self._network()
        if isinstance(network, list):
            return network
        alone = self._run_alone()
        if isinstance(alone, str):
            return [alone]
        if self.bandwidth_gbit_s is not None:
            self.sink.emit(self._estimate(network, alone, None))
            return []
        together = self._run_together(count_steps(statistics.median(alone.step_s)))
        if isinstance(together, str):
            return [together]
        self.sink.emit(self._estimate(network, alone, together))
        return []

    # --- measurements -------------------------------------------------------------------------------------------

    def _network(self) -> Network | list[str]:
        if self.bandwidth_gbit_s is not None:
            return Network((self.bandwidth_gbit_s * _GBIT,), (ASSUMED_LATENCY_S,))
        prepared = call_all(self.clients, self.prepare, "prepare the script")
        request = MeasureNetwork(secrets.token_hex(32), _cluster(prepared))
        for client in self.clients:
            self.sink.emit(BootstrapProgress(client.host.name, "measuring the network"))
        measured = call_all(self.clients, lambda client: client.measure_network(request), "measure the network")
        problems = [
            f"{client.host.name}: the network cannot be measured: {one_line(item.error) or 'no samples'}"
            for client, item in zip(self.clients, measured, strict=True)
            if not _is_network(item)
        ]
        return problems or slowest(measured)

    def _run_alone(self) -> StepsMeasured | str:
        client = self.clients[0]
        measured = self._measure(client, self.prepare(client), [], STEPS)
        return measured if _is_enough(measured) else self._report_failure(client, measured, 1)

    def _run_together(self, steps: int) -> StepsMeasured | str:
        """Run the script on all hosts; return the steps of the slowest worker, or why there are none."""
        prepared = call_all(self.clients, self.prepare, "prepare the script")
        members = _cluster(prepared)
        by_host = {client.host.name: item for client, item in zip(self.clients, prepared, strict=True)}
        failed: list[tuple[AgentClient, StepsMeasured]] = []

        def measure(client: AgentClient) -> StepsMeasured:
            measured = self._measure(client, by_host[client.host.name], members, steps)
            if not _is_enough(measured):
                failed.append((client, measured))
                for other in self.clients:
                    if other is not client:
                        other.transport.sever()  # its task would wait for the one that failed
            return measured

        outcomes = call_each(self.clients, measure)
        if failed:
            return self._report_failure(*failed[0], len(self.clients))
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error
        values = [outcome.value for outcome in outcomes if outcome.value is not None]
        return max(values, key=lambda value: statistics.median(value.step_s))

    def _measure(
        self, client: AgentClient, prepared: Prepared, members: Sequence[Member], steps: int
    ) -> StepsMeasured:
        name = client.host.name
        request = MeasureSteps(
            command=self.command(prepared),
            env=self.env,
            secret_env=self.secrets,
            members=list(members) or _cluster([prepared]),
            steps=steps,
            seconds=RUN_S,
        )
        return client.measure_steps(request, lambda step: self.sink.emit(BootstrapProgress(name, *step)))

    def _report_failure(self, client: AgentClient, measured: StepsMeasured, workers: int) -> str:
        name = client.host.name
        where = "" if workers == 1 else f" with {workers} workers"
        message = describe_failure(measured) + where
        has_failed = measured.exit is not None and measured.exit != Exit(0)
        self.sink.emit(SmokeTested(name, False, message, tuple(measured.lines) if has_failed else ()))
        return f"{name}: {message}"

    # --- the prediction -----------------------------------------------------------------------------------------

    def _estimate(self, network: Network, alone: StepsMeasured, together: StepsMeasured | None) -> ScalingEstimated:
        workers = len(self.clients)
        measured = Measurements(
            step_s=tuple(alone.step_s),
            gradient_bytes=alone.gradient_bytes,
            network=network,
            together=tuple(together.step_s) if together else (),
            workers=workers if together else 1,
        )
        predictions = predict(measured, sorted({*WORKERS, workers}))
        step_s, together_s = statistics.median(alone.step_s), None
        bottleneck, explanation = find_bottleneck(predictions, step_s, statistics.median(alone.wait_s), alone.input_s)
        notes = [_SHARED] if self.is_local else []
        if together:
            together_s = statistics.median(together.step_s)
            if together_s < _FASTER * step_s:
                notes.append(
                    f"a step of {workers} workers is shorter than one of a single worker: the script probably divides"
                    " one batch between its workers, while the prediction is for the same batch per worker"
                )
        else:
            notes.append(_ASSUMED)
        low_s, high_s = _quartiles(alone.step_s)
        return ScalingEstimated(
            fleet=self.fleet,
            script=self.script,
            host=self.clients[0].host.name,
            steps=len(alone.step_s),
            step_s=step_s,
            step_low_s=low_s,
            step_high_s=high_s,
            gradient_bytes=alone.gradient_bytes,
            gradient_types=tuple(map(one_line, alone.dtypes)),
            bandwidth_gbit_s=statistics.median(network.bytes_s) / _GBIT,
            latency_s=statistics.median(network.latencies_s),
            network_measured=together is not None,
            together_workers=workers if together else None,
            together_step_s=together_s,
            predictions=tuple(
                ScalingPrediction(
                    workers=item.workers,
                    step_s=item.step_s,
                    speedup=item.speedup,
                    speedup_low=item.low,
                    speedup_high=item.high,
                    efficiency=item.speedup / item.workers,
                )
                for item in predictions
            ),
            bottleneck=bottleneck.value,
            explanation=explanation,
            notes=(*notes, NOT_MODELLED),
        )


def count_steps(step_s: float) -> int:
    """Return the number of steps of several workers to measure, given the step of one worker in seconds.

    Fast steps are measured for some seconds, so that a short disturbance does not change the median.
    """
    slow, fast = min(int(_MOST_S / step_s), _USUAL_STEPS), int(_USUAL_S / step_s)
    return min(max(slow, fast, FEWEST_STEPS), STEPS)


def slowest(measured: Sequence[NetworkMeasured]) -> Network:
    """Return the samples of the connection with the least bandwidth, and of the one with the highest latency."""
    bandwidth = min(measured, key=lambda item: statistics.median(item.bytes_s))
    latency = max(measured, key=lambda item: statistics.median(item.latencies_s))
    return Network(tuple(bandwidth.bytes_s), tuple(latency.latencies_s))


def describe_failure(measured: StepsMeasured) -> str:
    """Return why the steps of a run cannot be used, without its host."""
    seconds = f"{measured.seconds:.0f} s"
    if measured.in_loop:
        return (
            "the script makes several training steps in one call of a tf.function; measure it without"
            " steps_per_execution, and without a loop over batches in a tf.function"
        )
    if measured.exit is not None and measured.exit != Exit(0):
        return f"the script {describe_exit(measured.exit)} after {seconds}, before its steps were measured"
    ended = f"the script was still running after {seconds}" if measured.exit is None else "the script ended"
    if not measured.gradient_bytes:
        return f"{ended} and no training step was seen: a step computes gradients with TensorFlow, as Keras' fit does"
    needed = counted(FEWEST_STEPS + WARMUP, "training step")
    return f"{ended} before it had made {needed}, which the estimate needs"


def describe_exit(ended: Exit) -> str:
    """Return how a process ended."""
    return f"was killed by signal {ended.signal}" if ended.signal else f"exited with code {ended.code}"


def _cluster(prepared: Sequence[Prepared]) -> list[Member]:
    """Return the members with a task each: workers, in the order of the hosts."""
    return [item.member._replace(task=f"worker-{at}") for at, item in enumerate(prepared)]


def _is_network(measured: NetworkMeasured) -> bool:
    """Return whether there are samples, all of them valid: they come from a host."""
    is_valid = partial(_is_between, most=math.inf)
    samples = (measured.latencies_s, measured.bytes_s)
    return not measured.error and all(values and all(map(is_valid, values)) for values in samples)


def _is_enough(measured: StepsMeasured) -> bool:
    is_time = partial(_is_between, most=_LONGEST_S)
    return (
        not measured.in_loop
        and len(measured.step_s) >= FEWEST_STEPS
        and len(measured.wait_s) == len(measured.step_s)
        and all(map(is_time, measured.step_s))
        and all(value >= 0 for value in measured.wait_s)
        and 0 < measured.gradient_bytes <= _MOST_BYTES
    )


def _is_between(value: float, most: float) -> bool:
    return 0 < value < most


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high
