"""Follow a script as Python would run it: statements in order, functions when they are called.

Both arms of an unknown condition are followed, the body of a loop once. Expressions are evaluated as far as their
values are known; calls of code outside the sources are recorded. Nothing is executed.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, TypeVar

from train.lint import names, operations
from train.lint.names import canonical, is_in, kind_of
from train.lint.operations import added, element, join, joined, marks_of_result, result_of, table
from train.lint.values import (
    DIFFERS,
    MISSING,
    Call,
    Const,
    End,
    Frame,
    Function,
    Guard,
    Items,
    Location,
    Mark,
    ProgramEnd,
    Scope,
    Value,
    inner,
    passed,
    sequence,
    text,
    union,
    unknown,
)

_T = TypeVar("_T")
ENVIRON = "os.environ"
_LARGEST_RUN = 100_000  # nodes, repeated ones included
_DEEPEST = 24  # calls in calls
_CALLBACK_METHODS = re.compile(r"on_(?:train|epoch|batch|train_batch)_(?:begin|end)$")
_LEAVES = (ast.Break, ast.Return, ast.Raise, ast.Yield)

_Node = ast.expr | ast.stmt | ast.ExceptHandler


class _TooLargeError(Exception):
    """The script is too large to be followed completely."""


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
    with suppress(ProgramEnd):
        try:
            tracer.execute(entry)
        except (_TooLargeError, RecursionError):
            return Trace(tracer.events, complete=False)
    return Trace(tracer.events, complete=True)


class _Tracer:
    """Follows one script."""

    def __init__(self, trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> None:
        self.events: list[Call] = []
        self._trees = trees
        self._texts = texts
        self._entry = entry
        self._modules: dict[str, Scope] = {}
        self._frame = Frame(entry)
        self._guards: list[Guard] = []
        self._guards_made = 0
        self._scopes: list[Value | None] = []  # None: something unknown was entered
        self._replica = False
        self._left = _LARGEST_RUN
        self._stack: list[ast.AST] = []
        self._returns: list[list[Value]] = []
        self._outer_loops = 0  # of the function that runs

    # --- events and conditions --------------------------------------------------------------------------------------

    def _location(self, node: _Node) -> Location:
        """Return the start of a node; of a method in a chain of several lines, that of its name."""
        line, offset = node.lineno, node.col_offset
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.end_lineno != line:
            line = node.func.end_lineno or line
            offset = (node.func.end_col_offset or 1) - len(node.func.attr.encode())
        text = "".join(self._texts[self._frame.module][line - 1 : line])
        before = text.encode("utf-8", "surrogatepass")[:offset]
        return Location(self._frame.module, line, len(before.decode("utf-8", "replace")) + 1)

    def _record(self, name: str, node: _Node, *args: Value, given: Call | None = None, **more: Any) -> Call:
        """Record an event with these arguments."""
        call = replace(
            given or Call(args),
            name=name,
            order=len(self.events),
            location=self._location(node),
            scopes=tuple(scope for scope in self._scopes if scope is not None),
            has_known_scope=None not in self._scopes,
            guards=tuple(self._guards),
            replica=self._replica,
            **more,
        )
        self.events.append(call)
        return call

    def _guard(self, kind: str, node: _Node, marks: Mark = Mark.NONE, meaning: str = "") -> Guard:
        self._guards_made += 1
        return Guard(self._guards_made, 0, kind, self._location(node), marks, meaning)

    def _arms(self, node: _Node, test: Value) -> tuple[Guard, Guard]:
        """Return the two arms of a condition."""
        first = self._guard("if", node, test.marks, operations.condition_of(test))
        return first, first._replace(arm=1, meaning=operations.condition_of(operations.negated(test)))

    @contextmanager
    def _under(self, *guards: Guard) -> Iterator[None]:
        """Run the block under conditions; then remove these and those that it added.

        If the program ends in the block on some tasks only, the condition of the others remains.
        """
        outer = len(self._guards)
        self._guards += guards
        yield
        added = self._guards[outer:]
        self._guards[outer:] = [item for item in added if item.kind == "rest" and item.marks & DIFFERS]

    def _run_under(self, guards: Sequence[Guard], run: Callable[[], _T], end: _T) -> _T:
        """Return the result of `run` under conditions, or `end` if the program ends there."""
        frame, scopes, replica = self._frame, list(self._scopes), self._replica
        with self._under(*guards):
            try:
                return run()
            except ProgramEnd:
                self._frame, self._scopes, self._replica = frame, scopes, replica
                return end

    def _run_branches(self, guards: Iterable[Guard], bodies: Iterable[list[ast.stmt]], marks: Mark) -> list[End]:
        """Run blocks of which one is chosen; return their ends. The names are those of all that reach their end."""
        before, reached, ends = self._frame.names, [], []
        for guard, body in zip(guards, bodies, strict=True):
            self._frame.names = dict(before)
            ends.append(self._run_block(guard, body))
            reached += [self._frame.names] if ends[-1] is End.NEXT else []
        self._frame.names = reduce(lambda first, second: joined(first, second, marks), reached or [before])
        return ends

    # --- names ------------------------------------------------------------------------------------------------------

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression, after everything in it is evaluated."""
        self._left -= 1
        if self._left < 0:
            raise _TooLargeError
        handler: Callable[[Any], Value] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        values = [self.evaluate(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return values[0] if isinstance(node, ast.Starred | ast.Await) else unknown(union(values))

    def _name(self, node: ast.Name) -> Value:
        if node.id == "get_ipython":
            self._record("name.get_ipython", node)
        is_builtin = node.id == "get_ipython" or hasattr(builtins, node.id)
        return self._frame.find(node.id) or (Value(f"builtins.{node.id}") if is_builtin else unknown())

    def _attribute(self, node: ast.Attribute) -> Value:
        return self._find_attribute(self.evaluate(node.value), node.attr)

    def _find_attribute(self, value: Value, name: str) -> Value:
        """Return `value.name`."""
        if isinstance(value, Scope):
            return value.find(name) or unknown()
        if name in value.parts:
            return value.parts[name]
        is_super = value.name == "super()"
        value = value.of if is_super and value.of is not None else value
        member = value.cls.find(name, inherited=is_super) if value.cls is not None else None
        if not isinstance(member, Function):
            return member or self._part(value, f".{name}")
        bound = member if "staticmethod" in member.decorators else replace(member, owner=value)
        return self._enter(bound, Call()) if member.decorators & {"property", "cached_property"} else bound

    def _part(self, value: Value, path: str) -> Value:
        """Return an attribute or element of which only the name is known."""
        name = canonical(value.name + path)
        meaning, marks = names.meaning_of_name(name, value.marks)
        is_outside = path[0] == "." and value.call is None and value.of is None and value.name != "?"
        return Value(name, marks, meaning, of=None if is_outside else value)

    def _subscript(self, node: ast.Subscript) -> Value:
        value, key = self.evaluate(node.value), self.evaluate(node.slice)
        if value.name == ENVIRON:
            self._record("os.environ.__getitem__", node, key)
        return self._item(value, key)

    def _item(self, value: Value, key: Value, default: Value = MISSING) -> Value:
        """Return `value[key]`, or ``value.get(key, default)``."""
        name = key.value if isinstance(key, Const) else None
        if isinstance(value, Items):
            missing = unknown() if default is MISSING or name is None or not value.exact else default
            return value.items.get(name, missing) if isinstance(name, str | int) else join(value.items.values())
        if value.name == ENVIRON and name is None:
            return unknown()
        if value.call is not None or value.name.endswith("[]"):
            return element(value)
        result = self._part(value, f"[{name}]")
        result.marks |= key.marks if result.meaning else key.marks | default.marks
        return result

    # --- operators --------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        return Const(value=node.value)

    def _joinedstr(self, node: ast.JoinedStr | ast.FormattedValue) -> Value:
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(marks=union([self.evaluate(child) for child in children]))

    _formattedvalue = _joinedstr

    def _binop(self, node: ast.BinOp) -> Value:
        return added(self.evaluate(node.left), self.evaluate(node.right))

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return operations.negated(value)
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, int):
            return Const(value=-value.value)
        return Value(marks=value.marks)

    def _boolop(self, node: ast.BoolOp) -> Value:
        is_or = isinstance(node.op, ast.Or)
        result = [self.evaluate(node.values[0])]
        guards: list[Guard] = []
        for operand in node.values[1:]:
            holds = operations.truth(result[-1])
            if holds is is_or:
                break
            guards += [self._arms(node, result[-1])[is_or]] if holds is None else []
            result.append(self._evaluate_under(guards, operand))
        if all(operations.truth(value) is not None for value in result):
            return result[-1]
        if not is_or:
            return operations.both(result)
        # A condition on the task; otherwise one of the values.
        of_task = any(value.marks & Mark.ROLE and value.meaning not in ("index", "task") for value in result)
        if of_task or result[0].meaning in ("has_tf_config", "no_tf_config"):
            return operations.any_of(result)
        return join([value for value in result if operations.truth(value) is not False])

    def _compare(self, node: ast.Compare) -> Value:
        left, *values = [self.evaluate(item) for item in (node.left, *node.comparators)]
        op, right = node.ops[0], values[0]
        if len(values) > 1:
            return Value(marks=union([left, *values]))
        if isinstance(op, ast.In | ast.NotIn) and right.name == ENVIRON:
            self._record("os.environ.__contains__", node, left)
            meaning = "has_tf_config" if isinstance(op, ast.In) else "no_tf_config"
            return Value(meaning=meaning) if text(left) == "TF_CONFIG" else Value(marks=Mark.GIVEN)
        if isinstance(op, ast.In | ast.NotIn) and right.meaning in ("cluster", "tf_config"):
            return Value()
        meanings = {left.meaning, right.meaning}
        result = operations.compared(left, op, right)
        if "index" in meanings or ("type" in meanings and result.meaning in ("chief", "not_chief")):
            self._record("test", node, Value(meaning="index" if "index" in meanings else "type"))
        return result

    def _ifexp(self, node: ast.IfExp) -> Value:
        test = self.evaluate(node.test)
        holds = operations.truth(test)
        if holds is not None:
            return self.evaluate(node.body if holds else node.orelse)
        first, second = self._arms(node, test)
        values = [self._evaluate_under([first], node.body), self._evaluate_under([second], node.orelse)]
        return join(values, test.marks)

    def _evaluate_under(self, guards: Sequence[Guard], node: ast.expr) -> Value:
        return self._run_under(guards, lambda: self.evaluate(node), unknown())

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self._frame.bind(node.target.id, value)
        return value

    # --- collections and functions ----------------------------------------------------------------------------------

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        values, exact = self._elements(node.elts)
        return sequence(values, exact=exact)

    _tuple = _set = _list

    def _elements(self, nodes: Sequence[ast.expr]) -> tuple[list[Value], bool]:
        """Return the values of a list or of positional arguments, and whether these are all."""
        result: list[Value] = []
        exact = True
        for node in nodes:
            value = self.evaluate(node)
            if not isinstance(node, ast.Starred):
                result.append(value)
            elif isinstance(value, Items) and value.exact:
                result += value.items.values()
            else:
                exact = False
        return result, exact

    def _dict(self, node: ast.Dict) -> Items:
        keys = [self.evaluate(key) if key is not None else None for key in node.keys]
        return table(keys, [self.evaluate(value) for value in node.values])

    def _lambda(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Function:
        """Return a function with its default arguments."""
        args = node.args
        plain = [*args.posonlyargs, *args.args][::-1]
        pairs = [*zip(plain, args.defaults[::-1], strict=False), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        defaults = {name.arg: self.evaluate(value) for name, value in pairs if value is not None}
        return Function(node=node, frame=self._frame, defaults=defaults)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        outer, self._frame = self._frame, Frame(self._frame.module, outer=self._frame)
        parts: list[Value] = []
        with self._under():
            for loop in node.generators:
                parts.append(self.evaluate(loop.iter))
                self._bind(loop.target, element(parts[-1]))
                self._guards.append(self._guard("loop", node))
                parts += [self.evaluate(test) for test in loop.ifs]
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            values = [self.evaluate(result) for result in results]
        self._frame = outer
        return Items(marks=union([*parts, *values]), items={0: values[-1]}, exact=False)

    _setcomp = _generatorexp = _dictcomp = _listcomp

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        func = self.evaluate(node.func)
        args, exact = self._elements(node.args)
        keys = [Const(value=keyword.arg) if keyword.arg else None for keyword in node.keywords]
        keywords = table(keys, [self.evaluate(keyword.value) for keyword in node.keywords])
        given = Call(args, keywords.items, not exact or not keywords.exact)
        if func.cls is not None and func.of is None:
            func = self._find_attribute(func, "__call__")
        if isinstance(func, Function):
            return self._enter(func, given)
        if isinstance(func, Scope):
            return self._instance(func, node, given)
        if func.of is not None and not func.name.endswith("[]"):
            return self._method(func, func.of, node, given)
        if func.name == "?":
            return unknown(union(args) & DIFFERS)
        if func.call is not None or func.of is not None:
            return self._outside(f"{func.name}.__call__", func, node, given)
        return self._outside(func.name, MISSING, node, given)

    def _instance(self, cls: Scope, node: ast.expr, given: Call) -> Value:
        base = canonical(cls.outside)
        call = None if base in ("", "?", "builtins.object") else self._record(base, node, given=given)
        made = Value(names.class_made_by(base) if call is not None else "?", call=call, cls=cls)
        begin = cls.find("__init__")
        if isinstance(begin, Function):
            self._enter(replace(begin, owner=made), given)
        else:
            made.parts.update(given.keywords)
        return made

    def _method(self, func: Value, owner: Value, node: ast.expr, given: Call) -> Value:
        name, args = func.name.rpartition(".")[2], given.args
        if name in ("get", "pop", "setdefault") and args and (owner.meaning or isinstance(owner, Items)):
            return self._item(owner, args[0], args[1] if len(args) > 1 else Const() if name == "get" else MISSING)
        if func.meaning == "cluster":
            return func
        if isinstance(owner, Items):
            self._change(owner, name, given)
            return unknown(owner.marks)
        is_plain = isinstance(owner, Const) or (owner.call is None and not owner.marks & Mark.UNKNOWN)
        if is_plain and owner.name.startswith("?"):
            return Value(marks=union([func, *given.everything()]))
        return self._outside(func.name, owner, node, given)

    def _change(self, items: Items, name: str, given: Call) -> None:
        """Apply a method of a list or dictionary."""
        is_certain = all(guard.kind in ("try", "rest", "main") for guard in self._guards)
        if name in ("append", "add", "insert") and given.args:
            items.items[len(items.items)] = given.args[-1]
            items.marks |= given.args[-1].marks
            items.exact = items.exact and is_certain
        else:
            items.items.update(given.keywords)
            items.exact = False

    def _outside(self, name: str, receiver: Value, node: ast.expr, given: Call) -> Value:
        """Record a call of a function outside the sources."""
        args = given.args
        if name in ("os.environ.get", "os.getenv"):
            self._record(name, node, given=given)
            return self._item(Value(ENVIRON), args[0] if args else unknown(), given.argument("default", 1))
        if name == "builtins.super":
            return Value("super()", of=self._frame.find("self"))
        result = result_of(name, args)
        if result is not None:
            return result
        call = self._record(name, node, given=given, receiver=receiver)
        if is_in("exits", name):
            self._record("leave", node, left=call.loops)
            raise ProgramEnd
        given_scope = any(item.name.endswith(".scope()") for item in (*call.everything(), receiver))
        if given_scope or call.method == "experimental_set_strategy":
            self._scopes.append(None)  # it may be entered
        self._run_functions(call, node)
        if is_in("parses_arguments", name):
            return Value("?", Mark.GIVEN)
        marks = marks_of_result(call)
        return Value(marks=marks) if is_in("pure", name) else Value(names.class_made_by(name), marks, call=call)

    # --- functions that are run by what is called -------------------------------------------------------------------

    def _run_functions(self, call: Call, node: ast.expr) -> None:
        kind = kind_of(call.receiver)
        first = call.args[0] if call.args else call.keywords.get("fn") or call.keywords.get("dataset_fn")
        if kind == "model" and call.method in ("fit", "evaluate", "predict", "fit_generator"):
            self._run_callbacks(call, node)
        elif is_in("runs_main", call.name):
            main = first or self._frame.find("main")
            if isinstance(main, Function):
                self._enter(main, Call(starred=True))
        elif isinstance(first, Function) and kind == "strategy" and call.method in ("run", "experimental_run_v2"):
            outer, self._replica = self._replica, True
            call.returned = self._enter(first, operations.passed_on(call))
            self._replica = outer
        elif isinstance(first, Function) and is_in("takes_input_context", call.name):
            call.returned = self._enter(first, Call([Value("input_context")]))

    def _run_callbacks(self, call: Call, node: ast.expr) -> None:
        """Run the callbacks of a training."""
        functions: list[Value] = []
        for callback in inner(call.argument("callbacks", 5 if call.method == "fit" else -1), 1):
            if callback.cls is not None:
                callback.parts.setdefault("model", call.receiver)
                methods = filter(_CALLBACK_METHODS.match, callback.cls.frame.names)
                functions += [self._find_attribute(callback, name) for name in methods]
            elif callback.made.method == "LambdaCallback":
                functions += callback.made.everything()
        with self._under(self._guard("loop", node)):
            for function in functions:
                if isinstance(function, Function):
                    self._enter(function, Call(starred=True))

    def _enter(self, function: Function, given: Call) -> Value:
        """Run a function of the sources; return its result."""
        node = function.node
        shared = operations.shared_names(node)
        if len(self._stack) >= _DEEPEST or node in self._stack or shared is None:
            return unknown()
        frame = Frame(function.frame.module, operations.parameters(function, given), function.frame, shared)
        outer = self._frame, self._scopes, self._outer_loops
        self._frame, self._scopes, self._outer_loops = frame, list(self._scopes), len(self._loops())
        self._stack.append(node)
        self._returns.append([])
        start = len(self._guards)
        try:
            with self._under():
                if isinstance(node, ast.Lambda):
                    self._returns[-1].append(self.evaluate(node.body))
                elif self._run(node.body) is End.NEXT:
                    self._returns[-1].append(Const())
                marks = union(Value(marks=guard.marks & DIFFERS) for guard in self._guards[start:])
        finally:
            self._stack.pop()
            result = self._returns.pop()
            self._frame, self._scopes, self._outer_loops = outer
        return join(result, marks) if result else unknown()

    # --- modules ----------------------------------------------------------------------------------------------------

    def execute(self, name: str) -> Scope:
        """Return a module, run at its first import."""
        if name not in self._modules:
            main = "__main__" if name == self._entry else name
            frame = Frame(name, {"__name__": Const(value=main), "__file__": unknown()})
            self._modules[name] = Scope(frame=frame)
            outer, self._frame = self._frame, frame
            self._run(self._trees[name].body if name in self._trees else [])
            self._frame = outer
        return self._modules[name]

    def _module(self, parts: Sequence[str], level: int = 0) -> Scope | None:
        """Run and return a module of the sources, as an import with this number of dots; None: another module."""
        result: Scope | None = None
        for name, file in operations.module_files(self._trees, self._entry, self._frame.module, parts, level):
            parent, result = result, self.execute(file)
            if parent is not None:
                parent.frame.names.setdefault(name, result)
        return result

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            parts = alias.name.split(".")
            result: Value | None = self._module(parts)
            if result is not None:
                result = result if alias.asname else self._module(parts[:1])
            else:
                name = canonical(alias.name)
                self._record("import", node, Value(name))
                result = Value(name if alias.asname else name.partition(".")[0], Mark.UNKNOWN)
            self._frame.bind(alias.asname or parts[0], result or unknown())

    def _importfrom(self, node: ast.ImportFrom) -> None:
        parts = node.module.split(".") if node.module else []
        inside = self._module(parts, node.level)
        for alias in node.names:
            result: Value | None = None
            if inside is not None and alias.name == "*":
                public = {name: value for name, value in inside.frame.names.items() if not name.startswith("_")}
                self._frame.names.update(public)
            elif alias.name != "*":
                result = inside.frame.names.get(alias.name) if inside is not None else None
                result = result or self._module([*parts, alias.name], node.level)
            if result is None and inside is None and not node.level:
                name = canonical(".".join(parts) if alias.name == "*" else f"{node.module}.{alias.name}")
                self._record("import", node, Value(name))
                result = Value(name, Mark.UNKNOWN)
            self._frame.bind(alias.asname or alias.name, result or unknown())

    # --- assignment -------------------------------------------------------------------------------------------------

    def _bind(self, target: ast.expr, value: Value) -> None:
        """Bind a target to a value."""
        if isinstance(target, ast.Name):
            is_global = "global" in target.id.lower() and type(value) in (Value, Const)
            self._frame.bind(target.id, replace(value, marks=value.marks | Mark.REPLICAS) if is_global else value)
        elif isinstance(target, ast.Tuple | ast.List):
            exact = isinstance(value, Items) and value.exact and len(value.items) == len(target.elts)
            for index, item in enumerate(target.elts):
                self._bind(item, value.items[index] if exact and isinstance(value, Items) else element(value))
        elif isinstance(target, ast.Starred):
            self._bind(target.value, unknown(value.marks))
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value)
            self._store(owner.frame.names if isinstance(owner, Scope) else owner.parts, target.attr, value)
            if owner.of is not None:  # the attribute of an attribute
                owner.of.parts[owner.name.rpartition(".")[2]] = owner
        elif isinstance(target, ast.Subscript):
            owner, key = self.evaluate(target.value), self.evaluate(target.slice)
            if owner.name == ENVIRON:
                self._record("os.environ.__setitem__", target, key, value)
            elif isinstance(owner, Items):
                owner.marks |= value.marks
                owner.exact = owner.exact and isinstance(key, Const)
                self._store(owner.items, key.value if isinstance(key, Const) else None, value)

    def _store(self, values: dict[Any, Value], name: object, value: Value) -> None:
        doubtful = any(guard.kind == "if" for guard in self._guards)
        values[name] = join([values.get(name, unknown()), value]) if doubtful else value

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is not None:
            value = self.evaluate(node.value)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                self._bind(target, value)

    _annassign = _assign

    def _augassign(self, node: ast.AugAssign) -> None:
        value = self.evaluate(node.value)
        old = unknown() if isinstance(node.target, ast.Subscript) else self.evaluate(node.target)
        if old.name == ENVIRON:
            self._record("os.environ.update", node, value)
        else:
            self._bind(node.target, added(old, value))

    def _delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            if isinstance(target, ast.Subscript) and self.evaluate(target.value).name == ENVIRON:
                self._record("os.environ.pop", target, self.evaluate(target.slice))

    # --- blocks -----------------------------------------------------------------------------------------------------

    def _run(self, body: Sequence[ast.stmt]) -> End:
        """Run a block to its end, or to the statement that leaves it."""
        for statement in body:
            handler: Callable[[Any], End | None] = getattr(self, f"_{type(statement).__name__.lower()}", self._other)
            end = handler(statement)
            if end is not None and end is not End.NEXT:
                return end
        return End.NEXT

    def _run_block(self, guard: Guard, body: Sequence[ast.stmt]) -> End:
        return self._run_under([guard], lambda: self._run(body), End.EXIT)

    def _other(self, node: ast.stmt) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.evaluate(child)

    def _return(self, node: ast.Return) -> End:
        self._returns[-1].append(self.evaluate(node.value) if node.value is not None else Const())
        self._leave(node, self._loops()[self._outer_loops :])
        return End.RETURN

    def _raise(self, node: ast.Raise) -> None:
        self._other(node)
        raise ProgramEnd

    def _break(self, node: ast.Break) -> End:
        self._leave(node, self._loops()[-1:])
        return End.BREAK

    def _continue(self, _: ast.Continue) -> End:
        return End.CONTINUE

    def _loops(self) -> tuple[int, ...]:
        return tuple(guard.number for guard in self._guards if guard.kind == "loop")

    def _leave(self, node: ast.stmt, loops: tuple[int, ...]) -> None:
        if loops:
            self._record("leave", node, left=loops)

    def _if(self, node: ast.If) -> End:
        test = self.evaluate(node.test)
        holds = operations.truth(test)
        if holds is not None:
            is_main = any(isinstance(item, ast.Name) and item.id == "__name__" for item in ast.walk(node.test))
            with self._under(*([self._guard("main", node)] if is_main else [])):
                return self._run(node.body if holds else node.orelse)
        arms = self._arms(node, test)
        ends = self._run_branches(arms, [node.body, node.orelse], test.marks)
        if End.NEXT not in ends:
            return passed(min(ends))
        if max(ends) is not End.NEXT:
            rest = arms[ends.index(End.NEXT)]
            self._guards.append(rest._replace(kind="rest") if End.EXIT in ends else rest)
        return End.NEXT

    def _match(self, node: ast.Match) -> None:
        subject = self.evaluate(node.subject)
        for pattern in (item for case in node.cases for item in ast.walk(case.pattern)):
            self._frame.names[str(getattr(pattern, "name", ""))] = unknown()
        bodies = [*(case.body for case in node.cases), []]
        self._run_branches([self._guard("if", node, subject.marks) for _ in bodies], bodies, subject.marks)

    def _try(self, node: ast.Try) -> End:
        caught = tuple(name for handler in node.handlers for name in operations.exceptions(handler.type))
        end = self._run_block(self._guard("try", node)._replace(caught=caught), node.body)
        ends = [end if end is not End.NEXT else self._run(node.orelse)]
        done = self._frame.names
        for handler in node.handlers:
            self._frame.names = {**done, **({handler.name: unknown()} if handler.name else {})}
            ends.append(self._run_block(self._guard("if", handler), handler.body))
            if ends[-1] is End.NEXT:  # of an import and its replacement, the first counts
                done = self._frame.names if ends[0] is not End.NEXT else {**self._frame.names, **done}
        self._frame.names = done
        last = self._run(node.finalbody)
        return passed(last if last is not End.NEXT else min(ends))

    _trystar = _try

    def _for(self, node: ast.For | ast.AsyncFor) -> End:
        over = self.evaluate(node.iter)
        if not isinstance(over, Items) or over.items or not over.exact:
            self._record("for", node, over, starred=any(isinstance(item, _LEAVES) for item in ast.walk(node)))
            marks = over.marks if over.call is None and over.of is None else Mark.NONE
            self._loop(node, self._guard("loop", node, marks), element(over))
        return self._run(node.orelse)

    _asyncfor = _for

    def _while(self, node: ast.While) -> End:
        self._forget_counters(node)
        test = self.evaluate(node.test)
        if operations.truth(test) is not False:
            guard = self._guard("loop", node, test.marks, operations.condition_of(test))
            if self._loop(node, guard) is End.EXIT:
                return passed(End.EXIT) if operations.truth(test) else End.NEXT
        return self._run(node.orelse)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, guard: Guard, value: Value | None = None) -> End:
        before = dict(self._frame.names)
        self._forget_counters(node)
        if value is not None and not isinstance(node, ast.While):
            self._bind(node.target, value)
        end = self._run_block(guard, node.body)
        self._frame.names = joined(before, self._frame.names, guard.marks)
        return end

    def _forget_counters(self, node: ast.AST) -> None:
        """Forget the constants that the loop reassigns."""
        for child in (child for child in ast.walk(node) if isinstance(child, ast.Name)):
            if isinstance(child.ctx, ast.Store) and isinstance(self._frame.names.get(child.id), Const):
                self._frame.names[child.id] = unknown()

    def _with(self, node: ast.With | ast.AsyncWith) -> End:
        outer = len(self._scopes)
        for item in node.items:
            value = self.evaluate(item.context_expr)
            if item.optional_vars is not None:
                self._bind(item.optional_vars, value)
            if value.made.method == "scope":
                self._scopes.append(value.made.receiver if kind_of(value.made.receiver) == "strategy" else None)
            elif value.call is None or value.call.name.startswith("?"):
                self._scopes.append(None)
        end = self._run(node.body)
        del self._scopes[outer:]
        return end

    _asyncwith = _with

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.evaluate(decorator)
        self._frame.bind(node.name, self._lambda(node))

    _asyncfunctiondef = _functiondef

    def _classdef(self, node: ast.ClassDef) -> None:
        bases = [self.evaluate(base) for base in node.bases]
        outer, self._frame = self._frame, Frame(self._frame.module, outer=self._frame, is_class=True)
        self._run(node.body)
        frame, self._frame = self._frame, outer
        self._frame.bind(node.name, Scope(frame=frame, bases=bases))
