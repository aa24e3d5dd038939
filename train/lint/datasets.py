"""Analyze data sets: their source and the methods applied to them."""

from __future__ import annotations

from dataclasses import dataclass

from train.lint.interpreter.api_names import TFDS, Kind, is_reader, kind_of, loaded_by
from train.lint.interpreter.values import (
    Call,
    Const,
    Either,
    Element,
    Items,
    Made,
    Mark,
    Ref,
    Value,
    is_none,
    options,
    text,
)

_MEMORY = ("from_tensor_slices", "from_tensors", "range")
_SINGLE_FILE = ("mnist", "fashion_mnist", "kmnist", "cifar10", "cifar100", "imdb_reviews", "iris", "titanic")


@dataclass(frozen=True)
class Chain:
    """A data set: the call that created its source, and the method calls since then."""

    source: Call
    steps: tuple[Call, ...] = ()
    distributed: Call | None = None  # if a strategy took it

    def step(self, name: str) -> Call | None:
        """Return the last call of a method; None: none."""
        return next((call for call in reversed(self.steps) if call.method == name), None)

    @property
    def transparent(self) -> bool:
        """True if all method calls are known."""
        return self.step("apply") is None

    @property
    def in_memory(self) -> bool:
        """True if its source is in the script's memory."""
        return self.source.name.startswith("tensorflow.data.Dataset.") and self.source.method in _MEMORY

    @property
    def generated(self) -> bool:
        """True if its source is a generator."""
        return self.source.method == "from_generator"

    @property
    def files(self) -> int | None:
        """Number of files that it is read from; None if unknown."""
        if is_reader(self.source.name) and not self.source.starred:
            first = self.source.argument("filenames", 0)
            name = text(first)
            if name is not None:
                return 1
            if isinstance(first, Items) and first.exact:
                return len(first.items)
        if self.source.name == TFDS:
            return 1 if text(self.source.argument("name", 0)) in _SINGLE_FILE else None
        return None

    @property
    def finite(self) -> bool:
        """True if its source certainly ends."""
        return self.in_memory or is_reader(self.source.name) or self.source.name == TFDS

    @property
    def endless(self) -> bool:
        """True if it certainly never ends."""
        ends = True
        for call in self.steps:
            if call.method == "repeat" and not call.starred:
                count = call.argument("count", 0)
                ends = ends and not (is_none(count) or (isinstance(count, Const) and count.value == -1))
            elif call.method in ("take", "take_while"):
                ends = True
        return not ends and self.transparent

    @property
    def policy(self) -> str:
        """The policy that divides it among workers: ``AUTO`` if none is set, empty if unknown."""
        for call in reversed(self.steps):
            if call.method == "with_options":
                result = _policy(call.argument("options", 0))
                if result != "AUTO":
                    return result
        return "AUTO" if self.transparent else ""

    @property
    def sharded(self) -> bool:
        """True if the script divides it, or may do so."""
        every = (self.source, *self.steps)
        depends = any(value.marks & (Mark.ROLE | Mark.HOST) for call in every for value in call.everything())
        return depends or self.step("shard") is not None or not self.transparent

    def batch(self) -> tuple[Call | None, Value | None]:
        """Return the call that makes batches and their size; None: there is none, or it is unknown."""
        call = self.step("batch") or self.step("padded_batch")
        return call, None if call is None or call.starred else call.argument("batch_size", 0)


def chains(value: Value | None) -> list[Chain]:
    """Return the data sets that a value may be; empty if one of them is unknown."""
    if value is None:
        return []
    result = [_chain(option) for option in options(value)]
    return [item for item in result if item is not None] if None not in result else []


def iterated(value: Value | None) -> Value | None:
    """Return the data set that a value is an element of; None: none."""
    depth = 0
    while isinstance(value, Element) and kind_of(value) is not Kind.DATASET and depth < 8:
        value, depth = value.of, depth + 1
    kinds = {kind_of(option) for option in options(value)} if value is not None else set()
    return value if depth and kinds <= {Kind.DATASET, Kind.DISTRIBUTED} else None


def _chain(value: Value) -> Chain | None:
    steps: list[Call] = []
    distributed = None
    while True:
        if isinstance(value, Element) and isinstance(value.of, Made | Element):
            source = loaded_by(value)
            return Chain(source, tuple(reversed(steps)), distributed) if source else None
        if not isinstance(value, Made) or kind_of(value) not in (Kind.DATASET, Kind.DISTRIBUTED):
            return None
        call = value.call
        if kind_of(value) is Kind.DISTRIBUTED:
            distributed = call
            inside = call.returned or call.argument("dataset", 0)
        elif call.receiver is not None and kind_of(call.receiver) is Kind.DATASET:
            steps.append(call)
            inside = call.receiver
        else:
            return Chain(call, tuple(reversed(steps)), distributed)
        if inside is None or isinstance(inside, Either):
            return None
        value = inside


def _policy(value: Value | None) -> str:
    if not isinstance(value, Made):
        return ""
    result = {
        option.name.rpartition(".")[2] if isinstance(option, Ref) else ""
        for path, content in value.attrs.items()
        if path.rpartition(".")[2] == "auto_shard_policy"
        for option in options(content)
    }
    return result.pop() if len(result) == 1 else "" if result else "AUTO"
