"""Frozen dataclasses whose methods are generated when a class is first used.

Python compiles the methods of a dataclass when its module is imported, which takes 0.5 to 1 ms for each class. A
command imports a hundred of them, and uses ten.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

_FIELDS = "__dataclass_fields__"  # documented as the mark of a dataclass
_LOCK = RLock()


class _Pending:
    """Stands for the fields of a class without methods; reading them generates the methods."""

    def __init__(self, owner: type) -> None:
        self.owner = owner

    def __get__(self, _instance: object, _type: type) -> Any:
        _complete(self.owner)
        return self.owner.__dict__[_FIELDS]


class _Deferred:
    """Base of these classes; its method is used until all methods of a class are generated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for each in type(self).__mro__:
            _complete(each)
        self.__init__(*args, **kwargs)  # type: ignore[misc] # the generated one


def _complete(cls: type) -> None:
    with _LOCK:
        if isinstance(cls.__dict__.get(_FIELDS), _Pending):
            twin = type(cls.__name__, (), _namespace(cls))
            twin = dataclasses.dataclass(frozen=True, eq=False, repr=False)(twin)
            dataclasses.dataclass(frozen=True, init=False)(cls)
            cls.__init__ = twin.__dict__["__init__"]  # type: ignore[misc] # last: until then, other threads wait above


def _namespace(cls: type) -> dict[str, Any]:
    return {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__", _FIELDS)}


def _defer(cls: type) -> type:
    if cls.__bases__ != (object,):  # it would inherit the generated methods of its base
        return dataclasses.dataclass(frozen=True)(cls)
    made = type(cls.__name__, (_Deferred,), _namespace(cls))
    setattr(made, _FIELDS, _Pending(made))
    return made


if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool) -> Callable[[type], type]:
        """Return the decorator of a frozen dataclass without methods that call ``super()``."""
        if not frozen:
            raise ValueError("only frozen classes")
        return _defer
