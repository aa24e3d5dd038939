"""A script to check, with the queries that several rules share, and the declaration of rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from train.lint import names
from train.lint.finding import Finding, Severity
from train.lint.names import is_in, kind_of
from train.lint.tracer import Trace
from train.lint.values import MISSING, Call, Const, Guard, Items, Location, Mark, Value, is_none, text, unknown
from train.script.keras import FIRST_WITH_KERAS_3, Need

# Parameters of `fit`, `evaluate`, and `predict`, by position.
_PARAMETERS = {
    "fit": "x y batch_size epochs verbose callbacks validation_split validation_data shuffle class_weight "
    "sample_weight initial_epoch steps_per_epoch validation_steps",
    "evaluate": "x y batch_size verbose sample_weight steps callbacks",
    "predict": "x batch_size verbose steps callbacks",
}
_SINGLE_FILE = ("mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "imdb_reviews", "iris", "titanic")


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
class Script:
    """A script to check.

    Attributes:
        trace: Its events.
        need: Its requirement on Keras.
        files: The script and its modules, as paths below the directory of imports.
        tf1: Names that only TensorFlow 1 has, with the places of their use.
        idle: The main function of a script that calls none of its functions; None: it runs something.
        workers: Number of workers.
        gpus: Number of GPUs of each worker; None if unknown.
        versions: Versions of ``tensorflow``, ``keras``, ``tf_keras`` on the hosts; None if unknown.
        adapt: True if `fleet` adapts the interpreters to scripts for older TensorFlow.
        servers: True if the job has a chief and parameter servers; None if unknown.
        chief: True if the job has a task of this type; None if unknown.
    """

    trace: Trace
    need: Need
    files: tuple[str, ...]
    tf1: tuple[tuple[Location, str], ...] = ()
    idle: Location | None = None
    workers: int = 1
    gpus: int | None = None
    versions: Mapping[str, str] | None = None
    adapt: bool = True
    servers: bool | None = None
    chief: bool | None = None

    def calls(self, *methods: str) -> Iterator[Call]:
        """Yield the calls of methods or functions with these last names, in order; without names, of all."""
        return (call for call in self.trace.events if not methods or call.method in methods)

    def of(self, kind: str, *methods: str) -> Iterator[Call]:
        """Yield the calls of methods of objects that are certainly of a kind."""
        return (call for call in self.calls(*methods) if kind_of(call.receiver) == kind)

    def strategies(self, *classes: str) -> list[Call]:
        """Return the calls that create strategies of these classes."""
        return [call for call in self.calls(*classes) if names.kind_made_by(call.name) == "strategy"]

    @cached_property
    def multi(self) -> list[Call]:
        """The calls that create strategies for several workers."""
        return self.strategies(*names.MULTI_WORKER)

    @cached_property
    def parameter_server(self) -> list[Call]:
        """The calls that create strategies with parameter servers."""
        return self.strategies(*names.PARAMETER_SERVER)

    @property
    def together(self) -> bool:
        """True if several workers run the same steps together."""
        return bool(self.multi) and not self.parameter_server and self.workers > 1

    @property
    def tensorflow(self) -> tuple[int, ...]:
        """``(2, 21)``; empty if unknown."""
        return tuple(int(number) for number in re.findall(r"\d+", (self.versions or {}).get("tensorflow", ""))[:2])

    @property
    def keras_3(self) -> bool | None:
        """True if `tf.keras` is Keras 3; None if unknown."""
        return False if self.need.legacy else self.tensorflow >= FIRST_WITH_KERAS_3 if self.tensorflow else None

    def outside(self, call: Call) -> bool:
        """Return whether a call is certainly in no scope although there is a strategy for several workers."""
        return call.has_known_scope and not call.scopes and bool(self.multi)

    def shared(self, value: Value) -> bool:
        """Return whether all workers share an object, such as a model: it was created in the scope of a strategy."""
        return any(map(is_multi, value.made.scopes))

    @cached_property
    def trainings(self) -> list[Call]:
        """The calls of `fit` on models that all workers share."""
        return [call for call in self.of("model", "fit") if self.shared(call.receiver)]

    def settings(self) -> Iterator[Setting]:
        """Yield the environment variables that the script sets or removes, in order."""
        for call in self.calls():
            if call.name in ("os.environ.__setitem__", "os.environ.setdefault", "os.putenv") and len(call.args) == 2:
                yield Setting(call, text(call.args[0]) or "", call.args[1], call.method == "setdefault")
            elif call.name in ("os.environ.pop", "os.unsetenv") and call.args:
                yield Setting(call, text(call.args[0]) or "", None)
            elif call.name == "os.environ.update":
                tables = [item for item in call.args if isinstance(item, Items)]
                for items in [*(table.items for table in tables), call.keywords]:
                    yield from (Setting(call, str(name), value) for name, value in items.items())
                if len(tables) < len(call.args) or not all(table.exact for table in tables):
                    yield Setting(call, "", unknown())

    def reads(self, before: Call | None = None) -> list[tuple[Call, str]]:
        """Return the environment variables that the script reads, in order; `before`: only those read before it."""
        methods = ("os.environ.__getitem__", "os.environ.get", "os.getenv")
        calls = (call for call in self.calls() if call.name in methods and call.args)
        return [(call, text(call.args[0]) or "") for call in calls if before is None or call.order < before.order]


def is_multi(strategy: Value) -> bool:
    """Return whether a strategy is for several workers."""
    return strategy.made.method in names.MULTI_WORKER


def argument(call: Call, name: str) -> Value:
    """Return an argument of `fit`, `evaluate`, or `predict`; MISSING if it is not given."""
    parameters = _PARAMETERS.get(call.method, "").split()
    return call.argument(name, parameters.index(name) if name in parameters else -1)


# --- data sets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain:
    """A data set: the call that created its source, and the method calls since then.

    Attributes:
        source: The call that created its source.
        steps: The method calls.
        distributed: True if a strategy distributed it.
    """

    source: Call
    steps: tuple[Call, ...] = ()
    distributed: bool = False

    def step(self, *methods: str) -> Call | None:
        """Return the last call of one of these methods; None: none."""
        return next((call for call in reversed(self.steps) if call.method in methods), None)

    @property
    def in_memory(self) -> bool:
        """True if its source is in the script's memory."""
        is_dataset = self.source.name.startswith("tensorflow.data.Dataset.")
        return is_dataset and self.source.method in ("from_tensor_slices", "from_tensors", "range")

    @property
    def files(self) -> int | None:
        """Number of files that it is read from; None if unknown."""
        if self.source.name == names.TFDS:
            return 1 if text(self.source.argument("name", 0)) in _SINGLE_FILE else None
        first = self.source.argument("filenames", 0)
        if not is_in("reader", self.source.name) or self.source.starred:
            return None
        if isinstance(first, Items) and first.exact:
            return len(first.items)
        return None if text(first) is None else 1

    @property
    def finite(self) -> bool:
        """True if its source certainly ends."""
        return self.in_memory or is_in("reader", self.source.name) or self.source.name == names.TFDS

    @property
    def endless(self) -> bool:
        """True if it certainly never ends."""
        last = self.step("repeat", "take", "take_while")
        if last is None or last.method != "repeat" or last.starred or self.step("apply") is not None:
            return False
        count = last.argument("count", 0)
        return is_none(count) or (isinstance(count, Const) and count.value == -1)

    @property
    def policy(self) -> str:
        """The policy that divides it among workers: ``AUTO`` if none is set, empty if unknown."""
        set_by = self.step("with_options")
        options = set_by.argument("options", 0) if set_by is not None else MISSING
        if self.step("apply") is not None or (set_by is not None and options.call is None):
            return ""
        policy = options.parts.get("experimental_distribute", MISSING).parts.get("auto_shard_policy")
        return "AUTO" if policy is None else policy.name.rpartition(".")[2].strip("?")

    @property
    def sharded(self) -> bool:
        """True if the script divides it, or may do so."""
        values = (value for call in (self.source, *self.steps) for value in call.everything())
        return any(value.marks & (Mark.ROLE | Mark.HOST) for value in values) or bool(self.step("shard", "apply"))


