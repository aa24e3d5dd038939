"""Test dataclasses whose methods are generated when they are first used."""

from __future__ import annotations

import dataclasses
import pickle
import threading
from dataclasses import FrozenInstanceError, field

import pytest

from provision.deferred import dataclass


@dataclass(frozen=True)
class Point:
    """A point."""

    x: int
    y: int = 2
    names: tuple[str, ...] = field(default=(), compare=False)

    def total(self) -> int:
        return self.x + self.y


@dataclass(frozen=True)
class Named(Point):
    name: str = "a"


def make() -> type[Point]:
    @dataclass(frozen=True)
    class Point:
        x: int
        y: int = 2

    return Point  # type: ignore[return-value]


def test_it_is_a_frozen_dataclass() -> None:
    point = Point(1, names=("b",))
    assert (point, repr(point), hash(point)) == (Point(1, 2), "Point(x=1, y=2, names=('b',))", hash(Point(1)))
    assert dataclasses.replace(point, x=3) == Point(3)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "names": ("b",)}
    assert (point.total(), Point.__doc__, Point.__match_args__) == (3, "A point.", ("x", "y", "names"))
    assert pickle.loads(pickle.dumps(point)) == point
    with pytest.raises(FrozenInstanceError):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        Point()  # type: ignore[call-arg]


def test_the_fields_can_be_read_before_the_first_object() -> None:
    kind = make()
    assert [each.name for each in dataclasses.fields(kind)] == ["x", "y"]
    assert dataclasses.is_dataclass(make())


def test_a_class_inherits_fields() -> None:
    assert repr(Named(1, name="c")) == "Named(x=1, y=2, names=(), name='c')"
    assert Named(1) != Point(1)
    kind = type("Plain", (make(),), {})
    assert kind(1).y == 2


def create(kind: type[Point], objects: list[Point], begin: threading.Barrier) -> None:
    begin.wait()
    objects.append(kind(1))


def test_several_threads_create_the_first_objects() -> None:
    for _ in range(20):
        kind = make()
        objects: list[Point] = []
        begin = threading.Barrier(4)
        threads = [threading.Thread(target=create, args=(kind, objects, begin)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert objects == [kind(1)] * 4
