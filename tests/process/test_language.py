"""Tests of the language check. scripts/check runs the check itself."""

from __future__ import annotations

import pytest

from tests.language import PHRASES, check_python, check_text


@pytest.mark.parametrize(
    ("text", "banned"),
    [
        ("# 10s where not said", "where not said"),
        ("the script tells\n    # what it does", "tells"),
        ("a task that goes on", "goes on"),
        ("host-1 is no host", "is no"),
        ("There is no host-1", "there is no"),
    ],
)
def test_a_banned_phrase_is_found(text: str, banned: str) -> None:
    assert next(check_text("file.md", text)).text.startswith(banned)


@pytest.mark.parametrize(
    "text", ["host-1 does not exist", "stand-in", "aforesaid", "retold", "the task is no longer running"]
)
def test_other_text_is_accepted(text: str) -> None:
    assert not list(check_text("file.md", text))


@pytest.mark.parametrize(
    "code",
    [
        'def f():\n    """Whether it runs."""\n',
        "told = 1\n",
        "def test_who_is_told(): ...\n",
        "for one in []: ...\n",
        'raise ValueError("it failed.")\n',
    ],
)
def test_a_banned_name_docstring_or_error_is_found(code: str) -> None:
    assert list(check_python("file.py", code))


def test_every_phrase_has_a_replacement() -> None:
    assert all(replacement for _, replacement in PHRASES)