def chain_of(value: Value | None) -> Chain | None:
    """Return the data set that a value is; None: it is another value, or its source is unknown."""
    steps: list[Call] = []
    distributed = False
    while value is not None and value.call is not None and kind_of(value) in ("dataset", "distributed"):
        call = value.call
        if kind_of(value) == "distributed":
            distributed = True
            value = call.returned or call.argument("dataset", 0)
        elif kind_of(call.receiver) == "dataset":
            steps.insert(0, call)
            value = call.receiver
        else:
            return Chain(call, tuple(steps), distributed)
    return None


def iterated(value: Value | None) -> Value | None:
    """Return the data set that a value is an element of; None: none."""
    is_element = False
    while value is not None and value.call is None and value.name.endswith("[]"):
        value, is_element = value.of, True
    return value if is_element else None


# --- rules ---------------------------------------------------------------------------------------------------------

ERROR, WARNING, HINT = Severity.ERROR, Severity.WARNING, Severity.HINT


class Violation(NamedTuple):
    """A violation of a rule.

    Attributes:
        at: The call or location; in a call under an unknown condition an error becomes a warning.
        variant: The part of the rule's texts; empty: the rule has one.
        level: Replaces the severity of the rule; None: the rule's.
        fields: Values in the texts; `method` is that of the call.
    """

    at: Call | Location
    variant: str
    level: Severity | None
    fields: Mapping[str, object]


def violation(
    at: Call | Location,
    variant: str = "",
    level: Severity | None = None,
    near: Call | Guard | None = None,
    **fields: object,
) -> Violation:
    """Return a violation; the texts call the location of `near` ``where``."""
    if near is not None:
        fields["where"] = near.location.seen_from(at if isinstance(at, Location) else at.location)
    return Violation(at, variant, level, fields)


Check = Callable[[Script], Iterator[Violation]]

RULES: dict[str, Callable[[Script], Iterator[Finding]]] = {}
"""The rules by their stable names; the modules with rules fill it."""
_TEXTS = names.read_table("rules.toml")


def rule(name: str) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as the rule with this name in rules.toml and docs/lint.md."""

    def register(check: Check) -> Check:
        def find(script: Script) -> Iterator[Finding]:
            for at, variant, level, fields in check(script):
                place, method = (at, "") if isinstance(at, Location) else (at.location, at.method)
                texts = {**_TEXTS[name], **_TEXTS[name].get(variant, {})}
                filled = [texts[key].format(**{"method": method, **fields}) for key in ("message", "reason", "fix")]
                yield Finding(name, *place, severity(at, level or Severity(texts["severity"])), *filled)

        RULES[name] = find
        return check

    return register


def severity(at: Call | Location, level: Severity) -> Severity:
    """Return the severity of a violation: an error in a call under an unknown condition is a warning."""
    return WARNING if level is ERROR and isinstance(at, Call) and not at.sure else level
