"""Test that checkpoints appear in the directory of a task that reads them while other tasks train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.replicators import Yard, step_of


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


def test_what_is_fetched_is_shown_where_it_is_wanted_and_others_files_stay(yard: Yard) -> None:
    chief, evaluator, worker = yard.host(), yard.host("worker-1"), yard.host("worker-2")
    evaluator.replicator.update_live(on=True)
    evaluator.write(("eval/events", "mine"))
    first = chief.snapshot(
        ("checkpoint", 'model_checkpoint_path: "ckpt-1"\n'),
        ("ckpt-1.index", "1"),
        ("ckpt-1.data-00000-of-00001", "1"),
        ("a/b.h5", "b"),
    )
    for host in (evaluator, worker):
        host.fetch(first, chief)
    assert worker.content() == {}
    assert {name: evaluator.content()[name] for name in chief.content()} == chief.content()
    assert "eval/events" in evaluator.content()

    (chief.live / "ckpt-1.index").unlink()
    (chief.live / "ckpt-1.data-00000-of-00001").unlink()
    (chief.live / "a" / "b.h5").unlink()
    (chief.live / "a").rmdir()
    second = chief.snapshot(
        ("checkpoint", 'model_checkpoint_path: "ckpt-2"\n'),
        ("ckpt-2.index", "2"),
        ("ckpt-2.data-00000-of-00001", "2"),
    )
    evaluator.fetch(second, chief)
    assert sorted(evaluator.content()) == [
        "checkpoint",
        "ckpt-2.data-00000-of-00001",
        "ckpt-2.index",
        "eval",
        "eval/events",
    ]
    assert (evaluator.live / "checkpoint").read_text() == 'model_checkpoint_path: "ckpt-2"\n'

    evaluator.replicator.update_live(on=False)
    evaluator.fetch(chief.snapshot(("other.h5", "3")), chief)
    assert "other.h5" not in evaluator.content()


def test_a_reader_never_finds_a_checkpoint_that_is_named_and_not_there(yard: Yard) -> None:
    chief, evaluator = yard.host(), yard.host("worker-1")
    evaluator.replicator.update_live(on=True)
    writer = yard.writer(chief, "tensorflow", pause=0.05)
    seen: set[str] = set()

    def named() -> str:
        return (evaluator.live / "checkpoint").read_text().splitlines()[0].split('"')[1]

    def read_on() -> bool:
        if chief.held is not None and chief.held != evaluator.held:
            evaluator.replicator.fetch(chief.held, [chief.source])
        if (evaluator.live / "checkpoint").exists():
            newest = named()
            try:
                steps = {step_of(evaluator.live / f"{newest}{end}") for end in (".index", ".data-00000-of-00001")}
            except FileNotFoundError:  # removed meanwhile, after a newer one had been named
                assert named() != newest
                return False
            assert steps == {int(newest.rpartition("-")[2])}
            seen.add(newest)
        return len(seen) >= 5

    yard.until(read_on, "five checkpoints at the reader")
    yard.end(writer)
