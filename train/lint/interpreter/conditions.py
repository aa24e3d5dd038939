"""Evaluate conditions: which task this is, whether there is a cluster, or the value of a constant."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from train.lint.interpreter.values import Const, Items, Mark, Opaque, Value, is_none, options, text, union

_OPPOSITES = {"chief": "not_chief", "outside": "inside", "has_tf_config": "no_tf_config"}
_SWAPPED = {**_OPPOSITES, **{other: name for name, other in _OPPOSITES.items()}}
_AS_CONDITION = {
    "index": "not_chief",
    "tf_config": "has_tf_config",
    "task": "has_tf_config",
    "cluster": "has_tf_config",
}
_OF_A_TASK = ("index", "type", "task", "tf_config", "cluster")
_BESIDE = {"ps", "evaluator"}  # tasks that take no part in the collective operations of the workers

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def meaning_of(value: Value) -> str:
    """Return the meaning of a value, or of one of its alternatives."""
    return next((option.meaning for option in options(value) if isinstance(option, Opaque) and option.meaning), "")


def condition_of(value: Value) -> str:
    """Return what is known about the task if `value` is true."""
    meaning = meaning_of(value)
    return _AS_CONDITION.get(meaning, meaning)


def truth(value: Value) -> bool | None:
    """Return the truth of a condition; None if unknown."""
    if isinstance(value, Const) and isinstance(value.value, bool | int | str | bytes | None):
        return bool(value.value)
    return None


def negated(value: Value) -> Value:
    """Return `not value`."""
    holds = truth(value)
    if holds is not None:
        return Const(value.marks, not holds)
    return Opaque(_marks(value), _SWAPPED.get(condition_of(value), ""))


def both(values: Sequence[Value]) -> Value:
    """Return `a and b`."""
    for name in ("outside", "chief", "not_chief", "no_tf_config", "has_tf_config"):
        if any(condition_of(value) == name for value in values):
            return Opaque(union(values), name)
    return Opaque(union(values))


def any_of(values: Sequence[Value]) -> Value:
    """Return `a or b`."""
    names = {condition_of(value) for value in values if value.marks & Mark.ROLE}
    return Opaque(union(values), names.pop() if len(names) == 1 else "")


def compared(left: Value, op: ast.cmpop, right: Value) -> Value:
    """Return `left op right`."""
    if isinstance(left, Const) and isinstance(right, Const):
        result = _evaluate(left.value, op, right.value)
        if result is not None:
            return Const(left.marks | right.marks, result)
    for item, other in ((left, right), (right, left)):
        meaning = meaning_of(item)
        if meaning in _OF_A_TASK and is_none(other):
            return Opaque(Mark.NONE, "no_tf_config" if isinstance(op, ast.Is | ast.Eq) else "has_tf_config")
        if meaning == "index":
            return Opaque(union((left, right)), _index(op, other, swapped=item is right))
        if meaning == "type":
            return _type(op, other, left.marks | right.marks)
    return Opaque(union((left, right)))


def _marks(value: Value) -> Mark:
    """Return the marks of a condition; whether there is a task at all is the same for all tasks."""
    return Mark.NONE if meaning_of(value) in ("tf_config", "cluster", "task") else value.marks


def _evaluate(left: object, op: ast.cmpop, right: object) -> bool | None:
    if isinstance(op, ast.Is | ast.IsNot):
        if left is None or right is None:
            return (left is right) == isinstance(op, ast.Is)
        return None
    test = _ORDER.get(type(op))
    if test is None:
        return None
    try:
        return bool(test(left, right))
    except TypeError:
        return None


def _index(op: ast.cmpop, other: Value, *, swapped: bool) -> str:
    number = other.value if isinstance(other, Const) else None
    if number in (0, "0") and not isinstance(number, bool):
        names: dict[type[ast.cmpop], str] = {
            ast.Eq: "chief",
            ast.NotEq: "not_chief",
            ast.Lt if swapped else ast.Gt: "not_chief",
        }
        return names.get(type(op), "")
    return ""


def _type(op: ast.cmpop, other: Value, marks: Mark) -> Value:
    items = other.items if isinstance(other, Items) and other.exact else [other]
    names = {text(item) for item in items}
    if None in names or not names:
        return Opaque(marks)
    result = Opaque(marks)
    if names <= _BESIDE:
        result = Opaque(marks, "outside")
    elif names <= {"chief", "master"}:
        result = Opaque(marks, "chief")
    elif "worker" in names:
        result = Opaque(Mark.NONE, "inside")
    return negated(result) if isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) else result
