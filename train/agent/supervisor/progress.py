r"""Finds a training's progress in what it prints: Keras' bars and lines, and what custom loops print.

Formats, as printed if stdout is not a terminal (``\b`` and colours are taken out first):

    Epoch 1/2                                                                  Keras, before each epoch
    1/6 [====>.........................] - ETA: 7s - loss: 1.1554              Keras 2, after a carriage return
    1/6 ━━━━━━━━━━━━━━━━━━━━ 5s 1s/step - accuracy: 0.3125 - loss: 1.5019      Keras 3, after a carriage return
    6/6 - 3s - loss: 1.1485 - accuracy: 0.3333 - 3s/epoch - 451ms/step         Keras, verbose=2
    Epoch: 0, accuracy: 0.83, train_loss: 0.5                                  a custom loop
    step 120 loss 0.31                                                         a custom loop

Bytes go in, readings come out; memory is bounded whatever comes. Only the queue reads a clock, for the time that
parsing takes.
"""

from __future__ import annotations

import re
import time
from collections import deque
from typing import Deque, Dict, List, Match, Optional, Tuple

from train.agent.protocol.records import Progress

SLICE_S = 0.001  # of parsing, before the loop serves something else
CPU_FRACTION = 0.1  # of the time may be spent on parsing
_MOST_WAITING = 1 << 20  # bytes
_LAST_S = 1.0
_PIECE = 1 << 11  # bytes
_LONGEST_LINE = 1 << 12  # bytes; of a longer one nothing is read
_MOST_METRICS = 24
_PACE_WINDOW_S = 20.0
_PACE_LEAST_S = 0.5

_NUMBER = rb"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|nan|inf)"
_COLOUR = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_SPLIT = re.compile(rb"([\r\n]+)")
_WORDS = (b"epoch", b"step", b"iter", b"batch")
_HEADER = re.compile(rb"Epoch (\d+)/(\d+)\s*$")
_BAR = re.compile(rb"\s*(\d+)/(\d+|Unknown)\s+(?:\[|\xe2\x94|-\s|\d+(?:\.\d+)?m?s\b)")
_BAR_METRIC = re.compile(rb" - ([A-Za-z_][\w./()@ -]{0,60}?): (" + _NUMBER + rb")(?=\s|$)")
_COUNTER = re.compile(
    rb"\b(epoch|step|iteration|iter|batch)s?[ \t]*[:=#]?[ \t]*[\[(]?[ \t]*(\d+)(?:[ \t]*(?:/|of)[ \t]*(\d+))?",
    re.IGNORECASE,
)
_PAIR = re.compile(rb"([A-Za-z_][\w./@-]{0,60})[ \t]*([:=]?)[ \t]*(" + _NUMBER + rb")(?![\w/%.]|\d)")
_FIGURE = re.compile(rb"loss|acc|error|mae|mse|auc|perplexity|reward|precision|recall|f1", re.IGNORECASE)
_COUNTERS = (b"epoch", b"epochs", b"step", b"steps", b"iteration", b"iter", b"batch", b"of")
_WITHIN_EPOCH = b" - ETA: "  # of Keras 2


