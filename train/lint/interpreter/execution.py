"""State of the interpreter: file, names, conditions, and scopes; and the recorded trace."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from train.lint.interpreter.trace import Exit, Trace, location_of
from train.lint.interpreter.values import Arguments, Call, Frame, Guard, Location, Mark, Value, loops_in

LARGEST_WALK = 100_000  # nodes, repeated ones included
DEEPEST_CALLS = 24


class GaveUpError(Exception):
    """The script is too large to be interpreted completely."""


class State:
    """The state that all parts of the interpreter share.

    Args:
        trees: The sources by the name that messages use.
        texts: Their lines.
        entry: The script.
    """

    def __init__(self, trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> None:
        self.trees = trees
        self.texts = texts
        self.entry = entry
        self.trace = Trace()
        self.frame = Frame(module=entry)
        self.guards: list[Guard] = []
        self.sticky: set[int] = set()  # numbers of conditions under which the program ends
        self.scopes: list[Value | None] = []  # None: something unknown was entered
        self.replica = False
        self.main_only = False
        self.exited = False
        self.seeded = False
        self.stack: list[ast.AST] = []
        self._left = LARGEST_WALK
        self._numbers = 0

    def tick(self) -> None:
        """Count one node.

        Raises:
            GaveUpError: There were too many.
        """
        self._left -= 1
        if self._left < 0:
            raise GaveUpError

    def number(self) -> int:
        """Return a new number."""
        self._numbers += 1
        return self._numbers

    def location(self, node: ast.AST) -> Location:
        """Return the location of `node`."""
        return location_of(node, self.frame.module, self.texts.get(self.frame.module, []))

    def call_seen(self, name: str, node: ast.AST, given: Arguments, receiver: Value | None = None) -> Call:
        """Record a call."""
        call = Call(
            given.args,
            given.keywords,
            given.starred,
            name=name,
            order=self.number(),
            location=self.location(node),
            receiver=receiver,
            scopes=tuple(scope for scope in self.scopes if scope is not None),
            has_known_scope=None not in self.scopes,
            guards=tuple(self.guards),
            replica=self.replica,
            main_only=self.main_only,
        )
        self.trace.calls.append(call)
        return call

    def record_exit(self, loops: tuple[int, ...]) -> None:
        """Record that `loops` may be left here."""
        if loops:
            self.trace.exits.append(Exit(loops, tuple(self.guards)))

    def loops(self) -> tuple[int, ...]:
        """Return the numbers of the enclosing loops, outermost first."""
        return loops_in(self.guards)

    @contextmanager
    def under(self, guard: Guard) -> Iterator[None]:
        """Evaluate the block under a condition."""
        outer = len(self.guards)
        with self.bounded():
            self.guards.append(guard)
            yield
            del self.guards[outer]

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Discard conditions that the block adds, except those under which the program continues."""
        outer = len(self.guards)
        yield
        self.guards[outer:] = [guard for guard in self.guards[outer:] if guard.number in self.sticky]

    def conditional(self) -> bool:
        """Return whether the current code may not run, or may run more than once."""
        return any(guard.kind not in ("try", "rest") for guard in self.guards)

    def guard(self, kind: str, node: ast.AST, marks: Mark = Mark.NONE, meaning: str = "") -> Guard:
        """Return a new condition at `node`."""
        return Guard(self.number(), 0, kind, self.location(node), marks, meaning)
