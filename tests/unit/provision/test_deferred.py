"""Test dataclasses whose methods are generated when they are first used."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import sys
import threading
from dataclasses import FrozenInstanceError, field
from types import FrameType
from typing import Any

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


@dataclass
class Counter:
    """Changes."""

    limit: int = field(kw_only=True)
    names: list[str] = field(default_factory=list)
    secret: str = field(default="s", repr=False)
    total: int = field(default=0, init=False)
    parts: dict[str, int] = field(default_factory=dict, init=False)
    double: int = field(init=False)

    def __post_init__(self) -> None:
        self.double = 2 * self.limit


@dataclass(eq=False)
class Task:
    name: str


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


def test_a_class_of_the_standard_library_inherits_from_it() -> None:
    kind: Any = dataclasses.make_dataclass("Other", [("z", int, 3)], bases=(make(),), frozen=True)
    assert repr(kind(1)) == "Other(x=1, y=2, z=3)"
    with pytest.raises(FrozenInstanceError):
        kind(1).z = 2


def test_objects_of_a_class_that_is_not_frozen_change() -> None:
    counter = Counter(["a"], limit=2)
    counter.total += 1
    assert repr(counter) == "Counter(limit=2, names=['a'], total=1, parts={}, double=4)"
    assert counter != Counter(["a"], limit=2)
    assert (Counter(limit=2), Counter(limit=2).names) == (Counter(limit=2), [])
    assert vars(Counter)["__hash__"] is None
    with pytest.raises(TypeError, match="limit"):
        Counter()  # type: ignore[call-arg]


def test_objects_without_comparison_are_equal_only_to_themselves() -> None:
    task = Task("a")
    assert task != Task("a")
    assert {task: 1}[task] == 1


def test_a_class_keeps_the_methods_that_it_defines() -> None:
    @dataclass(frozen=True)
    class Word:  # noqa: PLW1641 - the decorator adds __hash__
        text: str

        def __init__(self, *parts: str) -> None:
            object.__setattr__(self, "text", "".join(parts))

        def __repr__(self) -> str:
            return self.text

        def __eq__(self, other: object) -> bool:
            return str(self) == str(other)

    assert repr(Word("a", "b")) == "ab"
    assert Word("a") == "a"
    assert hash(Word("a")) == hash(Word("a"))
    assert Word.__doc__ == "Word"


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


def interrupt_first_object(kind: type[Point], after: int) -> bool:
    """Raise KeyboardInterrupt at a line of the code that makes the first object; return whether there is one."""
    lines = 0

    def count(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        if event == "line" and lines == after:
            raise KeyboardInterrupt
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        kind(1)
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_class_stays_usable_if_its_first_use_is_interrupted_at_any_line() -> None:
    for after in itertools.count(1, 7):
        kind = make()

        @dataclass(frozen=True)
        class Named(kind):  # type: ignore[valid-type,misc]
            name: str = field(default="a", compare=False)
            parts: dict[str, int] = field(default_factory=dict, init=False)

        is_interrupted = interrupt_first_object(Named, after)
        named: Any = Named(1, name="b")
        assert (named, named.parts, named.name) == (Named(1), {}, "b"), after
        with pytest.raises(FrozenInstanceError):
            named.x = 2
        if not is_interrupted:
            break
    assert after > 100  # some lines were interrupted
