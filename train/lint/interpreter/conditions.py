"""What a condition asks: which task this is, whether there is a cluster, or what a constant says."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from typing import Any

from train.lint.interpreter.values import Const, Items, Mark, Opaque, Value, is_none, options, text, union

_SWAPPED = {
    "chief": "not_chief",
    "not_chief": "chief",
    "outside": "inside",
    "inside": "outside",
    "has_tf_config": "no_tf_config",
    "no_tf_config": "has_tf_config",
}
_AS_CONDITION = {
    "index": "not_chief",
    "tf_config": "has_tf_config",
    "task": "has_tf_config",
    "cluster": "has_tf_config",
}
_OF_A_TASK = ("index", "type", "task", "tf_config", "cluster")
_BESIDE = {"ps", "evaluator"}  # take no part in what the workers do together

_ORDER: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def what_of(value: Value) -> str:
    """What is known of a value, or of one of the things that it may be."""
    return next((option.what for option in options(value) if isinstance(option, Opaque) and option.what), "")


def condition_of(value: Value) -> str:
    """What it says about a task if `value` is true."""
    what = what_of(value)
    return _AS_CONDITION.get(what, what)


def truth(value: Value) -> bool | None:
    """Whether a condition holds; None: nobody knows."""
    if isinstance(value, Const) and isinstance(value.value, bool | int | str | bytes | None):
        return bool(value.value)
    return None


def negated(value: Value) -> Value:
    """`not value`."""
    known = truth(value)
    if known is not None:
        return Const(value.marks, not known)
    return Opaque(_marks(value), _SWAPPED.get(condition_of(value), ""))


def both(values: Sequence[Value]) -> Value:
    """`a and b`."""
    for name in ("outside", "chief", "not_chief", "no_tf_config", "has_tf_config"):
        if any(condition_of(value) == name for value in values):
            return Opaque(union(values), name)
    return Opaque(union(values))


def any_of(values: Sequence[Value]) -> Value:
    """`a or b`."""
    names = {condition_of(value) for value in values if value.marks & Mark.ROLE}
    return Opaque(union(values), names.pop() if len(names) == 1 else "")


def compared(left: Value, op: ast.cmpop, right: Value) -> Value:
    """`left op right`."""
    if isinstance(left, Const) and isinstance(right, Const):
        known = _known(left.value, op, right.value)
        if known is not None:
            return Const(left.marks | right.marks, known)
    for item, other in ((left, right), (right, left)):
        what = what_of(item)
        if what in _OF_A_TASK and is_none(other):
            return Opaque(Mark.NONE, "no_tf_config" if isinstance(op, ast.Is | ast.Eq) else "has_tf_config")
        if what == "index":
            return Opaque(union((left, right)), _index(op, other, swapped=item is right))
        if what == "type":
            return _type(op, other, left.marks | right.marks)
    return Opaque(union((left, right)))


def _marks(value: Value) -> Mark:
    """Of the condition that `value` is; whether there is a task at all is the same for all of them."""
    return Mark.NONE if what_of(value) in ("tf_config", "cluster", "task") else value.marks


def _known(left: object, op: ast.cmpop, right: object) -> bool | None:
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
