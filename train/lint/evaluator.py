"""Evaluate expressions as far as their values are known, and record the calls of code outside the sources."""

from __future__ import annotations

import ast
import builtins
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from train.lint.names import (
    DATASET_CREATOR,
    MODEL,
    MULTI_WORKER,
    STRATEGY,
    TFDS,
    canonical,
    class_made_by,
    keras_name,
    kind_of,
    meaning_of_name,
)
from train.lint.values import (
    DIFFERS,
    Call,
    Const,
    Frame,
    Function,
    Guard,
    Items,
    Location,
    Mark,
    Scope,
    Value,
    any_of,
    both,
    compared,
    condition_of,
    is_none,
    negated,
    sequence,
    text,
    truth,
    union,
    unknown,
)

_T = TypeVar("_T")
ENVIRON = "os.environ"
_LARGEST_RUN = 100_000  # nodes, repeated ones included
# The result depends on the arguments alone.
_PURE = re.compile(
    r"^(?:builtins\.(?:str|int|float|bool|len|abs|round|min|max|sum|repr|format|list|tuple|sorted|range|divmod|set)"
    r"|(?:os\.path|posixpath|math)\.\w+|os\.fspath|pathlib\.\w+|json\.dumps|copy\.(?:deep)?copy|shlex\.\w+"
    r"|tensorflow\.io\.gfile\.join)$"
)
_SAME = re.compile(
    r"^(?:json\.(?:loads|dumps)|ast\.literal_eval|builtins\.(?:eval|int|str)|os\.fspath|pathlib\.Path)$"
)
_ITERATES = re.compile(r"^(?:builtins\.(?:iter|enumerate|list)|tqdm\.tqdm)$")
_JOINS = re.compile(r"^(?:(?:os|posix)\.?path|tensorflow\.io\.gfile)\.join$")
_AS_RECEIVER = ("strftime", "isoformat", "timestamp", "numpy", "item", "name", "__enter__", "total_seconds")
_ARGUMENTS = re.compile(r"\.parse_(?:known_)?args(?:_into_dataclasses)?$|^argparse\.(?!.*ArgumentParser$)")
_EXITS = ("sys.exit", "os._exit", "builtins.exit", "builtins.quit", "os.abort")
_RUNS_MAIN = ("absl.app.run", "tensorflow.app.run", "fire.Fire", "typer.run")
_CALLBACK_METHODS = re.compile(r"on_(?:train|epoch|batch|train_batch)_(?:begin|end)$")


class ProgramEnd(Exception):
    """The program ends, or raises an exception."""


class GaveUpError(Exception):
    """The script is too large to be followed completely."""


