"""Values as far as they are known without running the script, and the events of its run."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Flag, IntEnum, auto
from functools import reduce
from operator import or_
from typing import Any, NamedTuple


class Mark(Flag):
    """Influences that a value depends on."""

    NONE = 0
    UNKNOWN = auto()  # code that is not followed
    GIVEN = auto()  # arguments and variables of the job, the same for all workers
    REPLICAS = auto()  # the number of workers, or a number whose name suggests a number for all of them
    ROLE = auto()  # type and index of the task
    TIME = auto()  # the clock
    RANDOM = auto()  # a random number
    HOST = auto()  # the computer or the process
    LOCAL = auto()  # a result of one worker's share of the data
    TEMPORARY = auto()  # a directory that is deleted when the process ends
    TASK_PATH = auto()  # a directory that fleet gives only to this task


DIFFERS = Mark.ROLE | Mark.TIME | Mark.RANDOM | Mark.HOST | Mark.LOCAL
"""Influences that differ between workers."""


class Location(NamedTuple):
    """A location in a source; line and column from 1."""

    file: str
    line: int
    column: int

    def seen_from(self, other: Location) -> str:
        """Return ``line 12``, or ``data.py:12`` if `other` is in another file."""
        return f"line {self.line}" if self.file == other.file else f"{self.file}:{self.line}"


class Guard(NamedTuple):
    """A condition under which code runs.

    Attributes:
        number: Number of the condition; the same for both its arms.
        arm: 0 if the condition holds, 1 if not.
        kind: ``if``, ``main`` (the script is not imported), ``rest`` (of a program that ends in the other arm),
            ``loop``, or ``try``.
        location: Location of the condition.
        marks: What it depends on.
        meaning: ``chief``, ``not_chief``, ``inside`` (the workers), ``outside`` (another task), ``has_tf_config``,
            ``no_tf_config``, or empty.
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
class Value:
    """A value, compared by identity.

    Attributes:
        name: Full name, independent of aliases: ``tensorflow.keras.Model``, ``os.environ[TF_CONFIG][task]``; of an
            object, the name of its class; beginning with ``?`` if it is unknown.
        marks: What it depends on.
        meaning: Its meaning for the task, such as ``index``; ``path:/a`` for a path that begins with ``/a``.
        call: The call that created it.
        cls: Its class in the sources.
        of: The object of which it is an attribute or an element.
        parts: Its known attributes.
    """

    name: str = "?"
    marks: Mark = Mark.NONE
    meaning: str = ""
    call: Call | None = None
    cls: Scope | None = None
    of: Value | None = None
    parts: dict[str, Value] = field(default_factory=dict)

    @property
    def made(self) -> Call:
        """The call that created it; one without a name, with unknown arguments and scopes, if it is unknown."""
        return self.call or NO_CALL


@dataclass(eq=False)
class Call:
    """An event of the run: a call of code outside the sources.

    Other events have the names ``import`` (of a name), ``for`` (over a value), ``leave`` (a loop), and ``test`` (of
    the task's type or index); an assignment to a variable of the environment is ``os.environ.__setitem__``.

    Attributes:
        args: Positional arguments.
        keywords: Named arguments.
        starred: True if there may be unknown arguments.
        name: Full name of the function: ``tensorflow.data.Dataset.batch``, independent of aliases.
        order: Increases with each event.
        location: Its location.
        receiver: The object of a method; MISSING: it is a function.
        scopes: Strategies whose scope contains it.
        has_known_scope: False if it may be in an unknown scope.
        guards: Conditions, outermost first.
        replica: True if it is in a function that a strategy runs on every replica.
        returned: Result of a function that was passed to this call and that the call has run.
        left: Numbers of the loops that a ``leave`` leaves.
    """

    args: Sequence[Value] = ()
    keywords: Mapping[str, Value] = field(default_factory=dict)
    starred: bool = False
    name: str = ""
    order: int = 0
    location: Location = field(default_factory=lambda: Location("", 1, 1))
    receiver: Value = field(default_factory=lambda: MISSING)
    scopes: tuple[Value, ...] = ()
    has_known_scope: bool = True
    guards: tuple[Guard, ...] = ()
    replica: bool = False
    returned: Value | None = None
    left: tuple[int, ...] = ()

    def argument(self, name: str, position: int = -1) -> Value:
        """Return an argument by its name or position (from 0); MISSING if it is not given."""
        if name in self.keywords:
            return self.keywords[name]
        return self.args[position] if 0 <= position < len(self.args) else MISSING

    def everything(self) -> list[Value]:
        """Return all arguments."""
        return [*self.args, *self.keywords.values()]

    @property
    def method(self) -> str:
        """Last part of the name."""
        return self.name.rpartition(".")[2]

    @property
    def sure(self) -> bool:
        """True if it runs whenever the script reaches it, at least in some task."""
        of_a_task = ("chief", "not_chief", "inside", "outside", "has_tf_config")
        return all(guard.kind != "if" or guard.meaning in of_a_task for guard in self.guards)

    @property
    def loops(self) -> tuple[int, ...]:
        """Numbers of the enclosing loops, outermost first."""
        return tuple(guard.number for guard in self.guards if guard.kind == "loop")

    def excludes(self, other: Call) -> bool:
        """Return whether both are in different arms of one condition."""
        arms = {guard.number: guard.arm for guard in self.guards}
        return any(arms.get(guard.number, guard.arm) != guard.arm for guard in other.guards)


