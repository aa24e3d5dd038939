"""What the walk knows of values and of the calls that make them: what can be told without running the script."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import reduce
from operator import or_


class Mark(Flag):
    """What a value depends on."""

    NONE = 0
    UNKNOWN = auto()  # something that the walk cannot see
    GIVEN = auto()  # arguments and variables of the job, the same for all workers
    REPLICAS = auto()  # how many workers there are, or a number that is named as one for all of them
    ROLE = auto()  # which task this is
    TIME = auto()  # the clock
    RANDOM = auto()  # an unseeded generator
    HOST = auto()  # the computer or the process
    LOCAL = auto()  # what one worker computed from its own share of the data
    TEMPORARY = auto()  # a directory that is gone when the process ends
    TASK_PATH = auto()  # a directory that fleet gives to this task alone


DIFFERS = Mark.ROLE | Mark.TIME | Mark.RANDOM | Mark.HOST | Mark.LOCAL
"""What makes a value another one on each worker."""


@dataclass(eq=False)
class Value:
    """Any value; two are the same only if they are one object."""

    marks: Mark = Mark.NONE


@dataclass(frozen=True)
class Place:
    """Where something stands; line and column from 1."""

    file: str
    line: int
    column: int

    def seen_from(self, other: Place) -> str:
        """``line 12``, or ``data.py:12`` where `other` is in another file."""
        return f"line {self.line}" if self.file == other.file else f"{self.file}:{self.line}"


OF_A_TASK = ("chief", "not_chief", "inside", "outside", "has_tf_config")
"""Conditions that hold for some task of a job, or for all of them."""


@dataclass(frozen=True)
class Guard:
    """A condition under which something happens.

    Attributes:
        number: Of the branch or loop; the same for both its arms.
        arm: 0 where it holds, 1 where it does not.
        kind: ``if``, ``rest`` (of a program that ends in the other arm), ``loop``, ``try``, or ``called`` (by
            something outside the sources, if at all).
        marks: What the condition depends on.
        what: ``chief``, ``not_chief``, ``inside`` (the workers), ``outside`` (a task beside them), ``has_tf_config``,
            ``no_tf_config``, or empty.
        place: Of the condition.
        caught: Of a ``try``: names of the exceptions that are caught; ``*`` stands for all.
    """

    number: int
    arm: int
    kind: str
    place: Place
    marks: Mark = Mark.NONE
    what: str = ""
    caught: tuple[str, ...] = ()


@dataclass(eq=False)
class Call:
    """One call of something outside the sources, or an assignment to a variable of the environment.

    Attributes:
        name: Full name of what is called: ``tensorflow.data.Dataset.batch``, whatever it is called through.
        order: Later calls have higher ones.
        place: Where it stands.
        receiver: Of a method: the object.
        args: Positional arguments.
        keywords: Named arguments.
        starred: Whether there may be arguments that are not seen.
        scopes: Strategies in whose scope it happens.
        scope_known: False where it may happen in a scope that is not seen.
        guards: Conditions, outermost first.
        replica: Whether it happens in a function that a strategy runs on every replica.
        main_only: Whether it happens only where the script is what is run, not where it is imported.
        returned: What a function returned that this call was given and has called.
    """

    name: str
    order: int
    place: Place
    receiver: Value | None = None
    args: tuple[Value, ...] = ()
    keywords: dict[str, Value] = field(default_factory=dict)
    starred: bool = False
    scopes: tuple[Value, ...] = ()
    scope_known: bool = True
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
        """Whether it happens under no condition but that the script gets there."""
        return all(guard.kind in ("loop", "try", "rest") or guard.what in OF_A_TASK for guard in self.guards)

    @property
    def loops(self) -> tuple[int, ...]:
        """Numbers of the loops around it, outermost first."""
        return tuple(guard.number for guard in self.guards if guard.kind == "loop")

    def argument(self, name: str, position: int = -1) -> Value | None:
        """An argument by its name or position (from 0); None: it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else None

    def everything(self) -> Iterator[Value]:
        """All arguments."""
        yield from self.args
        yield from self.keywords.values()


@dataclass(eq=False)
class Const(Value):
    """A constant of the script."""

    value: object = None


@dataclass(eq=False)
class Opaque(Value):
    """Something unknown; `what` says what is known of it after all, such as ``index`` of the task."""

    what: str = ""


