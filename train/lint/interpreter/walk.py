"""Interpret a script as Python would run it: statements in order, functions when they are called.

Both arms of an unknown condition are followed, the body of a loop once; calls to code outside the sources are
recorded, see train.lint.interpreter.trace.
"""

from __future__ import annotations

import ast
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import IntEnum
from typing import Any

from train.lint.interpreter import conditions
from train.lint.interpreter.api_names import Kind, canonical, kind_of, star_names
from train.lint.interpreter.calls import Caller
from train.lint.interpreter.evaluate import ENVIRON, element
from train.lint.interpreter.execution import GaveUpError
from train.lint.interpreter.trace import Import, Loop, Trace
from train.lint.interpreter.values import (
    DIFFERS,
    Arguments,
    Class,
    Const,
    Frame,
    Function,
    Guard,
    Items,
    Made,
    Mark,
    Module,
    Opaque,
    Ref,
    Value,
    join,
    union,
    unknown,
)


class _Flow(IntEnum):
    """Ends of a block, ordered by how much code they skip."""

    NEXT = 0
    CONTINUE = 1
    BREAK = 2
    RETURN = 3
    EXIT = 4


def walk(trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> Trace:
    """Return the trace of a script.

    Args:
        trees: The script and its modules by their paths below one directory, with forward slashes.
        texts: Their lines.
        entry: The script.
    """
    walker = _Walker(trees, texts, entry)
    try:
        walker.execute(entry)
    except (GaveUpError, RecursionError):
        walker.trace.complete = False
    return walker.trace


class _Walker(Caller):
    """Runs the statements of one script."""

    def __init__(self, trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> None:
        super().__init__(trees, texts, entry)
        self._modules: dict[str, Module] = {}
        self._returns: list[list[Value]] = []
        self._outer_loops: list[int] = [0]

    # --- modules ----------------------------------------------------------------------------------------------------

    def execute(self, name: str) -> Module:
        """Return a module, executed at its first import."""
        if name in self._modules:
            return self._modules[name]
        shown = "__main__" if name == self.entry else name.removesuffix(".py").replace("/", ".")
        frame = Frame(name, {"__name__": Const(value=shown), "__file__": unknown()})
        self._modules[name] = Module(frame=frame)
        outer, self.frame = self.frame, frame
        self.run(self.trees[name].body)
        self.frame = outer
        return self._modules[name]

    def module(self, parts: list[str], base: str | None = None) -> Module | None:
        """Return a module of the sources; `base` is the ``__init__.py`` of its package."""
        directories = [posixpath.dirname(base)] if base is not None else [posixpath.dirname(self.entry), ""]
        if base is not None and not base.endswith("__init__.py"):
            return None
        for directory in dict.fromkeys(directories):
            result = self._find_module(directory, parts)
            if result is not None:
                return result
        return None

    def _find_module(self, directory: str, parts: Sequence[str]) -> Module | None:
        """Return the module `parts` below a directory, with its parent packages."""
        result: Module | None = None
        for depth in range(1, len(parts) + 1):
            path = posixpath.join(directory, *parts[:depth])
            name = next((item for item in (f"{path}/__init__.py", f"{path}.py") if item in self.trees), None)
            if name is None and not any(item.startswith(f"{path}/") for item in self.trees):
                return None
            parent, result = result, self.execute(name) if name is not None else self._directory(path)
            if parent is not None:
                parent.frame.names.setdefault(parts[depth - 1], result)
        return result

    def _directory(self, path: str) -> Module:
        """Return a package without an ``__init__.py``."""
        name = f"{path}/__init__.py"
        return self._modules.setdefault(name, Module(frame=Frame(name)))

    def _import(self, node: ast.Import) -> _Flow:
        for alias in node.names:
            parts = alias.name.split(".")
            local = self.module(parts)
            if local is not None:
                first = self.module(parts[:1])
                self.frame.bind(alias.asname or parts[0], local if alias.asname else first or unknown())
            else:
                full = canonical(alias.name)
                self._imported(full, node)
                top = Ref(name=full if alias.asname else full.partition(".")[0])
                self._bind_import(alias.asname or parts[0], top)
        return _Flow.NEXT

    def _importfrom(self, node: ast.ImportFrom) -> _Flow:
        parts = node.module.split(".") if node.module else []
        base = self._package(node.level)
        for alias in node.names:
            if node.level and base is None:
                self.frame.bind(alias.asname or alias.name, unknown())
                continue
            self._import_name(node, parts, alias, base)
        return _Flow.NEXT

    def _import_name(self, node: ast.ImportFrom, parts: list[str], alias: ast.alias, base: str | None) -> None:
        inside = self._find(parts, base) if parts else None
        name = alias.asname or alias.name
        if inside is not None and alias.name == "*":
            self.frame.names.update({k: v for k, v in inside.frame.names.items() if not k.startswith("_")})
            return
        if inside is not None and alias.name in inside.frame.names:
            self.frame.bind(name, inside.frame.names[alias.name])
            return
        deeper = self._find([*parts, alias.name], base)
        if deeper is not None or inside is not None:
            self.frame.bind(name, deeper or unknown())
        elif node.level:
            self.frame.bind(name, unknown())
        elif alias.name != "*":
            full = canonical(f"{'.'.join(parts)}.{alias.name}")
            self._imported(full, node)
            self._bind_import(name, Ref(name=full))
        else:
            star = canonical(".".join(parts))
            self._imported(star, node)
            self.frame.names.update({item: Ref(name=f"{star}.{item}") for item in star_names(star)})

    def _bind_import(self, name: str, value: Value) -> None:
        old = self.frame.names.get(name)
        in_fallback = any(guard.kind == "if" and guard.meaning == "fallback" for guard in self.guards)
        if not (in_fallback and isinstance(old, Ref | Module)):
            self.frame.bind(name, value)

    def _imported(self, full: str, node: ast.AST) -> None:
        self.trace.imports.append(Import(full, self.number(), self.location(node)))

    def _package(self, level: int) -> str | None:
        """Return the start directory of a relative import; None: outside the sources."""
        if not level:
            return None
        directory = posixpath.dirname(self.frame.module)
        for _ in range(level - 1):
            if not directory:
                return None
            directory = posixpath.dirname(directory)
        return directory

    def _find(self, parts: list[str], directory: str | None) -> Module | None:
        return self._find_module(directory, parts) if directory is not None else self.module(parts)

    # --- blocks -----------------------------------------------------------------------------------------------------

    def run(self, body: Sequence[ast.stmt]) -> _Flow:
        """Run a block to its end, or to the statement that leaves it."""
        for statement in body:
            self.tick()
            handler: Callable[[Any], _Flow] | None = getattr(self, f"_{type(statement).__name__.lower()}", None)
            flow = handler(statement) if handler is not None else self._other(statement)
            if self.exited:
                return _Flow.EXIT
            if flow is not _Flow.NEXT:
                return flow
        return _Flow.NEXT

    def _other(self, node: ast.stmt) -> _Flow:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr) and isinstance(getattr(child, "ctx", ast.Load()), ast.Load):
                self.evaluate(child)
        return _Flow.NEXT

    def _expr(self, node: ast.Expr) -> _Flow:
        self.evaluate(node.value)
        return _Flow.NEXT

    def _assign(self, node: ast.Assign) -> _Flow:
        value = self.evaluate(node.value)
        for target in node.targets:
            self.assign(target, value)
        return _Flow.NEXT

    def _annassign(self, node: ast.AnnAssign) -> _Flow:
        if node.value is not None:
            self.assign(node.target, self.evaluate(node.value))
        return _Flow.NEXT

    def _augassign(self, node: ast.AugAssign) -> _Flow:
        value = self.evaluate(node.value)
        name = node.target.id if isinstance(node.target, ast.Name) else ""
        old = self.frame.find(name) or unknown() if name else self.evaluate(node.target)
        marks = union((old, value))
        if isinstance(old, Ref) and old.name == ENVIRON:
            self.call_seen("os.environ.update", node, Arguments((value,)))
        elif not name:
            self.assign(node.target, unknown(marks))
        elif isinstance(old, Items):
            both = old.items + (value.items if isinstance(value, Items) else [])
            self.frame.bind(name, Items(marks, both, old.exact and isinstance(value, Items) and value.exact))
        else:
            loose = isinstance(old, Made) or isinstance(value, Made)
            self.frame.bind(name, unknown(marks) if loose else Opaque(marks))
        return _Flow.NEXT

    def _delete(self, node: ast.Delete) -> _Flow:
        for target in node.targets:
            if isinstance(target, ast.Subscript):
                owner = self.evaluate(target.value)
                if isinstance(owner, Ref) and owner.name == ENVIRON:
                    self.call_seen("os.environ.pop", target, Arguments((self.evaluate(target.slice),)))
        return _Flow.NEXT

    def _return(self, node: ast.Return) -> _Flow:
        value = self.evaluate(node.value) if node.value is not None else Const()
        if self._returns:
            self._returns[-1].append(value)
        self.record_exit(self.loops()[self._outer_loops[-1] :])
        return _Flow.RETURN

    def _raise(self, node: ast.Raise) -> _Flow:
        self._other(node)
        return _Flow.EXIT

    def _break(self, _: ast.Break) -> _Flow:
        self.record_exit(self.loops()[-1:])
        return _Flow.BREAK

    def _continue(self, _: ast.Continue) -> _Flow:
        return _Flow.CONTINUE

    # --- conditions -------------------------------------------------------------------------------------------------

    def _if(self, node: ast.If) -> _Flow:
        test = self.evaluate(node.test)
        holds = conditions.truth(test)
        if holds is not None:
            outer, self.main_only = self.main_only, self.main_only or _tests_main(node.test)
            flow = self.run(node.body if holds else node.orelse)
            self.main_only = outer
            return flow
        item, other = self.arms(node, test)
        before = dict(self.frame.names)
        first = self._arm(item, node.body)
        after, self.frame.names = self.frame.names, before
        second = self._arm(other, node.orelse)
        if first is _Flow.NEXT and second is _Flow.NEXT:
            self.frame.names = _joined(after, self.frame.names, test.marks)
            return _Flow.NEXT
        if first is not _Flow.NEXT and second is not _Flow.NEXT:
            return min(first, second)
        if first is _Flow.NEXT:
            self.frame.names = after
        rest, left = (item, second) if first is _Flow.NEXT else (other, first)
        self.guards.append(replace(rest, kind="rest") if left is _Flow.EXIT else rest)
        if left is _Flow.EXIT and rest.marks & DIFFERS:
            self.sticky.add(rest.number)
        return _Flow.NEXT

    def _arm(self, guard: Guard, body: Sequence[ast.stmt]) -> _Flow:
        with self.under(guard):
            flow = self.run(body)
        self.exited = False
        return flow

    def _match(self, node: ast.Match) -> _Flow:
        subject = self.evaluate(node.subject)
        before = dict(self.frame.names)
        ends = []
        after: list[dict[str, Value]] = []
        for case in node.cases:
            self.frame.names = dict(before)
            for name in _captured(case.pattern):
                self.frame.bind(name, unknown(subject.marks))
            ends.append(self._arm(self.guard("if", node, subject.marks), case.body))
            after.append(self.frame.names)
        names = before
        for item in after:
            names = _joined(names, item, subject.marks)
        self.frame.names = names
        complete = any(isinstance(case.pattern, ast.MatchAs) and case.pattern.pattern is None for case in node.cases)
        return min(ends) if complete and ends else _Flow.NEXT

    def _try(self, node: ast.Try) -> _Flow:
        caught = tuple(name for handler in node.handlers for name in _exceptions(handler.type))
        before = dict(self.frame.names)
        guard = replace(self.guard("try", node), caught=caught)
        with self.under(guard):
            flow = self.run(node.body)
        exited, self.exited = self.exited, False
        if flow is _Flow.NEXT:
            flow = self.run(node.orelse)
            exited = exited or self.exited
        ends = [flow]
        done = self.frame.names
        for handler in node.handlers:
            self.frame.names = {**done, **before} if flow is not _Flow.NEXT else dict(done)
            if handler.name:
                self.frame.bind(handler.name, unknown())
            ends.append(self._arm(self.guard("if", handler, meaning="fallback"), handler.body))
            if ends[-1] is _Flow.NEXT:
                done = {**self.frame.names, **done}
        self.frame.names = done
        last = self.run(node.finalbody)
        end = last if last is not _Flow.NEXT else min(ends)
        self.exited = self.exited or (end is _Flow.EXIT and exited)
        return end

    _trystar = _try

    # --- loops ------------------------------------------------------------------------------------------------------

    def _for(self, node: ast.For | ast.AsyncFor) -> _Flow:
        over = self.evaluate(node.iter)
        marks = over.marks if isinstance(over, Opaque | Const | Items) else Mark.NONE
        guard = self.guard("loop", node, marks)
        left = any(isinstance(item, ast.Break | ast.Return | ast.Raise | ast.Yield) for item in ast.walk(node))
        self.trace.loops.append(Loop(guard.number, over, guard.location, left, tuple(self.guards)))
        if isinstance(over, Items) and over.exact and not over.items:
            return self.run(node.orelse)
        return self._loop(guard, node, lambda: self.assign(node.target, element(over)))

    _asyncfor = _for

    def _while(self, node: ast.While) -> _Flow:
        self._forget_counters(node)
        test = self.evaluate(node.test)
        if conditions.truth(test) is False:
            return self.run(node.orelse)
        guard = self.guard("loop", node, test.marks, conditions.condition_of(test))
        return self._loop(guard, node, lambda: None)

    def _loop(self, guard: Guard, node: ast.For | ast.AsyncFor | ast.While, begin: Callable[[], None]) -> _Flow:
        before = dict(self.frame.names)
        self._forget_counters(node)
        with self.under(guard):
            begin()
            flow = self.run(node.body)
        if flow is _Flow.EXIT and self.exited and guard.marks is Mark.NONE and self._endless(node):
            return flow
        self.exited = False
        self.frame.names = _joined(before, self.frame.names, guard.marks)
        return self.run(node.orelse)

    def _endless(self, node: ast.stmt) -> bool:
        return isinstance(node, ast.While) and isinstance(node.test, ast.Constant) and bool(node.test.value)

    def _forget_counters(self, node: ast.AST) -> None:
        """Forget the constants that the loop reassigns."""
        for child in ast.walk(node):
            if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store):
                old = self.frame.names.get(child.id)
                if isinstance(old, Const):
                    self.frame.names[child.id] = unknown(old.marks)

    # --- with -------------------------------------------------------------------------------------------------------

    def _with(self, node: ast.With | ast.AsyncWith) -> _Flow:
        outer = len(self.scopes)
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self.assign(item.optional_vars, value)
            self._enter_scope(value)
        flow = self.run(node.body)
        del self.scopes[outer:]
        return flow

    _asyncwith = _with

    def _enter_scope(self, value: Value) -> None:
        if isinstance(value, Made) and value.call.method == "scope":
            is_strategy = kind_of(value.call.receiver) is Kind.STRATEGY
            self.scopes.append(value.call.receiver if is_strategy else None)
        elif not isinstance(value, Made) or value.call.name.startswith("?"):
            self.scopes.append(None)

    # --- definitions ------------------------------------------------------------------------------------------------

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> _Flow:
        static = False
        for decorator in node.decorator_list:
            self.evaluate(decorator)
            static = static or (isinstance(decorator, ast.Name) and decorator.id == "staticmethod")
        function = self.defined(node)
        function.static = static
        self.frame.bind(node.name, function)
        return _Flow.NEXT

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> _Flow:
        bases = [self.evaluate(base) for base in node.bases]
        frame = Frame(self.frame.module, outer=self.frame, is_class=True)
        outer, self.frame = self.frame, frame
        self.run(node.body)
        self.frame = outer
        self.frame.bind(node.name, Class(name=node.name, bases=bases, frame=frame))
        return _Flow.NEXT

    def enter(self, function: Function, given: Arguments) -> Value:
        """Run a function of the sources, and return its result."""
        node = function.node
        if self.deep(node) or _is_generator(node):
            return Opaque(Mark.UNKNOWN, "generator" if _is_generator(node) else "")
        names = self.bind(function, given)
        outer, self.frame = self.frame, self.new_frame(function, names)
        scopes, self.scopes = self.scopes, list(self.scopes)
        self.stack.append(node)
        self._returns.append([])
        self._outer_loops.append(len(self.loops()))
        start = len(self.guards)
        with self.bounded():
            if isinstance(node, ast.Lambda):
                self._returns[-1].append(self.evaluate(node.body))
                flow = _Flow.RETURN
            else:
                flow = self.run(node.body)
            marks = union([Opaque(guard.marks & DIFFERS) for guard in self.guards[start:]])
        result = self._returns.pop()
        self._outer_loops.pop()
        self.stack.pop()
        self.frame, self.scopes = outer, scopes
        if flow is _Flow.EXIT:
            self.exited = True
        if flow is _Flow.NEXT:
            result.append(Const())
        return join(result, marks) if result else unknown()


def _joined(item: dict[str, Value], other: dict[str, Value], marks: Mark) -> dict[str, Value]:
    """Return the names after a condition that depends on `marks`."""
    result = dict(item)
    for name, value in other.items():
        old = item.get(name)
        result[name] = value if old is None or old is value else join((old, value), marks)
    return result


def _tests_main(node: ast.expr) -> bool:
    return any(isinstance(item, ast.Name) and item.id == "__name__" for item in ast.walk(node))


def _is_generator(node: ast.AST) -> bool:
    waiting = list(ast.iter_child_nodes(node))
    while waiting:
        child = waiting.pop()
        if isinstance(child, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(child)
    return False


def _exceptions(node: ast.expr | None) -> list[str]:
    """Return the names of the exceptions that a handler catches; ``*``: all."""
    if node is None:
        return ["*"]
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    names = [item.attr if isinstance(item, ast.Attribute) else getattr(item, "id", "*") for item in items]
    return ["*" if name in ("Exception", "BaseException") else name for name in names]


def _captured(pattern: ast.pattern) -> list[str]:
    result = []
    for item in ast.walk(pattern):
        name = item.rest if isinstance(item, ast.MatchMapping) else getattr(item, "name", None)
        if isinstance(name, str):
            result.append(name)
    return result