class Evaluator(ABC):
    """Evaluates the expressions of one script.

    Args:
        trees: The sources by the name that messages use.
        texts: Their lines.
        entry: The script.
    """

    def __init__(self, trees: Mapping[str, ast.Module], texts: Mapping[str, list[str]], entry: str) -> None:
        self.trees = trees
        self.texts = texts
        self.entry = entry
        self.events: list[Call] = []
        self.frame = Frame(entry)
        self.guards: list[Guard] = []
        self.scopes: list[Value | None] = []  # None: something unknown was entered
        self._replica = False
        self._left = _LARGEST_RUN
        self._guards_made = 0

    @abstractmethod
    def enter(self, function: Function, given: Call) -> Value:
        """Run a function of the sources; return its result."""

    @abstractmethod
    def module(self, parts: Sequence[str], package: str | None = None) -> Scope | None:
        """Run and return a module of the sources, or of one of its packages; None: another module."""

    # --- events and conditions --------------------------------------------------------------------------------------

    def location(self, node: ast.AST) -> Location:
        """Return the start of a node; of a method in a chain of several lines, that of its name."""
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.end_lineno != line:
            line = node.func.end_lineno or line
            offset = (node.func.end_col_offset or 1) - len(node.func.attr.encode())
        lines = self.texts.get(self.frame.module, [])
        before = lines[line - 1].encode("utf-8", "surrogatepass")[:offset] if 0 < line <= len(lines) else b""
        return Location(self.frame.module, line, len(before.decode("utf-8", "replace")) + 1)

    def record(self, name: str, node: ast.AST, *args: Value, given: Call | None = None, **more: Any) -> Call:
        """Record an event with these arguments."""
        call = replace(
            given or Call(args),
            name=name,
            order=len(self.events),
            location=self.location(node),
            scopes=tuple(scope for scope in self.scopes if scope is not None),
            has_known_scope=None not in self.scopes,
            guards=tuple(self.guards),
            replica=self._replica,
            **more,
        )
        self.events.append(call)
        return call

    def guard(self, kind: str, node: ast.AST, marks: Mark = Mark.NONE, meaning: str = "") -> Guard:
        """Return a new condition at a node."""
        self._guards_made += 1
        return Guard(self._guards_made, 0, kind, self.location(node), marks, meaning)

    def arms(self, node: ast.AST, test: Value) -> tuple[Guard, Guard]:
        """Return the two arms of a condition."""
        first = self.guard("if", node, test.marks, condition_of(test))
        return first, first._replace(arm=1, meaning=condition_of(negated(test)))

    @contextmanager
    def under(self, *guards: Guard) -> Iterator[None]:
        """Run the block under conditions; then remove these and those that it added.

        If the program ends in the block on some tasks only, the condition of the others remains.
        """
        outer = len(self.guards)
        self.guards += guards
        yield
        self.guards[outer:] = [item for item in self.guards[outer:] if item.kind == "rest" and item.marks & DIFFERS]

    def run_under(self, guards: Sequence[Guard], run: Callable[[], _T], end: _T) -> _T:
        """Return the result of `run` under conditions, or `end` if the program ends there."""
        frame, scopes, replica = self.frame, list(self.scopes), self._replica
        with self.under(*guards):
            try:
                return run()
            except ProgramEnd:
                self.frame, self.scopes, self._replica = frame, scopes, replica
                return end

    def _evaluate_under(self, guards: Sequence[Guard], node: ast.expr) -> Value:
        return self.run_under(guards, lambda: self.evaluate(node), unknown())

    # --- names ------------------------------------------------------------------------------------------------------

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression, after everything in it is evaluated."""
        self._left -= 1
        if self._left < 0:
            raise GaveUpError
        handler: Callable[[Any], Value] | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        values = [self.evaluate(child) for child in children]
        return values[0] if isinstance(node, ast.Starred | ast.Await) else unknown(union(values))

    def _name(self, node: ast.Name) -> Value:
        result = self.frame.find(node.id)
        if result is None and node.id == "get_ipython":
            self.record("name.get_ipython", node)
        is_builtin = hasattr(builtins, node.id) or node.id == "get_ipython"
        return result or (Value(f"builtins.{node.id}") if is_builtin else unknown())

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr)

    def attribute(self, value: Value, name: str) -> Value:
        """Return `value.name`."""
        if isinstance(value, Scope):
            member = value.find(name)
            return member or (None if value.frame.is_class else self.module([name], value.frame.module)) or unknown()
        if name in value.parts:
            return value.parts[name]
        is_super = value.name == "super()"
        value = value.of if is_super and value.of is not None else value
        member = value.cls.find(name, inherited=is_super) if value.cls is not None else None
        if not isinstance(member, Function):
            return member or self._part(value, f".{name}")
        decorators = member.decorators
        bound = member if "staticmethod" in decorators else replace(member, owner=value)
        return self.enter(bound, Call()) if decorators & {"property", "cached_property"} else bound

    def _part(self, value: Value, path: str) -> Value:
        """Return an attribute or element of which only the name is known."""
        name = canonical(value.name + path)
        meaning, marks = meaning_of_name(name, value.marks)
        is_outside = path[0] == "." and value.call is None and value.of is None and value.name != "?"
        return Value(name, marks, meaning, of=None if is_outside else value)

    def _subscript(self, node: ast.Subscript) -> Value:
        value, key = self.evaluate(node.value), self.evaluate(node.slice)
        if value.name == ENVIRON:
            self.record("os.environ.__getitem__", node, key)
        return self.item(value, key)

    def item(self, value: Value, key: Value, default: Value | None = None) -> Value:
        """Return `value[key]`, or ``value.get(key, default)``."""
        name = key.value if isinstance(key, Const) else None
        if isinstance(value, Items):
            missing = (default if value.exact and name is not None else None) or unknown()
            return value.items.get(name, missing) if isinstance(name, str | int) else join(value.items.values())
        if value.name == ENVIRON and name is None:
            return unknown()
        if value.call is not None or value.name.endswith("[]"):
            return element(value)
        result = self._part(value, f"[{name}]")
        result.marks |= key.marks
        if default is not None and not result.meaning:
            result.marks |= default.marks
        return result

    # --- operators --------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        return Const(value=node.value)

    def _joinedstr(self, node: ast.JoinedStr | ast.FormattedValue) -> Value:
        children = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        return Value(marks=union([self.evaluate(child) for child in children]))

    _formattedvalue = _joinedstr

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.op, ast.Add):
            return sequence([*left.items.values(), *right.items.values()], exact=left.exact and right.exact)
        return Value(marks=left.marks | right.marks)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return negated(value)
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, int):
            return Const(value=-value.value)
        return Value(marks=value.marks)

    def _boolop(self, node: ast.BoolOp) -> Value:
        is_or = isinstance(node.op, ast.Or)
        result = [self.evaluate(node.values[0])]
        guards: list[Guard] = []
        for operand in node.values[1:]:
            holds = truth(result[-1])
            if holds is is_or:
                break
            guards += [self.arms(node, result[-1])[is_or]] if holds is None else []
            result.append(self._evaluate_under(guards, operand))
        if all(truth(value) is not None for value in result):
            return result[-1]
        if not is_or:
            return both(result)
        # A condition on the task; otherwise one of the values.
        of_task = any(value.marks & Mark.ROLE and value.meaning not in ("index", "task") for value in result)
        if of_task or result[0].meaning in ("has_tf_config", "no_tf_config"):
            return any_of(result)
        return join([value for value in result if truth(value) is not False])

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.evaluate(item) for item in (node.left, *node.comparators)]
        op, container = node.ops[0], values[1]
        if len(values) > 2:
            return Value(marks=union(values))
        if isinstance(op, ast.In | ast.NotIn) and container.name == ENVIRON:
            self.record("os.environ.__contains__", node, values[0])
            meaning = "has_tf_config" if isinstance(op, ast.In) else "no_tf_config"
            return Value(meaning=meaning) if text(values[0]) == "TF_CONFIG" else Value(marks=Mark.GIVEN)
        if isinstance(op, ast.In | ast.NotIn) and container.meaning in ("cluster", "tf_config"):
            return Value()
        meanings = {value.meaning for value in values}
        result = compared(values[0], op, container)
        if "index" in meanings or ("type" in meanings and result.meaning in ("chief", "not_chief")):
            self.record("test", node, Value(meaning="index" if "index" in meanings else "type"))
        return result

    def _ifexp(self, node: ast.IfExp) -> Value:
        test = self.evaluate(node.test)
        holds = truth(test)
        if holds is not None:
            return self.evaluate(node.body if holds else node.orelse)
        first, second = self.arms(node, test)
        values = [self._evaluate_under([first], node.body), self._evaluate_under([second], node.orelse)]
        return join(values, test.marks)

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.frame.bind(node.target.id, value)
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
        return _table(keys, [self.evaluate(value) for value in node.values])

    def _lambda(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> Function:
        """Return a function with its default arguments."""
        args = node.args
        plain = [*args.posonlyargs, *args.args][::-1]
        pairs = [*zip(plain, args.defaults[::-1], strict=False), *zip(args.kwonlyargs, args.kw_defaults, strict=True)]
        defaults = {name.arg: self.evaluate(value) for name, value in pairs if value is not None}
        return Function(node=node, frame=self.frame, defaults=defaults)

    def _listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        outer, self.frame = self.frame, Frame(self.frame.module, outer=self.frame)
        with self.under():
            marks = Mark.NONE
            for loop in node.generators:
                over = self.evaluate(loop.iter)
                self.assign(loop.target, element(over))
                self.guards.append(self.guard("loop", node))
                marks |= over.marks | union([self.evaluate(test) for test in loop.ifs])
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            values = [self.evaluate(result) for result in results]
        self.frame = outer
        items: dict[object, Value] = {} if isinstance(node, ast.DictComp) else {0: values[0]}
        return Items(marks=marks | union(values), items=items, exact=False)

    _setcomp = _generatorexp = _dictcomp = _listcomp

    # --- assignment -------------------------------------------------------------------------------------------------

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target to a value."""
        if isinstance(target, ast.Name):
            is_global = "global" in target.id.lower() and type(value) in (Value, Const)
            self.frame.bind(target.id, replace(value, marks=value.marks | Mark.REPLICAS) if is_global else value)
        elif isinstance(target, ast.Tuple | ast.List):
            exact = isinstance(value, Items) and value.exact and len(value.items) == len(target.elts)
            for index, item in enumerate(target.elts):
                self.assign(item, value.items[index] if exact and isinstance(value, Items) else element(value))
        elif isinstance(target, ast.Starred):
            self.assign(target.value, unknown(value.marks))
        elif isinstance(target, ast.Attribute):
            owner = self.evaluate(target.value)
            self._store(owner.frame.names if isinstance(owner, Scope) else owner.parts, target.attr, value)
            if owner.of is not None:  # the attribute of an attribute
                owner.of.parts[owner.name.rpartition(".")[2]] = owner
        elif isinstance(target, ast.Subscript):
            self._set_item(target, self.evaluate(target.value), self.evaluate(target.slice), value)

    def _set_item(self, node: ast.expr, owner: Value, key: Value, value: Value) -> None:
        if owner.name == ENVIRON:
            self.record("os.environ.__setitem__", node, key, value)
        elif isinstance(owner, Items):
            owner.marks |= value.marks
            owner.exact = owner.exact and isinstance(key, Const)
            if isinstance(key, Const):
                self._store(owner.items, key.value, value)

    def _store(self, values: dict[Any, Value], name: object, value: Value) -> None:
        doubtful = any(guard.kind == "if" for guard in self.guards)
        values[name] = join([values.get(name, unknown()), value]) if doubtful else value

    # --- calls ------------------------------------------------------------------------------------------------------

    def _call(self, node: ast.Call) -> Value:
        func = self.evaluate(node.func)
        args, exact = self._elements(node.args)
        names = [Const(value=keyword.arg) if keyword.arg else None for keyword in node.keywords]
        keywords = _table(names, [self.evaluate(keyword.value) for keyword in node.keywords])
        given = Call(args, keywords.items, not exact or not keywords.exact)
        if func.cls is not None and func.of is None:
            func = self.attribute(func, "__call__")
        if isinstance(func, Function):
            return self.enter(func, given)
        if isinstance(func, Scope):
            return self._instance(func, node, given)
        if func.of is not None and not func.name.endswith("[]"):
            return self._method(func, func.of, node, given)
        if func.name == "?":
            return unknown(union(args) & DIFFERS)
        if func.call is not None or func.of is not None:
            return self._outside(f"{func.name}.__call__", func, node, given)
        return self._outside(func.name, None, node, given)

    def _instance(self, cls: Scope, node: ast.AST, given: Call) -> Value:
        base = canonical(cls.outside)
        call = None if base in ("", "?", "builtins.object") else self.record(base, node, given=given)
        made = Value(class_made_by(base) if call is not None else "?", call=call, cls=cls)
        begin = cls.find("__init__")
        if isinstance(begin, Function):
            self.enter(replace(begin, owner=made), given)
        else:
            made.parts.update(given.keywords)
        return made

    def _method(self, func: Value, owner: Value, node: ast.AST, given: Call) -> Value:
        name, args = func.name.rpartition(".")[2], given.args
        if name in ("get", "pop", "setdefault") and args and (owner.meaning or isinstance(owner, Items)):
            return self.item(owner, args[0], args[1] if len(args) > 1 else Const() if name == "get" else None)
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
        if name in ("append", "add", "insert") and given.args:
            items.items[len(items.items)] = given.args[-1]
            items.marks |= given.args[-1].marks
        elif name == "update" and not given.args:
            items.items.update(given.keywords)
        else:
            items.exact = False
        items.exact = items.exact and all(guard.kind in ("try", "rest", "main") for guard in self.guards)

    def _outside(self, name: str, receiver: Value | None, node: ast.AST, given: Call) -> Value:
        """Record a call of a function outside the sources."""
        args = given.args
        if name in ("os.environ.get", "os.getenv"):
            self.record(name, node, given=given)
            default = args[1] if len(args) > 1 else given.keywords.get("default")
            return self.item(Value(ENVIRON), args[0] if args else unknown(), default)
        if name == "builtins.super":
            return Value("super()", of=self.frame.find("self"))
        result = _result(name, args)
        if result is not None:
            return result
        call = self.record(name, node, given=given, receiver=receiver)
        if name in _EXITS:
            self.record("leave", node, left=call.loops)
            raise ProgramEnd
        given_scope = any(item.name.endswith(".scope()") for item in (*call.everything(), receiver or Value()))
        if given_scope or call.method == "experimental_set_strategy":
            self.scopes.append(None)  # it may be entered
        self._run_functions(call, node)
        marks = _result_marks(call)
        if _ARGUMENTS.search(name):
            return Value("?", Mark.GIVEN)
        return Value(marks=marks) if _PURE.match(name) else Value(class_made_by(name), marks, call=call)

    # --- functions that are run by what is called -------------------------------------------------------------------

    def _run_functions(self, call: Call, node: ast.AST) -> None:
        kind = kind_of(call.receiver)
        first = call.args[0] if call.args else call.keywords.get("fn") or call.keywords.get("dataset_fn")
        if call.name in _RUNS_MAIN:
            first = first or self.frame.find("main")
        if kind == MODEL and call.method in ("fit", "evaluate", "predict", "fit_generator"):
            self._run_callbacks(call, node)
        elif isinstance(first, Function):
            if kind == STRATEGY and call.method in ("run", "experimental_run_v2"):
                outer, self._replica = self._replica, True
                call.returned = self.enter(first, _passed_on(call.argument("args", 1), call.argument("kwargs", 2)))
                self._replica = outer
            elif call.name == DATASET_CREATOR or "distribute_datasets_from_function" in call.method:
                call.returned = self.enter(first, Call([Value("input_context")]))
            elif call.name in _RUNS_MAIN:
                self.enter(first, Call(starred=True))

    def _run_callbacks(self, call: Call, node: ast.AST) -> None:
        """Run the callbacks of a training."""
        given = call.argument("callbacks", 5 if call.method == "fit" else -1)
        functions: list[Value] = []
        for callback in given.items.values() if isinstance(given, Items) else ():
            if callback.cls is not None:
                callback.parts.setdefault("model", call.receiver or unknown())
                names = [name for name in callback.cls.frame.names if _CALLBACK_METHODS.match(name)]
                functions += [self.attribute(callback, name) for name in names]
            elif callback.call is not None and keras_name(callback.call.name) == "callbacks.LambdaCallback":
                functions += callback.call.everything()
        with self.under(self.guard("loop", node)):
            for function in functions:
                if isinstance(function, Function):
                    self.enter(function, Call(starred=True))


