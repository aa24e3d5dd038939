"""What a script does, in its order: calls of what lies outside of it, and the conditions under which they happen."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from train.lint.values import Made, Mark, Value


@dataclass(frozen=True)
class Place:
    """Where something stands; line and column from 1."""

    file: str
    line: int
    column: int


def place_of(node: ast.AST, file: str, source: list[str]) -> Place:
    """Where `node` begins; of an attribute the line of its last name, where a chain runs over several lines."""
    line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
    if isinstance(node, ast.Call):
        func = node.func
        if isinstance(func, ast.Attribute) and func.end_lineno and func.end_lineno != line:
            line = func.end_lineno
            offset = (func.end_col_offset or 1) - len(func.attr.encode())
    text = source[line - 1] if 0 < line <= len(source) else ""
    return Place(file, line, len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "replace")) + 1)


@dataclass(frozen=True)
class Guard:
    """A condition under which something happens.

    Attributes:
        number: Of the branch or loop; the same for both its arms.
        arm: 0 where it holds, 1 where it does not.
        kind: ``if``, ``loop``, ``try`` or ``called`` (by something outside the sources, if at all).
        marks: What the condition depends on.
        what: ``chief``, ``not_chief``, ``outside`` (a task beside the workers), or empty.
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
        return all(guard.kind in ("loop", "try") for guard in self.guards)

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


def apart(one: Call, other: Call) -> bool:
    """Whether never both happen: they are in different arms of one condition."""
    arms = {guard.number: guard.arm for guard in one.guards}
    return any(arms.get(guard.number, guard.arm) != guard.arm for guard in other.guards)


@dataclass(frozen=True)
class Leave:
    """A loop may be left, or the rest of it passed over, under `guards`."""

    loops: tuple[int, ...]
    guards: tuple[Guard, ...]


@dataclass(eq=False)
class Loop:
    """A `for` over `over`, and whether something in its body leaves it."""

    number: int
    over: Value
    place: Place
    left: bool
    guards: tuple[Guard, ...] = ()


@dataclass(frozen=True)
class Import:
    """A module or name outside the sources was imported."""

    name: str
    order: int
    place: Place


@dataclass(eq=False)
class Trace:
    """All that the walk saw; `complete` unless it gave up before the end."""

    calls: list[Call] = field(default_factory=list)
    leaves: list[Leave] = field(default_factory=list)
    loops: list[Loop] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    reads: set[str] = field(default_factory=set)  # variables of the environment
    complete: bool = True

    def made(self, call: Call) -> Made:
        """A value for what `call` returns."""
        return Made(Mark.UNKNOWN, call=call)
