"""What the rules look at: the trace of a script, where it is to run, and questions that several of them ask."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from train.lint.interpreter.names import MULTI_WORKER, PARAMETER_SERVER, Kind, kind_of, kind_of_type
from train.lint.interpreter.trace import Trace
from train.lint.interpreter.values import Call, Either, Instance, Items, Made, Place, Table, Value, options
from train.lint.model import Severity
from train.script.keras import FIRST_WITH_KERAS_3, Need

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "fit": (
        "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "shuffle",
        "class_weight", "sample_weight", "initial_epoch", "steps_per_epoch", "validation_steps",
    ),
    "evaluate": ("x", "y", "batch_size", "verbose", "sample_weight", "steps", "callbacks"),
    "predict": ("x", "batch_size", "verbose", "steps", "callbacks"),
}  # fmt: skip
TRAINING = ("fit", "fit_generator", "train_on_batch")


@dataclass(frozen=True)
class Found:
    """What a rule found, without the rule's name."""

    place: Place
    severity: Severity
    message: str
    reason: str
    fix: str


@dataclass(frozen=True)
class Subject:
    """A script under the rules.

    Attributes:
        trace: What it does.
        workers: How many there will be.
        gpus: Of each worker; None: nobody knows.
        versions: Of ``tensorflow``, ``keras``, ``tf_keras`` on the hosts; None: nobody knows.
        need: What it asks of Keras.
        adapt: `fleet` adapts the interpreters to scripts for older TensorFlow.
        servers: The job has a chief and parameter servers; None: unknown.
        tf1: Names that only TensorFlow 1 has, and where they are used.
    """

    trace: Trace
    workers: int
    gpus: int | None
    versions: Mapping[str, str] | None
    need: Need
    adapt: bool = True
    servers: bool | None = None
    tf1: tuple[tuple[Place, str], ...] = ()

    @cached_property
    def multi(self) -> list[Call]:
        """Where strategies for several workers are made."""
        return self._strategies(MULTI_WORKER)

    @cached_property
    def parameter_server(self) -> list[Call]:
        """Where strategies with parameter servers are made."""
        return self._strategies(PARAMETER_SERVER)

    def _strategies(self, names: tuple[str, ...]) -> list[Call]:
        return [call for call in self.calls() if call.method in names and kind_of_type(call.name) is Kind.STRATEGY]

    @property
    def together(self) -> bool:
        """Whether several workers work in step."""
        return bool(self.multi) and not self.parameter_server and self.workers > 1

    @property
    def tensorflow(self) -> tuple[int, ...]:
        """``(2, 21)``; empty: nobody knows."""
        text = (self.versions or {}).get("tensorflow", "")
        return tuple(int(number) for number in re.findall(r"\d+", text)[:2])

    @property
    def keras_3(self) -> bool | None:
        """Whether the script will get Keras 3 as `tf.keras`; None: nobody knows."""
        if self.need.legacy:
            return False
        return self.tensorflow >= FIRST_WITH_KERAS_3 if self.tensorflow else None

    def calls(self, *methods: str) -> Iterator[Call]:
        """Calls in their order, of methods or functions with these last names; of all, where none is given."""
        return (call for call in self.trace.calls if not methods or call.method in methods)

    def of(self, kind: Kind, *methods: str) -> Iterator[Call]:
        """Calls of methods of something that is for sure of a kind."""
        return (call for call in self.calls(*methods) if kind_of(call.receiver) is kind)

    def made_by(self, value: Value | None) -> list[Call]:
        """The calls that may have made a value; empty where nobody knows, or not of all that it may be."""
        result = []
        for option in options(value) if value is not None else ():
            call = option.call if isinstance(option, Made | Instance) else None
            if call is None:
                return []
            result.append(call)
        return result

    def is_multi(self, strategy: Value) -> bool:
        """Whether a strategy is, or may be, one for several workers."""
        return any(call.method in MULTI_WORKER for call in map(_call_of, options(strategy)) if call is not None)

    def inside(self, call: Call) -> bool:
        """Whether a call happens in the scope of a strategy for several workers."""
        return any(map(self.is_multi, call.scopes))

    def outside(self, call: Call) -> bool:
        """Whether a call happens in no scope for sure, though there is a strategy for several workers."""
        return call.scope_known and not call.scopes and bool(self.multi)

    def shared(self, value: Value | None) -> bool:
        """Whether a value, such as a model, is one that all workers have together."""
        made = self.made_by(value)
        return bool(made) and all(map(self.inside, made))

    @cached_property
    def trainings(self) -> list[Call]:
        """Calls of `fit` on models that all workers have together."""
        return [call for call in self.of(Kind.MODEL, "fit") if self.shared(call.receiver)]


def argument(call: Call, name: str) -> Value | None:
    """An argument of `fit`, `evaluate` or `predict`; None: it is not given."""
    names = _PARAMETERS.get(call.method, ())
    return call.argument(name, names.index(name) if name in names else -1)


def inner(value: Value | None, depth: int = 4) -> Iterator[Value]:
    """A value and all that it holds, as a list or as one of several."""
    if value is None:
        return
    yield value
    parts: tuple[Value, ...] = ()
    if isinstance(value, Either):
        parts = value.options
    elif isinstance(value, Items):
        parts = tuple(value.items)
    elif isinstance(value, Table):
        parts = tuple(value.items.values())
    for part in parts if depth else ():
        yield from inner(part, depth - 1)


def severity(call: Call, level: Severity) -> Severity:
    """An error under a condition that nobody knows is a warning."""
    return Severity.WARNING if level is Severity.ERROR and not call.sure else level


def shown(name: str) -> str:
    """A full name as people write it."""
    return re.sub(r"^tensorflow(?=\.)", "tf", name).replace(".__call__", "").removeprefix("builtins.")


def _call_of(value: Value) -> Call | None:
    return value.call if isinstance(value, Made) else None
