from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.names import FLEET_NAME_LENGTH_MAX, index_of, instance_name, validate_fleet_name


@pytest.mark.parametrize("name", ["a", "demo", "mnist-2", "a" * 30, "a-worker-0", "a--b", "a-"])
def test_names_that_a_fleet_may_have(name: str) -> None:
    assert validate_fleet_name(name) == name


@pytest.mark.parametrize(
    "name", ["", "2demo", "-a", "Demo", "démo", "a_b", "a b", "a/b", "..", "a.b", "a\n", "a\0", "a²", "$(id)"]
)
def test_names_that_it_may_not_have(name: str) -> None:
    with pytest.raises(ValueError, match="must start with a lower-case letter") as error:
        validate_fleet_name(name)
    assert repr(name) in str(error.value)


def test_the_error_for_a_long_name_has_its_length() -> None:
    with pytest.raises(ValueError, match=r"fleet name 'a{31}' has 31 characters; at most 30 are allowed"):
        validate_fleet_name("a" * (FLEET_NAME_LENGTH_MAX + 1))


@given(st.integers(min_value=0, max_value=10**9))
def test_index_of_inverts_instance_name(index: int) -> None:
    assert index_of(instance_name(index)) == index


@pytest.mark.parametrize(
    "name", ["", "worker", "worker-", "worker-01", "worker--1", "worker-1\n", "worker-\u0661", "ps-0"]
)
def test_other_names_have_no_index(name: str) -> None:
    with pytest.raises(ValueError, match="invalid worker name"):
        index_of(name)
