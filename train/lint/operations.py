"""Values of operations, and of calls of code outside the sources, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from train.lint import names
from train.lint.names import is_in, kind_of
from train.lint.values import MISSING, Call, Const, Function, Items, Mark, Value, sequence, text, union, unknown

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
