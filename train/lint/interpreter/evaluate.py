"""Evaluate expressions, as far as their values are known."""

from __future__ import annotations

import ast
import builtins
import operator
import re
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from train.lint.interpreter import conditions
from train.lint.interpreter.api_names import Kind, canonical, kind_of
from train.lint.interpreter.execution import State
from train.lint.interpreter.values import (
    Arguments,
    Bound,
    Class,
    Const,
    Either,
    Element,
    Frame,
    Function,
    Instance,
    Items,
    Made,
    Mark,
    Module,
    Opaque,
    Ref,
    Table,
    Value,
    join,
    options,
    text,
    union,
    unknown,
)
from train.script.launchers import COUNT, INDEX

ENVIRON = "os.environ"
_TASK_DIRECTORIES = {"FLEET_MODEL_DIR", "FLEET_LOG_DIR", "AIP_MODEL_DIR", "AIP_TENSORBOARD_LOG_DIR"}
_VARIABLES: dict[str, tuple[Mark, str]] = {
    **dict.fromkeys((*INDEX, "FLEET_RANK", "FLEET_TASK_INDEX"), (Mark.ROLE, "index")),
    **dict.fromkeys((*COUNT, "FLEET_NUM_TASKS", "FLEET_ADDRESSES"), (Mark.REPLICAS, "")),
    "TF_CONFIG": (Mark.NONE, "tf_config"),
    "FLEET_TASK_TYPE": (Mark.ROLE, "type"),
    "HOSTNAME": (Mark.HOST, ""),
    **dict.fromkeys(_TASK_DIRECTORIES, (Mark.GIVEN | Mark.TASK_PATH, "")),
}
# Names of options for a number of workers, or for a number of all workers together.
_ALL_WORKERS = re.compile(
    r"global|world_?size|^(?:n|num|number_of)_?(?:workers|nodes|replicas|tasks|hosts|machines)$"
)
_FLAGS = ("absl.flags.FLAGS", "tensorflow.flags.FLAGS", "tensorflow.app.flags.FLAGS", "sys.argv")

# Attributes and their values, by the object that has them.
_OPAQUE_ATTRIBUTES: dict[tuple[str, str], Opaque] = {
    ("resolver", "task_id"): Opaque(Mark.ROLE, "index"),
    ("resolver", "task_type"): Opaque(Mark.ROLE, "type"),
    ("input_context", "num_input_pipelines"): Opaque(Mark.REPLICAS),
    ("input_context", "num_replicas_in_sync"): Opaque(Mark.REPLICAS),
    ("input_context", "input_pipeline_id"): Opaque(Mark.ROLE, "index"),
    ("strategy", "num_replicas_in_sync"): Opaque(Mark.REPLICAS),
    ("strategy", "cluster_resolver"): Opaque(Mark.NONE, "resolver"),
    ("strategy", "extended.should_checkpoint"): Opaque(Mark.ROLE, "chief"),
    ("strategy", "extended.should_save_summary"): Opaque(Mark.ROLE, "chief"),
    ("strategy", "extended.worker_index"): Opaque(Mark.ROLE, "index"),
}
_ITEMS: dict[tuple[str, str], Opaque] = {
    ("tf_config", "cluster"): Opaque(Mark.REPLICAS, "cluster"),
    ("tf_config", "task"): Opaque(Mark.ROLE, "task"),
    ("task", "index"): Opaque(Mark.ROLE, "index"),
    ("task", "type"): Opaque(Mark.ROLE, "type"),
}
_LARGEST_NUMBER = 10**12
_LONGEST_TEXT = 4096

_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}