class ProgressParser:
    """Parse the output of one task.

    Args:
        slot: The slot, for the records.
        task: The task, for the records.
        attempt: Number of the attempt, for what it reports.
        workers: Number of workers. Within an epoch Keras 2 prints sums over all of them, so that a loss is as many
            times too large (seen on TensorFlow 2.15 and 2.21 with tf-keras); of several workers these are left out.
    """

    def __init__(self, slot: str, task: str, attempt: int, workers: int = 1) -> None:
        self._sums = workers > 1
        self._rest = b""
        self._overlong = False
        self._in_epoch = False
        self._kept: List[Progress] = []
        self._pace = Pace()
        self._at = 0.0
        self._now = Progress(slot, task, attempt, 0.0)
        self._last_epoch = -1
        self._epochs = EpochPace()
        self.latest: Optional[Progress] = None

    def feed(self, data: bytes, at: float) -> List[Progress]:
        """Parse output that was read at `at`, in seconds since the epoch.

        Returns the ends of epochs in it; what is known at the end of it is in `latest`.
        """
        self._at, self._kept = at, []
        parts = _SPLIT.split(self._rest + data)
        self._rest = parts.pop()
        for line, end in zip(parts[::2], parts[1::2]):
            if not self._overlong and len(line) <= _LONGEST_LINE:
                self._read_line(line, newline=b"\n" in end)
            self._overlong = False
        if self._overlong or len(self._rest) > _LONGEST_LINE:
            self.skip()
        return self._kept

    def skip(self) -> None:
        """Ignore the rest of the current line, because output is missing before the next call of `feed`."""
        self._rest, self._overlong = b"", True

    def _read_line(self, line: bytes, *, newline: bool) -> None:
        lower = line.lower()
        has_counter = any(word in lower for word in _WORDS)
        if not has_counter and b"/" not in line:
            return
        line = _COLOUR.sub(b"", line.replace(b"\b", b""))
        bar, header = _BAR.match(line), _HEADER.match(line)
        if bar:
            self._read_bar(bar, ends_epoch=newline and bar.group(1) == bar.group(2))
        elif header:
            self._begin_epoch(int(header.group(1)), int(header.group(2)))
        elif has_counter:
            self._read_loose(line)

    def _begin_epoch(self, epoch: int, epochs: int) -> None:
        self._in_epoch = True
        self._epochs.begin(epoch, self._at)
        steps = self._now.steps
        self._report(self._now._replace(epoch=epoch, epochs=epochs, step=0 if steps > 0 else -1))

    def _read_bar(self, bar: Match[bytes], *, ends_epoch: bool) -> None:
        if self._now.epochs > 0 and not self._in_epoch:
            return  # of evaluate() or predict(), after the training
        line, step = bar.string, int(bar.group(1))
        steps = -1 if bar.group(2) == b"Unknown" else int(bar.group(2))
        metrics = self._now.metrics if self._sums and _WITHIN_EPOCH in line else _bar_metrics(line)
        self._report(self._now._replace(step=step, steps=steps, metrics=metrics), ends_epoch=ends_epoch)
        self._in_epoch = self._in_epoch and not ends_epoch

    def _read_loose(self, line: bytes) -> None:
        counts: Dict[bytes, Tuple[int, int]] = {}
        for match in _COUNTER.finditer(line):
            name = b"epoch" if match.group(1).lower() == b"epoch" else b"step"
            counts.setdefault(name, (int(match.group(2)), int(match.group(3) or 0)))
        first, metrics, now = _COUNTER.search(line), _loose_metrics(line), self._now
        is_counter_first = first is not None and not line[: first.start()].strip(b" \t[(<>=#*-")
        if not counts or not (is_counter_first or any(_FIGURE.search(name.encode()) for name in metrics)):
            return
        epoch, epochs = counts.get(b"epoch", (now.epoch, 0))
        step, steps = counts.get(b"step", (now.step, 0))
        now = now._replace(epoch=epoch, epochs=epochs or now.epochs, step=step, steps=steps or now.steps)
        ends_epoch = bool(metrics) and b"step" not in counts and now.epoch != self._last_epoch
        self._report(now._replace(metrics=metrics or now.metrics), ends_epoch=ends_epoch)

    def _report(self, now: Progress, *, ends_epoch: bool = False) -> None:
        pace = self._pace.feed(now, self._at)
        self._epochs.feed(now, self._at, ends_epoch=ends_epoch)
        done, epoch_s = self._epochs.done, self._epochs.epoch_s
        first = now.epoch if now.first_epoch is None and now.epoch >= 0 else now.first_epoch
        self._now = now._replace(at=self._at, steps_per_s=pace, epochs_done=done, epoch_s=epoch_s, first_epoch=first)
        self.latest = self._now
        if ends_epoch:
            self._last_epoch = now.epoch
            self._kept.append(self._now)


def _bar_metrics(line: bytes) -> Dict[str, float]:
    pairs = _BAR_METRIC.findall(line)[:_MOST_METRICS]
    return {name.decode("ascii", "replace"): float(value) for name, value in pairs}


def _loose_metrics(line: bytes) -> Dict[str, float]:
    metrics: Dict[str, float] = {}
    for name, separator, value in _PAIR.findall(line):
        is_metric = bool(_FIGURE.search(name))
        if name.lower() in _COUNTERS or not (separator or is_metric) or len(metrics) >= _MOST_METRICS:
            continue
        metrics[name.decode("ascii", "replace")] = float(value)
    return metrics


