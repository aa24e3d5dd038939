"""Predict the time of a training step on more workers, with an interval. Pure."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

WORKERS = (1, 2, 4, 8, 16)
"""Numbers of workers that are always predicted."""

FEWEST_STEPS = 5
"""Smallest number of measured steps from which a prediction is made."""

ASSUMED_LATENCY_S = 1e-4
"""Latency that belongs to an assumed bandwidth: of hosts in one data centre."""

_RESAMPLES = 200
_TAIL = 0.025  # on each side of the interval
_UNCALIBRATED = (0.5, 2.0)  # factors of the communication, if no step of several workers was measured
_WAITS = 0.5  # share of a step from which waiting between the steps is the bottleneck
_EXCESS = "communication and waits for other workers"
_PRODUCES = 0.8  # share of a step from which the time to produce a batch is the bottleneck


class Bottleneck(Enum):
    """The part of a step that limits the speed."""

    COMPUTE = "compute"
    NETWORK = "network"
    INPUT = "input"


@dataclass(frozen=True)
class Network:
    """The connections between hosts.

    Attributes:
        bytes_s: Samples of the bandwidth of the slowest connection, in bytes per second.
        latencies_s: Samples of the latency of the slowest connection, one way, in seconds.
    """

    bytes_s: tuple[float, ...]
    latencies_s: tuple[float, ...]


@dataclass(frozen=True)
class Measurements:
    """The measured quantities.

    Attributes:
        step_s: Steps of one worker alone, in seconds each.
        gradient_bytes: Size of all gradients.
        network: The connections.
        together: Steps of several workers, in seconds each; empty: not measured.
        workers: Number of these workers.
    """

    step_s: tuple[float, ...]
    gradient_bytes: int
    network: Network
    together: tuple[float, ...] = ()
    workers: int = 1


@dataclass(frozen=True)
class Prediction:
    """The prediction for one number of workers.

    Attributes:
        workers: Number of workers.
        step_s: Time of a step in seconds.
        speedup: Examples per second, as a multiple of those of one worker.
        low: Lower end of the interval of the speedup.
        high: Upper end of the interval.
    """

    workers: int
    step_s: float
    speedup: float
    low: float
    high: float


def communication_s(workers: int, size_bytes: float, bytes_s: float, latency_s: float) -> float:
    """Return the time of a ring all-reduce in seconds, without the additions.

    Each worker sends and receives 2 (N - 1) messages of size / N, one after the other.

    Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", Journal
    of Parallel and Distributed Computing 69(2), 2009, https://doi.org/10.1016/j.jpdc.2008.09.002.
    """
    return 2 * (workers - 1) / workers * size_bytes / bytes_s + 2 * (workers - 1) * latency_s


@dataclass(frozen=True)
class StepModel:
    """The time of a step: ``compute + factor * communication(N) + constant``, at least ``compute``.

    Attributes:
        compute_s: Step of one worker.
        size_bytes: Size of the gradients.
        bytes_s: Bandwidth.
        latency_s: Latency.
        factor: Multiple of the time of an all-reduce that a step takes longer.
        constant_s: Time that is added for any number of workers above one.
    """

    compute_s: float
    size_bytes: float
    bytes_s: float
    latency_s: float
    factor: float = 1.0
    constant_s: float = 0.0

    def step_s(self, workers: int) -> float:
        """Return the time of a step in seconds."""
        if workers == 1:
            return self.compute_s
        reduced_s = communication_s(workers, self.size_bytes, self.bytes_s, self.latency_s)
        return self.compute_s + max(self.factor * reduced_s + self.constant_s, 0.0)

    def speedup(self, workers: int) -> float:
        """Return the examples per second as a multiple of those of one worker, with the same batch per worker."""
        return workers * self.compute_s / self.step_s(workers)


def predict(measured: Measurements, workers: Sequence[int] = WORKERS) -> tuple[Prediction, ...]:
    """Return the prediction for each number of workers.

    A step of several workers takes longer by more than the all-reduce: TensorFlow does not reach the bandwidth of the
    network, and waits for the slowest worker. If such a step was measured, the predicted times assume that this
    excess is proportional to the all-reduce. The interval is the widest of two assumptions, this one and an excess
    that is the same for all numbers of workers, each with 95% of 200 resamples of the measurements (bootstrap of
    medians, percentiles). Without such a step, it covers half and twice the time of the all-reduce. Effects that
    were not measured are not part of the interval.
    """
    point = _models(measured, statistics.median)[0]
    generator = random.Random(0)  # noqa: S311 - repeatable, not secret
    samples = [_models(measured, lambda values: _resampled(values, generator)) for _ in range(_RESAMPLES)]
    result = []
    for count in workers:
        speedup = point.speedup(count)
        variants = zip(*([model.speedup(count) for model in models] for models in samples), strict=True)
        ends = [_interval(variant) for variant in variants]
        low, high = min(speedup, *(end[0] for end in ends)), max(speedup, *(end[1] for end in ends))
        result.append(Prediction(count, point.step_s(count), speedup, low, high))
    return tuple(result)


def _models(measured: Measurements, estimate: Callable[[Sequence[float]], float]) -> tuple[StepModel, ...]:
    """Return the model that is predicted first, and its variants; `estimate` makes one value of samples."""
    compute_s = estimate(measured.step_s)
    bytes_s, latency_s = estimate(measured.network.bytes_s), estimate(measured.network.latencies_s)

    def model(factor: float, constant_s: float = 0.0) -> StepModel:
        return StepModel(compute_s, measured.gradient_bytes, bytes_s, latency_s, factor, constant_s)

    if not measured.together:
        return (model(1.0), *map(model, _UNCALIBRATED))
    excess_s = max(estimate(measured.together) - compute_s, 0.0)
    reduced_s = communication_s(measured.workers, measured.gradient_bytes, bytes_s, latency_s)
    return model(excess_s / reduced_s if reduced_s > 0 else 1.0), model(1.0, excess_s - reduced_s)


def _resampled(values: Sequence[float], generator: random.Random) -> float:
    return statistics.median(generator.choices(values, k=len(values)))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(values)
    cut = math.floor(len(ordered) * _TAIL)
    return ordered[cut], ordered[-1 - cut]


def find_bottleneck(
    predictions: Sequence[Prediction], step_s: float, wait_s: float, input_s: float | None
) -> tuple[Bottleneck, str]:
    """Return what limits the speed, and one sentence about it.

    Args:
        predictions: The predictions, by increasing number of workers.
        step_s: Median step of one worker.
        wait_s: Median time between two steps of one worker.
        input_s: Median time in which the data set produces a batch; None: unknown.
    """
    if wait_s >= _WAITS * step_s:
        return (
            Bottleneck.INPUT,
            f"the script spends {wait_s / step_s:.0%} of its time between steps, for input",
        )
    if input_s is not None and input_s >= _PRODUCES * step_s:
        return Bottleneck.INPUT, f"the data set takes {input_s / step_s:.0%} of the time of a step to produce a batch"
    for prediction in predictions:
        share = 1 - step_s / prediction.step_s
        if share > 0.5:
            return Bottleneck.NETWORK, (
                f"from {prediction.workers} workers on, {_EXCESS} take more than half of a step"
            )
    last = predictions[-1]
    share = max(1 - step_s / last.step_s, 0.0)
    return Bottleneck.COMPUTE, f"with {last.workers} workers, {_EXCESS} take {share:.0%} of a step"
