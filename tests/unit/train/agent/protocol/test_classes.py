"""Named tuples of the agent behave like those of the module typing."""

from __future__ import annotations

import copy
import pickle
import typing

import pytest

from train.agent.protocol.classes import NamedTuple


class Ours(NamedTuple):
    first: int
    second: list[str]
    third: str = "c"
    fourth: int | None = None

    @property
    def total(self) -> int:
        return self.first + len(self.second)


class Theirs(typing.NamedTuple):
    first: int
    second: list[str]
    third: str = "c"
    fourth: int | None = None


class Derived(Ours):
    @property
    def double(self) -> int:
        return 2 * self.first


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((1, ["b"]), {}), ((1,), {"second": []}), ((1, [], "x", 4), {}), ((), {"second": [], "fourth": 4, "first": 2})],
)
def test_values_are_equal(arguments: tuple[typing.Any, ...], named: dict[str, typing.Any]) -> None:
    ours, theirs = Ours(*arguments, **named), Theirs(*arguments, **named)
    assert tuple(ours) == tuple(theirs)
    assert ours._asdict() == theirs._asdict()
    assert [*ours] == [ours.first, ours.second, ours.third, ours.fourth]
    assert repr(ours) == repr(theirs).replace("Theirs", "Ours")
    assert not hasattr(ours, "__dict__")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((), {}), ((1,), {}), ((1, [], "", 1, 1), {}), ((1, []), {"fifth": 5}), ((1, []), {"first": 1})],
)
def test_invalid_arguments_are_refused(arguments: tuple[typing.Any, ...], named: dict[str, typing.Any]) -> None:
    for kind in (Ours, Theirs, Derived):
        with pytest.raises(TypeError):
            kind(*arguments, **named)


def test_fields_and_defaults_are_equal() -> None:
    for kind in (Ours, Derived):
        assert kind._fields == Theirs._fields
        assert kind._field_defaults == Theirs._field_defaults
        assert kind.__match_args__ == Theirs.__match_args__


def test_a_replacement_keeps_the_class_and_refuses_unknown_fields() -> None:
    changed = Derived(1, ["b"])._replace(first=3)
    assert (type(changed), changed.total, changed.double) == (Derived, 4, 6)
    with pytest.raises(ValueError, match="fifth"):
        changed._replace(fifth=5)  # type: ignore[call-arg]


def test_instances_are_immutable_and_can_be_copied() -> None:
    ours = Ours(1, ["b"])
    with pytest.raises(AttributeError):
        ours.first = 2  # type: ignore[misc]
    assert copy.deepcopy(ours) == ours == pickle.loads(pickle.dumps(ours))
    match ours:
        case Ours(first, [second]):
            assert (first, second) == (1, "b")


def test_a_field_without_a_default_cannot_follow_one_with_a_default() -> None:
    namespace = {"__annotations__": {"first": "int", "second": "int"}, "first": 1}
    create: typing.Any = type(Ours)
    with pytest.raises(TypeError, match="Wrong"):
        create("Wrong", Ours.__bases__, namespace)