def _table(keys: Sequence[Value | None], values: Sequence[Value]) -> Items:
    """Return a dictionary, or the keyword arguments of a call; a key of None stands for ``**value``."""
    result = Items(marks=union(values))
    for key, value in zip(keys, values, strict=True):
        if isinstance(key, Const):
            result.items[key.value] = value
        elif key is None and isinstance(value, Items):
            result.items.update(value.items)
            result.exact = result.exact and value.exact
        else:
            result.exact = False
    return result


def join(values: Iterable[Value], marks: Mark = Mark.NONE) -> Value:
    """Return one of several values, whose choice depends on `marks`: unknown if they differ.

    A strategy for several workers is taken: the script is checked for these. Of several models, it is one model.
    """
    distinct = {(type(item.value), repr(item.value)) if isinstance(item, Const) else item: item for item in values}
    result = [*distinct.values()]
    if len(result) == 1:
        return result[0]
    multi = [item for item in result if item.call is not None and item.call.method in MULTI_WORKER]
    every = marks | union(result)
    if multi:
        return multi[0]
    if result and all(kind_of(item) == MODEL for item in result) and result[0].call is not None:
        made = replace(result[0].call, scopes=(), has_known_scope=False, starred=True)
        return Value(result[0].name, every | Mark.UNKNOWN, call=made)
    meanings = {item.meaning for item in result if item.meaning}
    return Value("?", every | Mark.UNKNOWN, meaning=min(meanings, default=""))


