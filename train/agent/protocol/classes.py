"""Create named tuples without the module typing, which takes a third of the time that an agent needs to start.

Modules of the agent import `TYPE_CHECKING` and `NamedTuple` from here, and typing only for the type checker. They
postpone the evaluation of annotations (PEP 563), so that no name of typing is needed when they run.
"""

from __future__ import annotations

from _operator import itemgetter

try:
    from _collections import _tuplegetter  # type: ignore[import-not-found]
except ImportError:  # an accelerator of CPython, as in the module collections
    _tuplegetter = None

__all__ = ["TYPE_CHECKING", "NamedTuple"]

TYPE_CHECKING = False  # type checkers take a variable of this name as true

if TYPE_CHECKING:
    from typing import Any, Dict, List, NamedTuple, Tuple


_GETTERS: Dict[int, Any] = {}  # of a field by its number


def _getter(index: int) -> Any:
    if index not in _GETTERS:
        doc = f"Alias for field number {index}"
        _GETTERS[index] = _tuplegetter(index, doc) if _tuplegetter else property(itemgetter(index), doc=doc)
    return _GETTERS[index]


_KINDS: List[Any] = []  # all classes of named tuples


def _create(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """Compile the constructor of a class, and return its first instance. Most processes use few of the classes."""
    constructor = _compile(next(kind for kind in cls.__mro__ if "_fields" in vars(kind)))
    return constructor(cls, *args, **kwargs)


def compile_constructors() -> None:
    """Compile the constructors of all classes, for a process that forks others."""
    for kind in _KINDS:
        _compile(kind)


def _compile(owner: Any) -> Any:
    """Compile the constructor of a class, and return it."""
    names = "".join(f"{name}, " for name in owner._fields)
    source = f"lambda _cls, {names}: _new(_cls, ({names}))"
    constructor = eval(source, {"_new": tuple.__new__, "__builtins__": {}})  # noqa: S307 - names of fields, as in collections.namedtuple
    constructor.__defaults__ = tuple(owner._field_defaults.values())
    constructor.__name__ = "__new__"
    constructor.__qualname__ = f"{owner.__qualname__}.__new__"
    owner.__new__ = staticmethod(constructor)
    return constructor


class _NamedTupleType(type):
    """Class of the classes of named tuples."""

    def __new__(mcs, name: str, bases: Tuple[type, ...], namespace: Dict[str, Any]) -> Any:
        if _BASES and bases == _BASES:
            fields = tuple(namespace.get("__annotations__", ()))
            defaults = {field: namespace[field] for field in fields if field in namespace}
            if tuple(defaults) != fields[len(fields) - len(defaults) :]:
                raise TypeError(f"{name} has a field without a default after one that has a default")
            namespace.update((field, _getter(index)) for index, field in enumerate(fields))
            namespace.update(
                __slots__=(), __match_args__=fields, __new__=_create, _fields=fields, _field_defaults=defaults
            )
            _KINDS.append(type.__new__(mcs, name, bases, namespace))
            return _KINDS[-1]
        return type.__new__(mcs, name, bases, namespace)


_BASES: Tuple[type, ...] = ()

if not TYPE_CHECKING:

    class NamedTuple(tuple, metaclass=_NamedTupleType):
        """Base class of named tuples, as typing.NamedTuple."""

        __slots__ = ()

        def _replace(self, **changes):
            changed = tuple.__new__(type(self), map(changes.pop, self._fields, self))
            if changes:
                raise ValueError(f"unexpected fields: {[*changes]}")
            return changed

        def _asdict(self):
            return {name: self[index] for index, name in enumerate(self._fields)}

        def __repr__(self):
            values = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({values})"

        def __getnewargs__(self):
            return tuple(self)

    _BASES = (NamedTuple,)
