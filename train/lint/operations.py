"""Values of operations, and of calls of code outside the sources, as far as they are known."""

from __future__ import annotations

import ast
import operator
import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any

from train.lint import names
from train.lint.names import is_in, kind_of
from train.lint.values import (
    MISSING,
    Call,
    Const,
    Function,
    Items,
    Mark,
    Value,
    is_none,
    sequence,
    text,
    union,
    unknown,
)

_AS_RECEIVER = ("strftime", "isoformat", "timestamp", "numpy", "item", "name", "__enter__", "total_seconds")


def join(values: Iterable[Value], marks: Mark = Mark.NONE) -> Value:
    """Return one of several values, whose choice depends on `marks`: unknown if they differ.

    A strategy for several workers is taken: the script is checked for these. Of several models, it is one model.
    """
    distinct = {(type(item.value), repr(item.value)) if isinstance(item, Const) else item: item for item in values}
    result = [*distinct.values()]
    if len(result) == 1:
        return result[0]
    multi = [item for item in result if item.made.method in names.MULTI_WORKER]
    every = marks | union(result)
    if multi:
        return multi[0]
    if result and all(kind_of(item) == "model" for item in result) and result[0].call is not None:
        made = replace(result[0].call, scopes=(), has_known_scope=False, starred=True)
        return Value(result[0].name, every | Mark.UNKNOWN, call=made)
    meanings = {item.meaning for item in result if item.meaning}
    return Value("?", every | Mark.UNKNOWN, meaning=min(meanings, default=""))


def joined(first: dict[str, Value], second: dict[str, Value], marks: Mark) -> dict[str, Value]:
    """Return the names after a condition that depends on `marks`."""
    changed = [name for name in first.keys() & second.keys() if first[name] is not second[name]]
    return {**second, **first, **{name: join([first[name], second[name]], marks) for name in changed}}


def element(value: Value) -> Value:
    """Return an element of an iteration over a value."""
    if isinstance(value, Items):
        return join(value.items.values(), value.marks) if value.items and value.exact else unknown(value.marks)
    if value.call is not None and value.call.name == names.TFDS:
        return Value(value.name, value.marks, call=value.call, of=value)
    if value.call is not None or value.name.endswith("[]"):
        return Value(f"{value.name}[]", value.marks, of=value)
    return Value(marks=value.marks, meaning=value.meaning)


def added(left: Value, right: Value) -> Value:
    """Return `left + right`, or the result of another operator."""
    if isinstance(left, Items) and isinstance(right, Items):
        return sequence([*left.items.values(), *right.items.values()], exact=left.exact and right.exact)
    return Value(marks=left.marks | right.marks)


def table(keys: Sequence[Value | None], values: Sequence[Value]) -> Items:
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


def result_of(name: str, args: Sequence[Value]) -> Value | None:
    """Return the value of a call without effect; None: another call."""
    if is_in("joins_paths", name) and args:
        texts = [text(part) or "" for part in args]
        path = "/".join(texts).replace("//", "/", 1)
        return Const(marks=union(args), value=path) if all(texts) else Value("?", union(args), f"path:{texts[0]}")
    first = args[0] if args else Items()
    if name == "builtins.len" and isinstance(first, Items) and first.exact and args:
        return Const(marks=first.marks, value=len(first.items))
    if (name == "builtins.next" and args) or (is_in("iterates", name) and first.call is not None):
        return element(first)
    is_plain = first.call is None and not first.marks & Mark.UNKNOWN and not isinstance(first, Items)
    is_kept = is_in("same", name) and is_plain and len(args) == 1
    return first if is_kept or (name == "tensorflow.function" and isinstance(first, Function)) else None


def marks_of_result(call: Call) -> Mark:
    """Return the marks of the result of a call outside the sources."""
    name, given = call.name, union(call.everything())
    source = names.meaning_of_name(f"{name}()")[1]
    if source:
        return source
    if is_in("pure", name):
        return given
    if call.method in _AS_RECEIVER and call.receiver is not MISSING:
        return given | call.receiver.marks
    if kind_of(call.receiver) == "strategy" and call.method in ("run", "experimental_local_results"):
        return Mark.LOCAL | Mark.UNKNOWN
    reduces = re.search(r"\.(?:all_)?(?:reduce|gather)$", name) is not None
    kept = Mark.REPLICAS | Mark.LOCAL if name.startswith("tensorflow.") and not reduces else Mark.REPLICAS
    return Mark.UNKNOWN | (given & kept)


# --- conditions: which task this is, whether there is a cluster, or the value of a constant -------------------------

