"""Dataclasses whose methods are shared, or generated when a class is first used.

The decorator of the standard library compiles eight methods for each class when its module is imported, which takes
0.5 to 1 ms. A command imports a hundred of these classes, and uses thirty. Here, a class compiles only its
`__init__`, for its first object; the other methods are the same functions for all classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_FIELDS = "__dataclass_fields__"  # documented as the mark of a dataclass
_KEY = "__dataclass_key__"
_LOCK = RLock()


class _Pending:
    """Stands for an attribute of a class without fields; reading it makes the fields.

    Args:
        owner: The class.
        name: Name of the attribute.
        frozen: Whether objects of the class are frozen.
    """

    def __init__(self, owner: type, name: str, *, frozen: bool) -> None:
        self.owner = owner
        self.name = name
        self.frozen = frozen

    def __get__(self, _instance: object, _type: type) -> Any:
        _complete(self.owner)
        return vars(self.owner)[self.name]


def _complete(cls: type) -> None:
    """Make the fields and the constructor of a class if they are still pending."""
    with _LOCK:
        pending = vars(cls)[_FIELDS]
        if isinstance(pending, _Pending):
            before = dict(vars(cls))
            try:
                _make_methods(cls, frozen=pending.frozen)
            except BaseException:  # Ctrl-C, at any line
                _restore(cls, before)
                raise


def _restore(cls: type, attributes: dict[str, Any]) -> None:
    """Make the attributes of a class what they were, so that its next use makes the methods again."""
    for name in vars(cls).keys() - attributes.keys():
        delattr(cls, name)
    for name, value in attributes.items():
        if vars(cls).get(name) is not value:
            setattr(cls, name, value)


def _make_methods(cls: type, *, frozen: bool) -> None:
    cls.__doc__ = cls.__doc__ or cls.__name__  # otherwise made from the signature, which takes long
    dataclasses.dataclass(init=False, repr=False, eq=False, frozen=frozen)(cls)
    fields = dataclasses.fields(cls)
    setattr(cls, _KEY, staticmethod(_make_key([field.name for field in fields if field.compare])))
    if getattr(vars(cls)["__init__"], "is_pending", False):
        cls.__init__ = _make_init(cls, fields)  # type: ignore[misc] # last: other threads wait for the lock


def _make_key(names: list[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns the fields of an object that are compared."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda each: tuple(getattr(each, name) for name in names)


def _make_init(cls: type, fields: tuple[dataclasses.Field[Any], ...]) -> Any:
    """Compile the constructor of a class."""
    positional: list[str] = []
    keywords: list[str] = []
    lines: list[str] = []
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    for field in fields:
        name, parameter, value = field.name, field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_make_{name}"] = field.default_factory
            value = f"_make_{name}() if {name} is _missing else {name}" if field.init else f"_make_{name}()"
            parameter = f"{name}=_missing"
        elif field.default is not dataclasses.MISSING:
            scope[f"_default_{name}"] = field.default
            value = value if field.init else f"_default_{name}"
            parameter = f"{name}=_default_{name}"
        elif not field.init:  # set by __post_init__
            continue
        if field.init:
            (keywords if field.kw_only else positional).append(parameter)
        lines.append(f" _set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    parameters = ", ".join(["self", *positional, *(["*", *keywords] if keywords else [])])
    exec(f"def __init__({parameters}):\n" + ("\n".join(lines) or " pass"), scope)  # noqa: S102 - names of fields
    made = scope["__init__"]
    made.__qualname__ = f"{cls.__qualname__}.__init__"
    return made


def _make_first_init(cls: type) -> Callable[..., None]:
    """Return the constructor that is used until the class has its own."""

    def __init__(self: object, *args: Any, **kwargs: Any) -> None:  # noqa: N807
        _complete(cls)
        vars(cls)["__init__"](self, *args, **kwargs)

    __init__.is_pending = True  # type: ignore[attr-defined]
    return __init__


def _equals(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    key = getattr(self, _KEY)
    return key(self) == key(other)


def _hash(self: Any) -> int:
    return hash(getattr(self, _KEY)(self))


def _represent(self: Any) -> str:
    shown = (f"{each.name}={getattr(self, each.name)!r}" for each in dataclasses.fields(self) if each.repr)
    return f"{self.__class__.__qualname__}({', '.join(shown)})"


def _defer(cls: type, *, frozen: bool, eq: bool) -> type:
    methods: dict[str, Any] = {"__repr__": _represent, "__init__": _make_first_init(cls)}
    methods |= {"__eq__": _equals, "__hash__": _hash if frozen else None} if eq else {}
    for name, method in methods.items():
        if vars(cls).get(name) is None:  # of a class that defines __eq__, the attribute __hash__ is None
            setattr(cls, name, method)
    for name in (_FIELDS, _KEY):
        setattr(cls, name, _Pending(cls, name, frozen=frozen))
    return cls


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        cls: type | None = None, /, *, frozen: bool = False, eq: bool = True
    ) -> type | Callable[[type], type]:
        """Return a class as a dataclass, or the decorator that does; its fields must not include an `InitVar`."""
        return partial(_defer, frozen=frozen, eq=eq) if cls is None else _defer(cls, frozen=frozen, eq=eq)
