"""Follow a script as Python would run it: statements in order, functions when they are called.

Both arms of an unknown condition are followed, the body of a loop once. Nothing is executed.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from train.lint.evaluator import ENVIRON, Evaluator, GaveUpError, ProgramEnd, element, join
from train.lint.names import STRATEGY, canonical, kind_of
from train.lint.values import (
    DIFFERS,
    Call,
    Const,
    Frame,
    Function,
    Guard,
    Items,
    Mark,
    Scope,
    Value,
    condition_of,
    sequence,
    truth,
    union,
    unknown,
)

_DEEPEST = 24  # calls in calls


class _End(IntEnum):
    """Ends of a block, ordered by how much code they skip."""

    NEXT = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3
    EXIT = 4


class Trace(NamedTuple):
    """The events of a script, and whether these are all."""

    events: list[Call]
    complete: bool


def trace(trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> Trace:
    """Return the events of a script.

    Args:
        trees: The script and its modules by their paths below one directory, with forward slashes.
        texts: Their lines.
        entry: The script.
    """
    tracer = _Tracer(trees, texts, entry)
    try:
        tracer.execute(entry)
    except ProgramEnd:
        pass
    except (GaveUpError, RecursionError):
        return Trace(tracer.events, complete=False)
    return Trace(tracer.events, complete=True)


class _Tracer(Evaluator):
    """Follows the statements of one script."""

    def __init__(self, trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> None:
        super().__init__(trees, texts, entry)
        self._modules: dict[str, Scope] = {}
        self._stack: list[ast.AST] = []
        self._returns: list[list[Value]] = []
        self._outer_loops = 0  # of the function that runs

    # --- modules ----------------------------------------------------------------------------------------------------

    def execute(self, name: str) -> Scope:
        """Return a module, run at its first import."""
        if name not in self._modules:
            main = "__main__" if name == self.entry else name
            frame = Frame(name, {"__name__": Const(value=main), "__file__": unknown()})
            self._modules[name] = Scope(frame=frame)
            outer, self.frame = self.frame, frame
            self.run(self.trees[name].body if name in self.trees else [])
            self.frame = outer
        return self._modules[name]

    def module(self, parts: Sequence[str], package: str | None = None) -> Scope | None:
        """Run and return a module of the sources, or of one of its packages; None: another module."""
        if package is not None:
            return self._find(posixpath.dirname(package), parts) if package.endswith("__init__.py") else None
        return self._find(posixpath.dirname(self.entry), parts) or self._find("", parts)

    def _find(self, directory: str, parts: Sequence[str]) -> Scope | None:
        """Return the module `parts` below a directory, after its parent packages."""
        result: Scope | None = None
        for depth in range(1, len(parts) + 1):
            path = posixpath.join(directory, *parts[:depth])
            name = (
                f"{path}.py"
                if f"{path}.py" in self.trees and f"{path}/__init__.py" not in self.trees
                else f"{path}/__init__.py"
            )
            if name not in self.trees and not any(other.startswith(f"{path}/") for other in self.trees):
                return None
            parent, result = result, self.execute(name)
            if parent is not None:
                parent.frame.names.setdefault(parts[depth - 1], result)
        return result

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            parts = alias.name.split(".")
            local = self.module(parts)
            if local is not None:
                self.frame.bind(alias.asname or parts[0], local if alias.asname else self.module(parts[:1]) or local)
                continue
            name = canonical(alias.name)
            self.record("import", node, Value(name))
            self.frame.bind(alias.asname or parts[0], _outside(name if alias.asname else name.partition(".")[0]))

    def _importfrom(self, node: ast.ImportFrom) -> None:
        parts = node.module.split(".") if node.module else []
        above = self.frame.module.split("/")[: -node.level] if node.level else None
        is_outside = node.level > len(self.frame.module.split("/"))

        def find(parts: list[str]) -> Scope | None:
            return self._find("/".join(above), parts) if above is not None else self.module(parts)

        inside = find(parts) if parts and not is_outside else None
        for alias in node.names:
            name = alias.asname or alias.name
            if inside is not None and alias.name == "*":
                self.frame.names.update({k: v for k, v in inside.frame.names.items() if not k.startswith("_")})
                continue
            result = inside.frame.names.get(alias.name) if inside is not None else None
            result = result or (None if is_outside or alias.name == "*" else find([*parts, alias.name]))
            if result is None and inside is None and not node.level:
                full = canonical(".".join(parts) if alias.name == "*" else f"{node.module}.{alias.name}")
                self.record("import", node, Value(full))
                result = _outside(full)
            self.frame.bind(name, result or unknown())

    # --- blocks -----------------------------------------------------------------------------------------------------

    def run(self, body: Sequence[ast.stmt]) -> _End:
        """Run a block to its end, or to the statement that leaves it."""
        for statement in body:
            handler: Callable[[Any], _End | None] = getattr(self, f"_{type(statement).__name__.lower()}", self._other)
            end = handler(statement)
            if end is not None and end is not _End.NEXT:
                return end
        return _End.NEXT

    def _run_under(self, guard: Guard, body: Sequence[ast.stmt]) -> _End:
        return self.run_under([guard], lambda: self.run(body), _End.EXIT)

    def _other(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)

    def _assign(self, node: ast.Assign) -> None:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)

    def _annassign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))

    def _augassign(self, node: ast.AugAssign) -> None:
        value = self.evaluate(node.value)
        is_item = isinstance(node.target, ast.Subscript)
        old = unknown() if is_item else self.evaluate(node.target)
        if old.name == ENVIRON:
            self.record("os.environ.update", node, value)
        elif isinstance(old, Items) and isinstance(value, Items):
            both = [*old.items.values(), *value.items.values()]
            self.assign(node.target, sequence(both, exact=old.exact and value.exact))
        else:
            self.assign(node.target, Value(marks=old.marks | value.marks))

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self.evaluate(target.value).name == ENVIRON:
                self.record("os.environ.pop", target, self.evaluate(target.slice))

    def _return(self, node: ast.Return) -> _End:
        self._returns[-1].append(self.evaluate(node.value) if node.value is not None else Const())
        self._leave(node, self._loops()[self._outer_loops :])
        return _End.RETURN

    def _raise(self, node: ast.Raise) -> None:
        self._other(node)
        raise ProgramEnd

    def _break(self, node: ast.Break) -> _End:
        self._leave(node, self._loops()[-1:])
        return _End.BREAK

    def _continue(self, _: ast.Continue) -> _End:
        return _End.CONTINUE

    def _loops(self) -> tuple[int, ...]:
        return tuple(guard.number for guard in self.guards if guard.kind == "loop")

    def _leave(self, node: ast.stmt, loops: tuple[int, ...]) -> None:
        if loops:
            self.record("leave", node, left=loops)

    # --- conditions -------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> _End:
        test = self.evaluate(node.test)
        holds = truth(test)
        if holds is not None:
            is_main = any(isinstance(item, ast.Name) and item.id == "__name__" for item in ast.walk(node.test))
            with self.under(*([self.guard("main", node)] if is_main else [])):
                return self.run(node.body if holds else node.orelse)
        arms = self.arms(node, test)
        before = dict(self.frame.names)
        ends = [self._run_under(arms[0], node.body)]
        after, self.frame.names = self.frame.names, before
        ends.append(self._run_under(arms[1], node.orelse))
        if ends[0] is _End.NEXT and ends[1] is _End.NEXT:
            self.frame.names = _joined(after, self.frame.names, test.marks)
            return _End.NEXT
        if _End.NEXT not in ends:
            return _left(min(ends))
        if ends[0] is _End.NEXT:
            self.frame.names = after
        rest, left = arms[ends.index(_End.NEXT)], max(ends)
        self.guards.append(rest._replace(kind="rest") if left is _End.EXIT else rest)
        return _End.NEXT

    def _match(self, node: ast.Match) -> None:
        subject = self.evaluate(node.subject)
        before = self.frame.names
        for case in node.cases:
            self.frame.names = dict(before)
            for item in ast.walk(case.pattern):
                self.frame.names[str(getattr(item, "name", ""))] = unknown()
            self._run_under(self.guard("if", node, subject.marks), case.body)
            before = _joined(before, self.frame.names, subject.marks)
        self.frame.names = before

    def _try(self, node: ast.Try) -> _End:
        caught = tuple(name for handler in node.handlers for name in _exceptions(handler.type))
        end = self._run_under(self.guard("try", node)._replace(caught=caught), node.body)
        ends = [end if end is not _End.NEXT else self.run(node.orelse)]
        done = self.frame.names
        for handler in node.handlers:
            self.frame.names = dict(done)
            if handler.name:
                self.frame.bind(handler.name, unknown())
            ends.append(self._run_under(self.guard("if", handler), handler.body))
            if ends[-1] is _End.NEXT:  # of an import and its replacement, the first counts
                done = self.frame.names if ends[0] is not _End.NEXT else {**self.frame.names, **done}
        self.frame.names = done
        last = self.run(node.finalbody)
        return _left(last if last is not _End.NEXT else min(ends))

    _trystar = _try

    # --- loops and with ---------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor) -> _End:
        over = self.evaluate(node.iter)
        if isinstance(over, Items) and over.exact and not over.items:
            return self.run(node.orelse)
        left = any(isinstance(item, ast.Break | ast.Return | ast.Raise | ast.Yield) for item in ast.walk(node))
        self.record("for", node, over, given=Call((over,), starred=left))
        marks = over.marks if over.call is None and over.of is None else Mark.NONE
        guard = self.guard("loop", node, marks)
        return self._loop(guard, node, lambda: self.assign(node.target, element(over)))

    _asyncfor = _for

    def _while(self, node: ast.While) -> _End:
        self._forget_counters(node)
        test = self.evaluate(node.test)
        if truth(test) is False:
            return self.run(node.orelse)
        guard = self.guard("loop", node, test.marks, condition_of(test))
        end = self._loop(guard, node, lambda: None)
        return _left(_End.EXIT) if end is _End.EXIT and truth(test) else _End.NEXT

    def _loop(self, guard: Guard, node: ast.For | ast.AsyncFor | ast.While, begin: Callable[[], None]) -> _End:
        before = dict(self.frame.names)
        self._forget_counters(node)
        begin()
        end = self._run_under(guard, node.body)
        self.frame.names = _joined(before, self.frame.names, guard.marks)
        return end if end is _End.EXIT and isinstance(node, ast.While) else self.run(node.orelse)

    def _forget_counters(self, node: ast.AST) -> None:
        """Forget the constants that the loop reassigns."""
        for child in (child for child in ast.walk(node) if isinstance(child, ast.Name)):
            if isinstance(child.ctx, ast.Store) and isinstance(self.frame.names.get(child.id), Const):
                self.frame.names[child.id] = unknown()

    def _with(self, node: ast.With | ast.AsyncWith) -> _End:
        outer = len(self.scopes)
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
            if value.call is not None and value.call.method == "scope":
                self.scopes.append(value.call.receiver if kind_of(value.call.receiver) == STRATEGY else None)
            elif value.call is None or value.call.name.startswith("?"):
                self.scopes.append(None)
        end = self.run(node.body)
        del self.scopes[outer:]
        return end

    _asyncwith = _with

    # --- definitions ------------------------------------------------------------------------------------------------

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.evaluate(decorator)
        self.frame.bind(node.name, self._lambda(node))

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> None:
        bases = [self.evaluate(base) for base in node.bases]
        outer, self.frame = self.frame, Frame(self.frame.module, outer=self.frame, is_class=True)
        self.run(node.body)
        frame, self.frame = self.frame, outer
        self.frame.bind(node.name, Scope(frame=frame, bases=bases))

    def enter(self, function: Function, given: Call) -> Value:
        """Run a function of the sources; return its result."""
        node = function.node
        if len(self._stack) >= _DEEPEST or node in self._stack or _is_generator(node):
            return unknown()
        shared = {
            name for item in ast.walk(node) if isinstance(item, ast.Global | ast.Nonlocal) for name in item.names
        }
        frame = Frame(function.frame.module, _bind(function, given), function.frame, frozenset(shared))
        outer = self.frame, self.scopes, self._outer_loops
        self.frame, self.scopes, self._outer_loops = frame, list(self.scopes), len(self._loops())
        self._stack.append(node)
        self._returns.append([])
        start = len(self.guards)
        try:
            with self.under():
                if isinstance(node, ast.Lambda):
                    self._returns[-1].append(self.evaluate(node.body))
                elif self.run(node.body) is _End.NEXT:
                    self._returns[-1].append(Const())
                marks = union(Value(marks=guard.marks & DIFFERS) for guard in self.guards[start:])
        finally:
            self._stack.pop()
            result = self._returns.pop()
            self.frame, self.scopes, self._outer_loops = outer
        return join(result, marks) if result else unknown()


def _outside(name: str) -> Value:
    return Value(name, Mark.UNKNOWN)


def _bind(function: Function, given: Call) -> dict[str, Value]:
    """Return the parameters of a function in a call."""
    parameters = function.node.args
    plain = [argument.arg for argument in (*parameters.posonlyargs, *parameters.args)]
    named = [*plain, *(argument.arg for argument in parameters.kwonlyargs)]
    args = [*([function.owner] if function.owner is not None else []), *given.args]
    defaults = {} if given.starred else function.defaults
    result = {name: defaults.get(name) or unknown() for name in named} | dict(zip(plain, args, strict=False))
    result |= {name: value for name, value in given.keywords.items() if name in named}
    if parameters.vararg is not None:
        result[parameters.vararg.arg] = sequence(args[len(plain) :], exact=not given.starred)
    if parameters.kwarg is not None:
        rest = {name: value for name, value in given.keywords.items() if name not in named}
        result[parameters.kwarg.arg] = Items(marks=union(rest.values()), items=rest, exact=not given.starred)
    return result


def _left(end: _End) -> _End:
    """Return the end of a block; the end of the program ends the blocks around it as well."""
    if end is _End.EXIT:
        raise ProgramEnd
    return end


def _joined(first: dict[str, Value], second: dict[str, Value], marks: Mark) -> dict[str, Value]:
    """Return the names after a condition that depends on `marks`."""
    both = {
        name: join([first[name], second[name]], marks)
        for name in first.keys() & second.keys()
        if first[name] is not second[name]
    }
    return {**second, **first, **both}


def _is_generator(node: ast.AST) -> bool:
    if isinstance(node, ast.Yield | ast.YieldFrom):
        return True
    inner = (
        child
        for child in ast.iter_child_nodes(node)
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef)
    )
    return any(map(_is_generator, inner))


def _exceptions(node: ast.expr | None) -> list[str]:
    """Return the names of the exceptions that a handler catches; ``*``: all."""
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    names = [ast.unparse(item).rpartition(".")[2] if item is not None else "*" for item in items]
    return ["*" if name in ("Exception", "BaseException") else name for name in names]