class EpochPace:
    """Seconds per epoch over the last five epochs, of output that shows no steps within an epoch."""

    def __init__(self) -> None:
        self._ends: Deque[Tuple[int, float]] = deque(maxlen=6)  # finished epochs, time
        self._begun: Optional[Tuple[int, float]] = None
        self.shows_steps = False
        self._first = -1  # number of the first epoch
        self.done: Optional[int] = None

    def begin(self, epoch: int, at: float) -> None:
        """Record that an epoch, counted from 1, begins."""
        if self._begun is None and not self._ends:
            self._begun = (epoch - 1, at)

    def feed(self, now: Progress, at: float, *, ends_epoch: bool) -> None:
        """Take the next reading."""
        if now.step > 0 and now.step != now.steps:
            self.shows_steps = True
        if not ends_epoch or now.epoch < 0:
            return
        self._first = now.epoch if self._first < 0 else self._first
        self.done = now.epoch + (self._first == 0)
        if self._ends and self.done <= self._ends[-1][0]:  # a further training
            self._ends.clear()
        self._ends.append((self.done, at))

    @property
    def epoch_s(self) -> Optional[float]:
        """Return the mean time of an epoch; None: unknown, or steps show the progress better."""
        if self.shows_steps or not self._ends:
            return None
        done, at = self._ends[-1]
        # The first epoch takes longer, because functions are traced.
        before, since = self._ends[0] if len(self._ends) > 1 else self._begun or (done, at)
        return round((at - since) / (done - before), 3) if done > before else None


class Pace:
    """Steps per second over the last 20 seconds, across epochs."""

    def __init__(self) -> None:
        self._points: Deque[Tuple[float, int]] = deque(maxlen=512)
        self._done = 0
        self._epoch = -1
        self._step = -1
        self._value = -1.0

    def feed(self, now: Progress, at: float) -> float:
        """Return the pace after the next reading; -1 if unknown."""
        if now.step < 0:
            return self._value
        same = now.epoch == self._epoch and now.step >= self._step
        self._done += now.step - self._step if same else now.step
        self._epoch, self._step = now.epoch, now.step
        if not self._points or at > self._points[-1][0]:
            self._points.append((at, self._done))
        while len(self._points) > 2 and at - self._points[0][0] > _PACE_WINDOW_S:
            self._points.popleft()
        seconds = at - self._points[0][0]
        if seconds >= _PACE_LEAST_S:
            self._value = round((self._done - self._points[0][1]) / seconds, 3)
        return self._value


class ProgressQueue:
    """Pass output to a parser in slices, so that parsing never delays logs, heartbeats, and messages.

    A task can write faster than its output can be parsed. Then the oldest waiting output is skipped: the newest
    shows the current progress.

    Args:
        parser: Reads the output.
    """

    def __init__(self, parser: ProgressParser) -> None:
        self.parser = parser
        self.size = 0  # bytes that wait
        self._waiting: Deque[Tuple[bytes, float]] = deque()

    def put(self, data: bytes, at: float) -> None:
        """Add output that was read at `at`, in seconds since the epoch."""
        self._waiting.extend((data[start : start + _PIECE], at) for start in range(0, len(data), _PIECE))
        self.size += len(data)
        self._keep_newest(_MOST_WAITING)

    def parse(self, seconds: float = SLICE_S) -> List[Progress]:
        """Parse the queue for about `seconds`; return the ends of epochs."""
        epoch_ends: List[Progress] = []
        until = time.monotonic() + seconds
        while self._waiting:
            epoch_ends += self.parser.feed(*self._take())
            if time.monotonic() >= until:
                break
        return epoch_ends

    def finish(self) -> List[Progress]:
        """Parse the rest of the queue, or its end if that takes too long; return the ends of epochs."""
        epoch_ends = self.parse(_LAST_S)
        self._keep_newest(_PIECE)
        return epoch_ends + self.parse(_LAST_S)

    def _keep_newest(self, most_bytes: int) -> None:
        if self.size > most_bytes:
            self.parser.skip()
        while self.size > most_bytes:
            self._take()

    def _take(self) -> Tuple[bytes, float]:
        piece = self._waiting.popleft()
        self.size -= len(piece[0])
        return piece
