"""Abstract values and calls: what is known of them without running the script."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import reduce
from operator import or_


class Mark(Flag):
    """Influences that a value depends on."""

    NONE = 0
    UNKNOWN = auto()  # a value that the interpreter does not know
    GIVEN = auto()  # arguments and variables of the job, the same for all workers
    REPLICAS = auto()  # the number of workers, or a number whose name suggests a number for all of them
    ROLE = auto()  # type and index of the task
    TIME = auto()  # the clock
    RANDOM = auto()  # an unseeded generator
    HOST = auto()  # the computer or the process
    LOCAL = auto()  # what one worker computed from its own share of the data
    TEMPORARY = auto()  # a directory that is gone when the process ends
    TASK_PATH = auto()  # a directory that fleet gives only to this task


DIFFERS = Mark.ROLE | Mark.TIME | Mark.RANDOM | Mark.HOST | Mark.LOCAL
"""What makes a value another one on each worker."""


@dataclass(eq=False)
class Value:
    """Any value; compared by identity."""

    marks: Mark = Mark.NONE


@dataclass(frozen=True)
class Location:
    """A location in a source; line and column from 1."""

    file: str
    line: int
    column: int

    def seen_from(self, other: Location) -> str:
        """Return ``line 12``, or ``data.py:12`` if `other` is in another file."""
        return f"line {self.line}" if self.file == other.file else f"{self.file}:{self.line}"


OF_A_TASK = ("chief", "not_chief", "inside", "outside", "has_tf_config")
"""Conditions that hold for some task of a job, or for all of them."""


@dataclass(frozen=True)
class Guard:
    """A condition under which code runs.

    Attributes:
        number: Number of the branch or loop; the same for both its arms.
        arm: 0 if the condition holds, 1 if not.
        kind: ``if``, ``rest`` (of a program that ends in the other arm), ``loop``, ``try``, or ``called`` (by
            something outside the sources, if at all).
        marks: What the condition depends on.
        meaning: ``chief``, ``not_chief``, ``inside`` (the workers), ``outside`` (another task), ``has_tf_config``,
            ``no_tf_config``, or empty.
        location: Location of the condition.
        caught: Names of the exceptions that a ``try`` catches; ``*`` represents all.
    """

    number: int
    arm: int
    kind: str
    location: Location
    marks: Mark = Mark.NONE
    meaning: str = ""
    caught: tuple[str, ...] = ()


@dataclass(eq=False)
class Arguments:
    """The arguments in a call.

    Attributes:
        args: Positional arguments.
        keywords: Named arguments.
        starred: True if there may be unknown arguments.
    """

    args: Sequence[Value] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    starred: bool = False

    def argument(self, name: str, position: int = -1) -> Value | None:
        """Return an argument by its name or position (from 0); None if it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    def everything(self) -> Iterator[Value]:
        """Return all arguments."""
        yield from self.args
        yield from self.keywords.values()


@dataclass(eq=False)
class Call(Arguments):
    """A call to code outside the sources, or an assignment to an environment variable.

    Attributes:
        name: Full name of the function: ``tensorflow.data.Dataset.batch``, independent of aliases.
        order: Increases with each call.
        location: Its location.
        receiver: The object of a method.
        scopes: Strategies whose scope contains it.
        has_known_scope: False if it may be in an unknown scope.
        guards: Conditions, outermost first.
        replica: True if it is in a function that a strategy runs on every replica.
        main_only: True if it runs only if the script is run, not if it is imported.
        returned: Result of a function that was passed to this call and that the call has run.
    """

    name: str = field(kw_only=True)
    order: int = field(kw_only=True)
    location: Location = field(kw_only=True)
    receiver: Value | None = None
    scopes: tuple[Value, ...] = ()
    has_known_scope: bool = True
    guards: tuple[Guard, ...] = ()
    replica: bool = False
    main_only: bool = False
    returned: Value | None = None

    @property
    def method(self) -> str:
        """Last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def sure(self) -> bool:
        """True if it runs whenever the script reaches it."""
        return all(guard.kind in ("loop", "try", "rest") or guard.meaning in OF_A_TASK for guard in self.guards)

    @property
    def loops(self) -> tuple[int, ...]:
        """Numbers of the enclosing loops, outermost first."""
        return loops_in(self.guards)


def loops_in(guards: Iterable[Guard]) -> tuple[int, ...]:
    """Return the numbers of the loops among `guards`."""
    return tuple(guard.number for guard in guards if guard.kind == "loop")


@dataclass(eq=False)
class Const(Value):
    """A constant of the script."""

    value: object = None


@dataclass(eq=False)
class Opaque(Value):
    """An unknown value; `meaning` has partial knowledge, such as ``index`` of the task."""

    meaning: str = ""


@dataclass(eq=False)
class Items(Value):
    """A list, tuple, or set; `exact` unless it may have more or fewer elements than `items`."""

    items: list[Value] = field(default_factory=list)
    exact: bool = True


@dataclass(eq=False)
class Table(Value):
    """A dictionary with known keys; `exact` unless it may have other keys."""

    items: dict[str, Value] = field(default_factory=dict)
    exact: bool = True


@dataclass(eq=False)
class Ref(Value):
    """A name outside the sources: ``tensorflow.keras.Model``."""

    name: str = ""


@dataclass(eq=False)
class Made(Value):
    """The result of a call outside the sources; `attrs` were set later, by their dotted path."""

    call: Call = field(kw_only=True)
    attrs: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Element(Value):
    """An element of `of`, by iteration or index."""

    of: Value = field(kw_only=True)


@dataclass(eq=False)
class Bound(Value):
    """An attribute of an object outside the sources."""

    receiver: Value = field(kw_only=True)
    name: str = ""


@dataclass(eq=False)
class Frame:
    """Names of one function, class, or module; `outer` has the enclosing names."""

    module: str
    names: dict[str, Value] = field(default_factory=dict)
    outer: Frame | None = None
    shared: frozenset[str] = frozenset()  # declared global or nonlocal
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """Return the value of `name`; None if unknown."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names and not (frame.is_class and frame is not self):
                return frame.names[name]
            frame = frame.outer
        return None

    def bind(self, name: str, value: Value) -> None:
        """Bind `name` to `value`."""
        frame = self
        if name in self.shared:
            while frame.outer is not None and (frame is self or name not in frame.names):
                frame = frame.outer
        frame.names[name] = value


