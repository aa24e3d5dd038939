"""Evaluate conditions: which task this is, whether there is a cluster, or the value of a constant."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from train.lint.values import Const, Items, Mark, Value, is_none, text, union

_OPPOSITES = {"chief": "not_chief", "outside": "inside", "has_tf_config": "no_tf_config"}
_OPPOSITES |= {other: name for name, other in _OPPOSITES.items()}
_OF_THE_JOB = ("tf_config", "task", "cluster")
_AS_CONDITION = {"index": "not_chief", **dict.fromkeys(_OF_THE_JOB, "has_tf_config")}
_BESIDE = {"ps", "evaluator"}  # tasks that take no part in the collective operations of the workers
_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
}  # fmt: skip


def condition_of(value: Value) -> str:
    """Return what is known about the task if a value is true."""
    return _AS_CONDITION.get(value.meaning, value.meaning)


def truth(value: Value) -> bool | None:
    """Return the truth of a condition; None if unknown."""
    return bool(value.value) if isinstance(value, Const) else None


def negated(value: Value) -> Value:
    """Return `not value`; whether there is a task at all is the same for all tasks."""
    holds = truth(value)
    if holds is not None:
        return Const(marks=value.marks, value=not holds)
    marks = Mark.NONE if value.meaning in _OF_THE_JOB else value.marks
    return Value(marks=marks, meaning=_OPPOSITES.get(condition_of(value), ""))


def both(values: Sequence[Value]) -> Value:
    """Return `a and b`."""
    names = [condition_of(value) for value in values]
    strongest = (name for name in ("outside", "chief", "not_chief", "no_tf_config", "has_tf_config") if name in names)
    return Value(marks=union(values), meaning=next(strongest, ""))


def any_of(values: Sequence[Value]) -> Value:
    """Return `a or b`."""
    names = {condition_of(value) for value in values if value.marks & Mark.ROLE}
    return Value(marks=union(values), meaning=names.pop() if len(names) == 1 else "")


def compared(left: Value, op: ast.cmpop, right: Value) -> Value:
    """Return `left op right`."""
    marks = left.marks | right.marks
    if isinstance(left, Const) and isinstance(right, Const) and type(op) in _ORDER:
        try:
            return Const(marks=marks, value=bool(_ORDER[type(op)](left.value, right.value)))
        except TypeError:
            return Value(marks=marks)
    for item, other in ((left, right), (right, left)):
        meaning = item.meaning
        if meaning in ("index", "type", *_OF_THE_JOB) and is_none(other):
            return Value(meaning="no_tf_config" if isinstance(op, ast.Is | ast.Eq) else "has_tf_config")
        if meaning == "index":
            return Value(marks=marks, meaning=_compared_index(op, other, swapped=item is right))
        if meaning == "type":
            return _compared_type(op, other, marks)
    return Value(marks=marks)


def _compared_index(op: ast.cmpop, other: Value, *, swapped: bool) -> str:
    if not isinstance(other, Const) or other.value not in (0, "0"):
        return ""
    above = ast.Lt if swapped else ast.Gt
    return "chief" if isinstance(op, ast.Eq) else "not_chief" if isinstance(op, ast.NotEq | above) else ""


def _compared_type(op: ast.cmpop, other: Value, marks: Mark) -> Value:
    items = [*other.items.values()] if isinstance(other, Items) and other.exact else [other]
    names = {text(item) for item in items}
    result = Value(marks=marks)
    if names and names <= _BESIDE:
        result = Value(marks=marks, meaning="outside")
    elif names and names <= {"chief", "master"}:
        result = Value(marks=marks, meaning="chief")
    elif "worker" in names and None not in names:
        result = Value(meaning="inside")
    return negated(result) if isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) else result