@dataclass(eq=False)
class Const(Value):
    """A constant of the script."""

    value: object = None


MISSING: Const = Const()
NO_CALL = Call(starred=True, has_known_scope=False)


@dataclass(eq=False)
class Items(Value):
    """A list or a dictionary by its known keys; `exact` unless it may have other elements."""

    items: dict[Any, Value] = field(default_factory=dict)
    exact: bool = True


@dataclass(eq=False)
class Frame:
    """Names of one function, class, or module; `outer` has the enclosing names."""

    module: str
    names: dict[str, Value] = field(default_factory=dict)
    outer: Frame | None = None
    shared: frozenset[str] = frozenset()  # declared global or nonlocal
    is_class: bool = False

    def find(self, name: str) -> Value | None:
        """Return the value of a name; None if unknown."""
        frame = self.outer
        while frame is not None and (name not in frame.names or frame.is_class):
            frame = frame.outer
        return self.names.get(name) or (frame.names[name] if frame is not None else None)

    def bind(self, name: str, value: Value) -> None:
        """Bind a name to a value."""
        frame = self
        while name in self.shared and frame.outer is not None and (frame is self or name not in frame.names):
            frame = frame.outer
        frame.names[name] = value


@dataclass(eq=False)
class Function(Value):
    """A function or lambda of the sources, bound to `owner` if it is a method."""

    node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda = field(kw_only=True)
    frame: Frame = field(kw_only=True)
    defaults: dict[str, Value] = field(default_factory=dict)
    owner: Value | None = None

    @property
    def decorators(self) -> set[str]:
        """The last names of its decorators."""
        nodes = [] if isinstance(self.node, ast.Lambda) else self.node.decorator_list
        return {ast.unparse(node).rpartition(".")[2] for node in nodes}


@dataclass(eq=False)
class Scope(Value):
    """A class or module of the sources, with the names in it."""

    frame: Frame = field(kw_only=True)
    bases: Sequence[Value] = ()

    def find(self, name: str, *, inherited: bool = False) -> Value | None:
        """Return an attribute, also of a base in the sources; `inherited`: only of a base."""
        if name in self.frame.names and not inherited:
            return self.frame.names[name]
        values = (base.find(name) for base in self.bases if isinstance(base, Scope) and base is not self)
        return next((value for value in values if value is not None), None)

    @property
    def outside(self) -> str:
        """The name of the first base outside the sources; empty: none."""
        names = (base.outside if isinstance(base, Scope) else base.name for base in self.bases)
        return next(filter(None, names), "")


def union(values: Iterable[Value]) -> Mark:
    """Return the marks of all values."""
    return reduce(or_, (value.marks for value in values), Mark.NONE)


def unknown(marks: Mark = Mark.NONE) -> Value:
    """Return an unknown value with its marks."""
    return Value(marks=marks | Mark.UNKNOWN)


def sequence(values: Sequence[Value], *, exact: bool = True) -> Items:
    """Return a list."""
    return Items(marks=union(values), items=dict(enumerate(values)), exact=exact)


def text(value: Value | None) -> str | None:
    """Return the string that a value is; None if unknown."""
    return value.value if isinstance(value, Const) and isinstance(value.value, str) else None


def is_none(value: Value) -> bool:
    """Return whether a value is missing or certainly None."""
    return isinstance(value, Const) and value.value is None


def inner(value: Value, depth: int = 4) -> Iterator[Value]:
    """Yield a value and, of a list or dictionary, the values in it."""
    yield value
    for part in value.items.values() if isinstance(value, Items) and depth else ():
        yield from inner(part, depth - 1)


# --- ends of blocks -------------------------------------------------------------------------------------------------


class ProgramEnd(Exception):
    """The program ends, or raises an exception."""


class End(IntEnum):
    """Ends of a block, ordered by how much code they skip."""

    NEXT = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3
    EXIT = 4


def passed(end: End) -> End:
    """Return the end of a block; the end of the program ends the blocks around it as well."""
    if end is End.EXIT:
        raise ProgramEnd
    return end