@dataclass(eq=False)
class Function(Value):
    """A function or lambda of the sources, bound to `owner` if it is a method."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = field(kw_only=True)
    frame: Frame = field(kw_only=True)
    owner: Value | None = None
    static: bool = False
    defaults: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Class(Value):
    """A class of the sources."""

    name: str = ""
    bases: list[Value] = field(default_factory=list)
    frame: Frame = field(kw_only=True)

    def find(self, name: str, depth: int = 8) -> Value | None:
        """Return an attribute of this class or of a base in the sources."""
        if name in self.frame.names:
            return self.frame.names[name]
        for base in self.bases if depth else []:
            result = base.find(name, depth - 1) if isinstance(base, Class) else None
            if result is not None:
                return result
        return None

    def outside(self, depth: int = 8) -> str:
        """Return the name of the first base outside the sources; empty: none."""
        for base in self.bases if depth else []:
            name = base.name if isinstance(base, Ref) else base.outside(depth - 1) if isinstance(base, Class) else "?"
            if name:
                return name
        return ""


@dataclass(eq=False)
class Instance(Value):
    """An object of a class of the sources; `call` created the part of a base outside the sources."""

    cls: Class = field(kw_only=True)
    call: Call | None = None
    attrs: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Module(Value):
    """A module of the sources."""

    frame: Frame = field(kw_only=True)


@dataclass(eq=False)
class Either(Value):
    """One of several values."""

    options: tuple[Value, ...] = ()


_MOST_OPTIONS = 6


def options(value: Value) -> tuple[Value, ...]:
    """Return the alternatives of `value`."""
    return value.options if isinstance(value, Either) else (value,)


def join(values: Sequence[Value], marks: Mark = Mark.NONE) -> Value:
    """Return one of `values`, whose choice depends on `marks`."""
    result: list[Value] = []
    for value in values:
        for option in options(value):
            if not any(_same(option, other) for other in result):
                result.append(option)
    if len(result) == 1:
        return result[0]
    every = marks | union(result)
    return Either(every, tuple(result)) if 0 < len(result) <= _MOST_OPTIONS else Opaque(every | Mark.UNKNOWN)


def union(values: Iterable[Value]) -> Mark:
    """Return the marks of all `values`."""
    return reduce(or_, (value.marks for value in values), Mark.NONE)


def unknown(marks: Mark = Mark.NONE) -> Opaque:
    """Return an unknown value with its marks."""
    return Opaque(marks | Mark.UNKNOWN)


def text(value: Value | None) -> str | None:
    """Return the string that `value` is; None if unknown."""
    return value.value if isinstance(value, Const) and isinstance(value.value, str) else None


def is_none(value: Value | None) -> bool:
    """Return whether `value` is missing or certainly None."""
    return value is None or (isinstance(value, Const) and value.value is None)


def _same(value: Value, other: Value) -> bool:
    if isinstance(value, Const) and isinstance(other, Const):
        return type(value.value) is type(other.value) and value.value == other.value and value.marks == other.marks
    if isinstance(value, Ref) and isinstance(other, Ref):
        return value.name == other.name
    return value is other