def element(value: Value) -> Value:
    """Return an element of an iteration over a value."""
    if isinstance(value, Items):
        return join(value.items.values(), value.marks) if value.items and value.exact else unknown(value.marks)
    if value.call is not None and value.call.name == TFDS:
        return Value(value.name, value.marks, call=value.call, of=value)
    is_known = value.call is not None or value.name.endswith("[]")
    return (
        Value(f"{value.name}[]", value.marks, of=value)
        if is_known
        else Value(marks=value.marks, meaning=value.meaning)
    )


def _passed_on(args: Value | None, keywords: Value | None) -> Call:
    """Return the arguments that ``strategy.run`` passes on."""
    is_exact = all(is_none(item) or (isinstance(item, Items) and item.exact) for item in (args, keywords))
    plain = [*args.items.values()] if isinstance(args, Items) and args.exact else []
    return Call(plain, keywords.items if isinstance(keywords, Items) else {}, not is_exact)


def _result(name: str, args: Sequence[Value]) -> Value | None:
    """Return the value of a call without effect; None: another call."""
    if _JOINS.match(name) and args:
        texts = [text(part) or "" for part in args]
        path = "/".join(texts).replace("//", "/", 1)
        return Const(marks=union(args), value=path) if all(texts) else Value("?", union(args), f"path:{texts[0]}")
    first = args[0] if args else Items()
    if name == "builtins.len" and isinstance(first, Items) and first.exact and args:
        return Const(marks=first.marks, value=len(first.items))
    if (name == "builtins.next" and args) or (_ITERATES.match(name) and first.call is not None):
        return element(first)
    is_plain = first.call is None and not first.marks & Mark.UNKNOWN and not isinstance(first, Items)
    is_kept = _SAME.match(name) is not None and is_plain and len(args) == 1
    return first if is_kept or (name == "tensorflow.function" and isinstance(first, Function)) else None


def _result_marks(call: Call) -> Mark:
    """Return the marks of the result of a call outside the sources."""
    name, given = call.name, union(call.everything())
    source = meaning_of_name(f"{name}()")[1]
    if source:
        return source
    if _PURE.match(name):
        return given
    if call.method in _AS_RECEIVER and call.receiver is not None:
        return given | call.receiver.marks
    if kind_of(call.receiver) == STRATEGY and call.method in ("run", "experimental_local_results"):
        return Mark.LOCAL | Mark.UNKNOWN
    reduces = re.search(r"\.(?:all_)?(?:reduce|gather)$", name) is not None
    kept = Mark.REPLICAS | Mark.LOCAL if name.startswith("tensorflow.") and not reduces else Mark.REPLICAS
    return Mark.UNKNOWN | (given & kept)
