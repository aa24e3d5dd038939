"""The input of the rules: the trace of a script, the job's hosts, and queries that several rules share."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from train.lint.interpreter.api_names import MULTI_WORKER, PARAMETER_SERVER, Kind, kind_of, kind_of_type
from train.lint.interpreter.trace import Trace
from train.lint.interpreter.values import (
    Call,
    Either,
    Instance,
    Items,
    Location,
    Made,
    Opaque,
    Table,
    Value,
    options,
    text,
)
from train.script.keras import FIRST_WITH_KERAS_3, Need

_PARAMETERS: dict[str, tuple[str, ...]] = {
    "fit": (
        "x", "y", "batch_size", "epochs", "verbose", "callbacks", "validation_split", "validation_data", "shuffle",
        "class_weight", "sample_weight", "initial_epoch", "steps_per_epoch", "validation_steps",
    ),
    "evaluate": ("x", "y", "batch_size", "verbose", "sample_weight", "steps", "callbacks"),
    "predict": ("x", "batch_size", "verbose", "steps", "callbacks"),
}  # fmt: skip
_SETS = ("os.environ.__setitem__", "os.environ.setdefault", "os.putenv")
_READS = ("os.environ.__getitem__", "os.environ.get", "os.getenv")
_REMOVES = ("os.environ.pop", "os.unsetenv")
TRAINING = ("fit", "fit_generator", "train_on_batch")


class Setting(NamedTuple):
    """An environment variable that a call sets or removes.

    Attributes:
        call: The call.
        name: The variable; empty: any.
        value: Its new value; None: it is removed.
        default: True if the call sets it only if it is unset.
    """

    call: Call
    name: str
    value: Value | None
    default: bool = False


@dataclass(frozen=True)
class Subject:
    """A script to check.

    Attributes:
        trace: The trace of the script.
        workers: Number of workers.
        gpus: Number of GPUs of each worker; None if unknown.
        versions: Versions of ``tensorflow``, ``keras``, ``tf_keras`` on the hosts; None if unknown.
        need: The requirement of the script on Keras.
        adapt: True if `fleet` adapts the interpreters to scripts for older TensorFlow.
        servers: True if the job has a chief and parameter servers; None if unknown.
        chief: True if the job has a task of this type; None if unknown.
        files: The script and its modules, as paths below the directory of imports.
        tf1: Names that only TensorFlow 1 has, with the places of their use.
        idle: The main function of a script that calls none of its functions; None: it runs something.
    """

    trace: Trace
    workers: int
    gpus: int | None
    versions: Mapping[str, str] | None
    need: Need
    adapt: bool = True
    servers: bool | None = None
    chief: bool | None = None
    files: tuple[str, ...] = ()
    tf1: tuple[tuple[Location, str], ...] = ()
    idle: Location | None = None

    @cached_property
    def multi(self) -> list[Call]:
        """The calls that create strategies for several workers."""
        return self._strategies(MULTI_WORKER)

    @cached_property
    def parameter_server(self) -> list[Call]:
        """The calls that create strategies with parameter servers."""
        return self._strategies(PARAMETER_SERVER)

    def _strategies(self, names: tuple[str, ...]) -> list[Call]:
        return [call for call in self.calls() if call.method in names and kind_of_type(call.name) is Kind.STRATEGY]

    @property
    def together(self) -> bool:
        """True if several workers run the same steps together."""
        return bool(self.multi) and not self.parameter_server and self.workers > 1

    @property
    def tensorflow(self) -> tuple[int, ...]:
        """``(2, 21)``; empty if unknown."""
        text = (self.versions or {}).get("tensorflow", "")
        return tuple(int(number) for number in re.findall(r"\d+", text)[:2])

    @property
    def keras_3(self) -> bool | None:
        """True if `tf.keras` is Keras 3; None if unknown."""
        if self.need.legacy:
            return False
        return self.tensorflow >= FIRST_WITH_KERAS_3 if self.tensorflow else None

    def calls(self, *methods: str) -> Iterator[Call]:
        """Return the calls of methods or functions with these last names, in order; without names all calls."""
        return (call for call in self.trace.calls if not methods or call.method in methods)

    def of(self, kind: Kind, *methods: str) -> Iterator[Call]:
        """Return the calls of methods of values that are certainly of a kind."""
        return (call for call in self.calls(*methods) if kind_of(call.receiver) is kind)

    def made_by(self, value: Value | None) -> list[Call]:
        """Return the calls that may have created a value; empty if one of them is unknown."""
        result = []
        for option in options(value) if value is not None else ():
            call = option.call if isinstance(option, Made | Instance) else None
            if call is None:
                return []
            result.append(call)
        return result

    def is_multi(self, strategy: Value) -> bool:
        """Return whether a strategy is, or may be, for several workers."""
        return any(call.method in MULTI_WORKER for call in map(_call_of, options(strategy)) if call is not None)

    def inside(self, call: Call) -> bool:
        """Return whether a call is in the scope of a strategy for several workers."""
        return any(map(self.is_multi, call.scopes))

    def outside(self, call: Call) -> bool:
        """Return whether a call is certainly in no scope although there is a strategy for several workers."""
        return call.has_known_scope and not call.scopes and bool(self.multi)

    def shared(self, value: Value | None) -> bool:
        """Return whether all workers share a value such as a model."""
        made = self.made_by(value)
        return bool(made) and all(map(self.inside, made))

    @cached_property
    def trainings(self) -> list[Call]:
        """The calls of `fit` on models that all workers share."""
        return [call for call in self.of(Kind.MODEL, "fit") if self.shared(call.receiver)]

    def settings(self) -> Iterator[Setting]:
        """Yield the environment variables that the script sets or removes, in order."""
        for call in self.calls():
            if call.name in _SETS and len(call.args) == 2:
                yield Setting(call, text(call.args[0]) or "", call.args[1], call.method == "setdefault")
            elif call.name in _REMOVES and call.args:
                yield Setting(call, text(call.args[0]) or "", None)
            elif call.name == "os.environ.update":
                tables = [item for item in call.args if isinstance(item, Table)]
                for items in (*(table.items for table in tables), call.keywords):
                    yield from (Setting(call, name, value) for name, value in items.items())
                if len(tables) < len(call.args) or not all(table.exact for table in tables):
                    yield Setting(call, "", Opaque())

    def reads(self) -> Iterator[tuple[Call, str]]:
        """Yield the environment variables that the script reads, in order."""
        for call in self.calls():
            if call.name in _READS and call.args:
                yield call, text(call.args[0]) or ""


def argument(call: Call, name: str) -> Value | None:
    """Return an argument of `fit`, `evaluate`, or `predict`; None if it is not given."""
    names = _PARAMETERS.get(call.method, ())
    return call.argument(name, names.index(name) if name in names else -1)


def inner(value: Value | None, depth: int = 4) -> Iterator[Value]:
    """Yield a value and the values in it: elements of a list, or alternatives."""
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


def shown(name: str) -> str:
    """Return a full name with the usual alias of its package."""
    return re.sub(r"^tensorflow(?=\.)", "tf", name).replace(".__call__", "").removeprefix("builtins.")


def _call_of(value: Value) -> Call | None:
    return value.call if isinstance(value, Made) else None