Handler = Callable[[Any], Value]
_Code = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Evaluator(State):
    """Evaluates the expressions of one script; calls are in train.lint.interpreter.calls."""

    @abstractmethod
    def enter(self, function: Function, given: Arguments) -> Value:
        """Return the result of a function in the sources."""

    @abstractmethod
    def module(self, parts: list[str], base: str | None = None) -> Module | None:
        """Execute and return a module of the sources; None: another module."""

    def evaluate(self, node: ast.expr) -> Value:
        """Return the value of an expression, after everything in it is evaluated."""
        self.tick()
        handler: Handler | None = getattr(self, f"_{type(node).__name__.lower()}", None)
        if handler is not None:
            return handler(node)
        return unknown(
            union([self.evaluate(child) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)])
        )

    # --- names ------------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> Value:
        result = self.frame.find(node.id)
        if result is not None:
            return result
        if node.id == "get_ipython":
            caught = {name for guard in self.guards for name in guard.caught}
            self.trace.without_ipython = self.trace.without_ipython or bool(caught & {"NameError", "*"})
        if hasattr(builtins, node.id) or node.id == "get_ipython":
            return Ref(name=f"builtins.{node.id}")
        return unknown()

    def _attribute(self, node: ast.Attribute) -> Value:
        return self.attribute(self.evaluate(node.value), node.attr)

    def attribute(self, value: Value, name: str) -> Value:
        """Return `value.name`."""
        if isinstance(value, Either):
            return join([self.attribute(option, name) for option in value.options], value.marks)
        if isinstance(value, Ref):
            full = canonical(f"{value.name}.{name}")
            return Opaque(_named(Mark.GIVEN, name)) if value.name in _FLAGS else Ref(value.marks, full)
        if isinstance(value, Module):
            attribute = value.frame.names.get(name)
            return attribute or self.module([name], value.frame.module) or unknown()
        if isinstance(value, Class):
            return value.find(name) or unknown()
        if isinstance(value, Instance):
            return self._instance_attribute(value, name)
        return self._outside_attribute(value, name)

    def _instance_attribute(self, instance: Instance, name: str) -> Value:
        if name in instance.attrs:
            return instance.attrs[name]
        result = instance.cls.find(name)
        if isinstance(result, Function):
            bound = result if result.static else owned(result, instance)
            return self.enter(bound, Arguments()) if is_property(result.node) else bound
        if result is not None:
            return result
        return Bound(instance.marks, receiver=instance, name=name) if instance.cls.outside() else unknown()

    def _outside_attribute(self, value: Value, name: str) -> Value:
        receiver, path = (value.receiver, f"{value.name}.{name}") if isinstance(value, Bound) else (value, name)
        if isinstance(receiver, Made) and path in receiver.attrs:
            return receiver.attrs[path]
        meaning = conditions.meaning_of(value)
        if isinstance(value, Opaque) and meaning == "super":
            return self._base_attribute(name)
        attribute = _OPAQUE_ATTRIBUTES.get((_role_of(receiver) or meaning, path))
        if attribute is not None:
            return attribute
        return Bound(_named(value.marks, name), receiver=receiver, name=path)

    def _base_attribute(self, name: str) -> Value:
        """Return an attribute of `super()`."""
        owner = self.frame.find("self")
        if isinstance(owner, Instance):
            for base in owner.cls.bases:
                result = base.find(name) if isinstance(base, Class) else None
                if isinstance(result, Function):
                    return owned(result, owner)
        return unknown()

    def _subscript(self, node: ast.Subscript) -> Value:
        value, key = self.evaluate(node.value), self.evaluate(node.slice)
        if isinstance(value, Ref) and value.name == ENVIRON:
            self.call_seen("os.environ.__getitem__", node, Arguments((key,)))
        return self.item(value, key)

    def item(self, value: Value, key: Value, default: Value | None = None) -> Value:
        """Return `value[key]`, or ``value.get(key, default)``."""
        if isinstance(value, Either):
            return join([self.item(option, key, default) for option in value.options], value.marks)
        name = text(key)
        if isinstance(value, Ref) and value.name == ENVIRON:
            return self.variable(name, default)
        if isinstance(value, Table) and name is not None:
            return value.items.get(name) or ((default or unknown()) if value.exact else unknown())
        if isinstance(value, Items):
            return _item(value, key)
        if isinstance(value, Made | Element):
            return Element(value.marks, of=value)
        meaning = conditions.meaning_of(value)
        item = value if meaning == "cluster" else _ITEMS.get((meaning, name or ""))
        return item or Opaque(_item_marks(value, key), "args" if meaning == "args" else "")

    def variable(self, name: str | None, default: Value | None = None) -> Value:
        """Return the value of an environment variable."""
        if name is None:
            return unknown()
        self.trace.reads.add(name)
        marks, meaning = _VARIABLES.get(name, (Mark.GIVEN, ""))
        return Opaque(marks | (default.marks if default and not meaning else Mark.NONE), meaning)

    # --- operators --------------------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        return Const(value=node.value)

    def _joinedstr(self, node: ast.JoinedStr) -> Value:
        parts = [self.evaluate(item) for item in node.values]
        texts = [text(part) for part in parts]
        if all(item is not None for item in texts) and sum(map(len, filter(None, texts))) < _LONGEST_TEXT:
            return Const(union(parts), "".join(filter(None, texts)))
        return Opaque(union(parts), "path" if texts and texts[0] else "")

    def _formattedvalue(self, node: ast.FormattedValue) -> Value:
        value = self.evaluate(node.value)
        if node.format_spec is not None:
            return Opaque(value.marks | self.evaluate(node.format_spec).marks)
        if isinstance(value, Const) and isinstance(value.value, str | int) and node.conversion == -1:
            return Const(value.marks, _shown(value.value))
        return Opaque(value.marks)

    def _binop(self, node: ast.BinOp) -> Value:
        left, right = self.evaluate(node.left), self.evaluate(node.right)
        if isinstance(left, Items) and isinstance(right, Items) and isinstance(node.op, ast.Add):
            return Items(union((left, right)), left.items + right.items, left.exact and right.exact)
        marks = union((left, right))
        if isinstance(left, Const) and isinstance(right, Const):
            result = _computed(left.value, node.op, right.value)
            return Opaque(marks) if result is None else Const(marks, result)
        if isinstance(left, Made | Element) or isinstance(right, Made | Element):
            return unknown(marks)
        return Opaque(marks)

    def _unaryop(self, node: ast.UnaryOp) -> Value:
        value = self.evaluate(node.operand)
        if isinstance(node.op, ast.Not):
            return conditions.negated(value)
        if isinstance(node.op, ast.USub) and isinstance(value, Const) and isinstance(value.value, int | float):
            return Const(value.marks, -value.value)
        return Opaque(value.marks)

    def _boolop(self, node: ast.BoolOp) -> Value:
        decides = isinstance(node.op, ast.Or)
        result = [self.evaluate(node.values[0])]
        exited = self.exited
        with self.bounded():
            for operand in node.values[1:]:
                if conditions.truth(result[-1]) is decides:
                    break
                condition = conditions.negated(result[-1]) if decides else result[-1]
                meaning = conditions.condition_of(condition)
                if conditions.truth(condition) is None:
                    self.guards.append(self.guard("if", node, condition.marks, meaning))
                result.append(self.evaluate(operand))
        self.exited = exited
        if all(conditions.truth(value) is not None for value in result):
            return result[-1]
        return self._either(result) if decides else conditions.both(result)

    def _either(self, result: list[Value]) -> Value:
        """Return `a or b`: a condition if it depends on the task, otherwise one of the values."""
        is_membership = any(
            value.marks & Mark.ROLE and conditions.meaning_of(value) not in ("index", "task") for value in result
        )
        if is_membership or conditions.meaning_of(result[0]) in ("has_tf_config", "no_tf_config"):
            return conditions.any_of(result)
        return join([value for value in result if conditions.truth(value) is not False] or result)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.evaluate(item) for item in (node.left, *node.comparators)]
        op = node.ops[0]
        if len(node.ops) > 1:
            return Opaque(union(values))
        container = values[1]
        if isinstance(op, ast.In | ast.NotIn) and isinstance(container, Ref) and container.name == ENVIRON:
            name = text(values[0])
            if name != "TF_CONFIG":
                return Opaque(Mark.GIVEN)
            self.trace.reads.add(name)
            return Opaque(Mark.NONE, "has_tf_config" if isinstance(op, ast.In) else "no_tf_config")
        if isinstance(op, ast.In | ast.NotIn) and conditions.meaning_of(container) in ("cluster", "tf_config"):
            return Opaque()
        meanings = {conditions.meaning_of(value) for value in values}
        self.trace.tests_index = self.trace.tests_index or "index" in meanings
        result = conditions.compared(values[0], op, values[1])
        if "type" in meanings and conditions.meaning_of(result) in ("chief", "not_chief"):
            self.trace.chief_tests.append(self.location(node))
        return result

    def _ifexp(self, node: ast.IfExp) -> Value:
        test = self.evaluate(node.test)
        holds = conditions.truth(test)
        if holds is not None:
            return self.evaluate(node.body if holds else node.orelse)
        exited = self.exited
        item, other = self.arms(node, test)
        with self.under(item):
            body = self.evaluate(node.body)
        with self.under(other):
            orelse = self.evaluate(node.orelse)
        self.exited = exited
        return join((body, orelse), test.marks)

    def _namedexpr(self, node: ast.NamedExpr) -> Value:
        value = self.evaluate(node.value)
        self.frame.bind(node.target.id, value)
        return value

    # --- collections ------------------------------------------------------------------------------------------------

    def _list(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        result: list[Value] = []
        exact = True
        for item in node.elts:
            value = self.evaluate(item.value if isinstance(item, ast.Starred) else item)
            if not isinstance(item, ast.Starred):
                result.append(value)
            elif isinstance(value, Items):
                result += value.items
                exact = exact and value.exact
            else:
                exact = False
        return Items(union(result), result, exact)

    _tuple = _list
    _set = _list

    def _dict(self, node: ast.Dict) -> Value:
        items: dict[str, Value] = {}
        exact = True
        marks = Mark.NONE
        for key, value in zip(node.keys, node.values, strict=True):
            content = self.evaluate(value)
            marks |= content.marks
            name = text(self.evaluate(key)) if key is not None else None
            if name is not None:
                items[name] = content
            elif key is None and isinstance(content, Table):
                items.update(content.items)
                exact = exact and content.exact
            else:
                exact = False
        return Table(marks, items, exact)

    def defined(self, node: _Code) -> Function:
        """Return a function with its default arguments."""
        args = node.args
        plain = [*args.posonlyargs, *args.args]
        defaults = {
            argument.arg: self.evaluate(value)
            for argument, value in zip(plain[len(plain) - len(args.defaults) :], args.defaults, strict=True)
        }
        for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            if default is not None:
                defaults[argument.arg] = self.evaluate(default)
        return Function(node=node, frame=self.frame, defaults=defaults)

    _lambda = defined

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        outer = self.frame
        self.frame = Frame(outer.module, outer=outer)
        with self.bounded():
            marks = Mark.NONE
            for loop in node.generators:
                over = self.evaluate(loop.iter)
                marks |= over.marks
                self.assign(loop.target, element(over))
                self.guards.append(self.guard("loop", node))
                for test in loop.ifs:
                    marks |= self.evaluate(test).marks
            if isinstance(node, ast.DictComp):
                self.evaluate(node.key)
                value = self.evaluate(node.value)
            else:
                value = self.evaluate(node.elt)
        self.frame = outer
        every = marks | value.marks
        return Table(every, {}, exact=False) if isinstance(node, ast.DictComp) else Items(every, [value], exact=False)

    _listcomp = _comprehension
    _setcomp = _comprehension
    _generatorexp = _comprehension
    _dictcomp = _comprehension

    def _starred(self, node: ast.Starred | ast.Await) -> Value:
        return self.evaluate(node.value)

    _await = _starred

    # --- assignment -------------------------------------------------------------------------------------------------

    def arms(self, node: ast.AST, test: Value) -> tuple[Any, Any]:
        """Return the two arms of a condition."""
        item = self.guard("if", node, test.marks, conditions.condition_of(test))
        opposite = conditions.condition_of(conditions.negated(test))
        return item, type(item)(item.number, 1, "if", item.location, test.marks, opposite)

    def assign(self, target: ast.expr, value: Value) -> None:
        """Bind a target to a value."""
        if isinstance(target, ast.Name):
            self.frame.bind(target.id, _called_global(target.id, value))
        elif isinstance(target, ast.Tuple | ast.List):
            self._unpack(target.elts, value)
        elif isinstance(target, ast.Starred):
            self.assign(target.value, unknown(value.marks))
        elif isinstance(target, ast.Attribute):
            self._set_attribute(self.evaluate(target.value), target.attr, value)
        elif isinstance(target, ast.Subscript):
            self._set_item(target, self.evaluate(target.value), self.evaluate(target.slice), value)

    def _unpack(self, targets: list[ast.expr], value: Value) -> None:
        starred = any(isinstance(target, ast.Starred) for target in targets)
        exact = isinstance(value, Items) and value.exact and len(value.items) == len(targets) and not starred
        for index, target in enumerate(targets):
            item = value.items[index] if exact and isinstance(value, Items) else None
            self.assign(target, item or element(value))

    def _set_attribute(self, owner: Value, name: str, value: Value) -> None:
        for option in options(owner):
            if isinstance(option, Bound) and isinstance(option.receiver, Made):
                self._store(option.receiver.attrs, f"{option.name}.{name}", value, unknown())
            elif isinstance(option, Made | Instance):
                self._store(option.attrs, name, value, unknown() if isinstance(option, Made) else None)
            elif isinstance(option, Module):
                self._store(option.frame.names, name, value)

    def _store(self, attrs: dict[str, Value], name: str, value: Value, default: Value | None = None) -> None:
        old = attrs.get(name) or default
        doubtful = any(guard.kind in ("if", "called") for guard in self.guards)
        attrs[name] = join((old, value)) if old is not None and doubtful else value

    def _set_item(self, node: ast.expr, owner: Value, key: Value, value: Value) -> None:
        if isinstance(owner, Ref) and owner.name == ENVIRON:
            self.call_seen("os.environ.__setitem__", node, Arguments((key, value)))
        elif isinstance(owner, Table):
            name = text(key)
            if name is None:
                owner.exact = False
            else:
                self._store(owner.items, name, value)
            owner.marks |= value.marks
        elif isinstance(owner, Items):
            owner.exact = False


def _item(items: Items, key: Value) -> Value:
    index = key.value if isinstance(key, Const) else None
    if items.exact and isinstance(index, int):
        return items.items[index] if -len(items.items) <= index < len(items.items) else unknown()
    return join(items.items, key.marks) if items.items else unknown()


def _item_marks(value: Value, key: Value) -> Mark:
    if isinstance(value, Ref) and value.name in _FLAGS:
        return Mark.GIVEN
    return value.marks | key.marks | (Mark.NONE if isinstance(value, Opaque) else Mark.UNKNOWN)


def element(value: Value) -> Value:
    """Return an element of an iteration over `value`."""
    if isinstance(value, Either):
        return join([element(option) for option in value.options], value.marks)
    if isinstance(value, Items):
        return join(value.items, value.marks) if value.items and value.exact else unknown(value.marks)
    if isinstance(value, Made | Element):
        return Element(value.marks, of=value)
    return Opaque(value.marks) if isinstance(value, Opaque) else unknown(value.marks)


def is_property(node: ast.AST) -> bool:
    """Return whether a function is a property."""
    names = [getattr(item, "id", getattr(item, "attr", "")) for item in getattr(node, "decorator_list", [])]
    return bool({"property", "cached_property"} & set(names))


def owned(function: Function, owner: Value) -> Function:
    """Return a method of `owner`."""
    return Function(function.marks, node=function.node, frame=function.frame, owner=owner, defaults=function.defaults)


def _role_of(value: Value) -> str:
    kind = kind_of(value)
    return kind.value if kind in (Kind.STRATEGY, Kind.RESOLVER) else ""


def _named(marks: Mark, name: str) -> Mark:
    return marks | Mark.REPLICAS if _ALL_WORKERS.search(name.lower()) else marks


def _called_global(name: str, value: Value) -> Value:
    """Return `value`, marked as global to all workers if its name suggests that."""
    if "global" not in name.lower() or value.marks & Mark.REPLICAS:
        return value
    if isinstance(value, Const):
        return Const(value.marks | Mark.REPLICAS, value.value)
    return Opaque(value.marks | Mark.REPLICAS, value.meaning) if isinstance(value, Opaque) else value


def _shown(value: str | int) -> str:
    return value if isinstance(value, str) else str(value) if abs(value) < _LARGEST_NUMBER else "…"


def _computed(left: object, op: ast.operator, right: object) -> str | int | float | None:
    """Return the value of an operation on constants; None: not needed."""
    if isinstance(left, str) and isinstance(right, str) and len(left) + len(right) < _LONGEST_TEXT:
        return left + right if isinstance(op, ast.Add) else f"{left}/{right}" if isinstance(op, ast.Div) else None
    arithmetic = _ARITHMETIC.get(type(op))
    if arithmetic is None or not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    largest = max(abs(left), abs(right))
    if not largest < _LARGEST_NUMBER or (not right and isinstance(op, ast.Div | ast.FloorDiv)):
        return None
    return arithmetic(left, right)