@dataclass(eq=False)
class Items(Value):
    """A list, tuple or set; `exact` unless there may be others than `items`, or fewer."""

    items: list[Value] = field(default_factory=list)
    exact: bool = True


@dataclass(eq=False)
class Table(Value):
    """A dictionary with known keys; `exact` unless there may be others."""

    items: dict[str, Value] = field(default_factory=dict)
    exact: bool = True


@dataclass(eq=False)
class Ref(Value):
    """A name of something outside the sources: ``tensorflow.keras.Model``."""

    name: str = ""


@dataclass(eq=False)
class Made(Value):
    """What a call outside the sources returned; `attrs` were set later, by their dotted path."""

    call: Call = field(kw_only=True)
    attrs: dict[str, Value] = field(default_factory=dict)


@dataclass(eq=False)
class Element(Value):
    """Something out of `of`, by iteration or index."""

    of: Value = field(kw_only=True)


@dataclass(eq=False)
class Bound(Value):
    """An attribute of something that is not in the sources."""

    receiver: Value = field(kw_only=True)
    name: str = ""


@dataclass(eq=False)
class Frame:
    """Names of one function, class or module; `outer` holds those that it can see besides."""

    module: str
    names: dict[str, Value] = field(default_factory=dict)
    outer: Frame | None = None
    shared: frozenset[str] = frozenset()  # declared global or nonlocal
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """What `name` stands for; None: nobody knows."""
        frame: Frame | None = self
        while frame is not None:
            if name in frame.names and not (frame.is_class and frame is not self):
                return frame.names[name]
            frame = frame.outer
        return None

    def bind(self, name: str, value: Value) -> None:
        """Let `name` stand for `value`."""
        frame = self
        if name in self.shared:
            while frame.outer is not None and (frame is self or name not in frame.names):
                frame = frame.outer
        frame.names[name] = value


@dataclass(eq=False)
class Function(Value):
    """A function or lambda of the sources, bound to `owner` where it is a method of one."""

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
        """An attribute of this class or of a base that is in the sources."""
        if name in self.frame.names:
            return self.frame.names[name]
        for base in self.bases if depth else []:
            result = base.find(name, depth - 1) if isinstance(base, Class) else None
            if result is not None:
                return result
        return None

    def outside(self, depth: int = 8) -> str:
        """Name of the first base that is not in the sources; empty: there is none."""
        for base in self.bases if depth else []:
            name = base.name if isinstance(base, Ref) else base.outside(depth - 1) if isinstance(base, Class) else "?"
            if name:
                return name
        return ""


@dataclass(eq=False)
class Instance(Value):
    """An object of a class of the sources; `call` made its part that is of a base outside."""

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
    """What `value` may be."""
    return value.options if isinstance(value, Either) else (value,)


def join(values: Sequence[Value], marks: Mark = Mark.NONE) -> Value:
    """One of `values`; which one depends on what `marks` say."""
    result: list[Value] = []
    for value in values:
        for option in options(value):
            if not any(_same(option, other) for other in result):
                result.append(option)
    if len(result) == 1:
        return result[0]
    every = marks | union(result)
    return Either(every, tuple(result)) if 0 < len(result) <= _MOST_OPTIONS else Opaque(every | Mark.UNKNOWN)


def union(values: Sequence[Value] | Iterator[Value]) -> Mark:
    """All that `values` depend on."""
    return reduce(or_, (value.marks for value in values), Mark.NONE)


def unknown(marks: Mark = Mark.NONE) -> Opaque:
    """A value of which nothing is known but what it depends on besides."""
    return Opaque(marks | Mark.UNKNOWN)


def text(value: Value | None) -> str | None:
    """The string that `value` is; None: it is not a known one."""
    return value.value if isinstance(value, Const) and isinstance(value.value, str) else None


def is_none(value: Value | None) -> bool:
    """Whether `value` is missing, or None for sure."""
    return value is None or (isinstance(value, Const) and value.value is None)


def _same(value: Value, other: Value) -> bool:
    if isinstance(value, Const) and isinstance(other, Const):
        return type(value.value) is type(other.value) and value.value == other.value and value.marks == other.marks
    if isinstance(value, Ref) and isinstance(other, Ref):
        return value.name == other.name
    return value is other
