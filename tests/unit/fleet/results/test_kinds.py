"""Names of the kinds of results."""

from __future__ import annotations

import pytest

from fleet.errors import UsageError
from fleet.results.kinds import parse_kinds
from train.agent.protocol.records import Area


def test_kinds_are_names_between_commas() -> None:
    assert parse_kinds("") == ()
    assert parse_kinds(" logs, Model ") == (Area.MODEL, Area.LOGS)


@pytest.mark.parametrize(("text", "hint"), [("modle", "did you mean 'model'? "), ("model,,logs", ""), ("all", "")])
def test_an_unknown_kind_is_rejected_and_the_nearest_one_is_named(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match="is not a kind of results") as caught:
        parse_kinds(text)
    assert caught.value.hint == f"{hint}--what takes model, checkpoints, tensorboard, files, logs between commas"