_OPPOSITES = {"chief": "not_chief", "outside": "inside", "has_tf_config": "no_tf_config"}
_OPPOSITES |= {other: name for name, other in _OPPOSITES.items()}
_OF_THE_JOB = ("tf_config", "task", "cluster")
_OF_THE_TASK = ("index", "type", *_OF_THE_JOB)
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
        with suppress(TypeError):
            return Const(marks=marks, value=bool(_ORDER[type(op)](left.value, right.value)))
    swapped = right.meaning in _OF_THE_TASK
    item, other = (right, left) if swapped else (left, right)
    if item.meaning in _OF_THE_TASK and is_none(other):
        return Value(meaning="no_tf_config" if isinstance(op, ast.Is | ast.Eq) else "has_tf_config")
    meaning = ""
    if item.meaning == "index" and isinstance(other, Const) and other.value in (0, "0"):
        above = ast.Lt if swapped else ast.Gt
        meaning = "chief" if isinstance(op, ast.Eq) else "not_chief" if isinstance(op, ast.NotEq | above) else ""
    elif item.meaning == "type":
        names = {text(each) for each in (other.items.values() if isinstance(other, Items) else [other])}
        types = {"outside": _BESIDE, "chief": {"chief", "master"}}
        meaning = next((meaning for meaning, listed in types.items() if names and names <= listed), "")
        is_inside = "worker" in names and None not in names
        result = Value(meaning="inside") if is_inside else Value(marks=marks, meaning=meaning)
        return negated(result) if isinstance(op, ast.NotEq | ast.NotIn | ast.IsNot) else result
    return Value(marks=marks, meaning=meaning)


# --- functions and modules of the sources -------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def shared_names(node: ast.AST) -> frozenset[str] | None:
    """Return the names that a function declares global or nonlocal; None: it is a generator."""
    inner = list(ast.walk(node))
    if any(isinstance(item, ast.Yield | ast.YieldFrom) for item in inner):
        return None
    return frozenset(name for item in inner if isinstance(item, ast.Global | ast.Nonlocal) for name in item.names)


def parameters(function: Function, given: Call) -> dict[str, Value]:
    """Return the parameters of a function in a call."""
    declared = function.node.args
    plain = [argument.arg for argument in (*declared.posonlyargs, *declared.args)]
    named = [*plain, *(argument.arg for argument in declared.kwonlyargs)]
    args = [*([function.owner] if function.owner is not None else []), *given.args]
    defaults = {} if given.starred else function.defaults
    result = {name: defaults.get(name) or unknown() for name in named} | dict(zip(plain, args, strict=False))
    result |= {name: value for name, value in given.keywords.items() if name in named}
    if declared.vararg is not None:
        result[declared.vararg.arg] = sequence(args[len(plain) :], exact=not given.starred)
    if declared.kwarg is not None:
        rest = {name: value for name, value in given.keywords.items() if name not in named}
        result[declared.kwarg.arg] = Items(marks=union(rest.values()), items=rest, exact=not given.starred)
    return result


def passed_on(call: Call) -> Call:
    """Return the arguments that ``strategy.run`` passes on."""
    args, keywords = call.argument("args", 1), call.argument("kwargs", 2)
    is_exact = all(is_none(item) or (isinstance(item, Items) and item.exact) for item in (args, keywords))
    plain = [*args.items.values()] if isinstance(args, Items) and args.exact else []
    return Call(plain, keywords.items if isinstance(keywords, Items) else {}, not is_exact)


def exceptions(node: ast.expr | None) -> list[str]:
    """Return the names of the exceptions that a handler catches; ``*``: all."""
    items = node.elts if isinstance(node, ast.Tuple) else [node]
    caught = [ast.unparse(item).rpartition(".")[2] if item is not None else "*" for item in items]
    return ["*" if name in ("Exception", "BaseException") else name for name in caught]


def module_files(
    files: Iterable[str], entry: str, here: str, parts: Sequence[str], level: int
) -> list[tuple[str, str]]:
    """Return the packages and the module that an import runs, by their names and files; empty: another module.

    A package without a file has the name of the file that it could have.

    Args:
        files: All files.
        entry: The script.
        here: The file with the import.
        parts: Its dotted name.
        level: Number of dots before it.
    """
    above = here.split("/")
    roots = [posixpath.dirname(entry), ""] if not level else ["/".join(above[:-level])] if level <= len(above) else []
    for root in roots:
        result = []
        for depth in range(1, len(parts) + 1):
            path = posixpath.join(root, *parts[:depth])
            named = [name for name in (f"{path}/__init__.py", f"{path}.py") if name in files]
            if named or any(other.startswith(f"{path}/") for other in files):
                result.append((parts[depth - 1], [*named, f"{path}/__init__.py"][0]))
        if result and len(result) == len(parts):
            return result
    return []
