"""Complete states of checkpoint directories."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from train.agent.checkpoints.formats import (
    DirectoryListing,
    State,
    complete_state,
    is_ignored,
    named_checkpoints,
)
from train.agent.checkpoints.snapshot import PathItem, PathKind


def files(*paths: str, mtime_ns: int = 1) -> list[PathItem]:
    return [PathItem(path, PathKind.FILE, 0o644, 1, mtime_ns) for path in paths]


def directory(path: str) -> PathItem:
    return PathItem(path, PathKind.DIRECTORY, 0o755)


def saved(prefix: str, shards: int = 1, mtime_ns: int = 1) -> list[PathItem]:
    data = [f"{prefix}.data-{n:05}-of-{shards:05}" for n in range(shards)]
    return files(f"{prefix}.index", *data, mtime_ns=mtime_ns)


def named(newest: str, *others: str) -> str:
    lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in others]
    return f'model_checkpoint_path: "{newest}"\n' + "".join(lines)


def seen(entries: Sequence[PathItem], text: str = "") -> State | None:
    texts = {entry.path: text for entry in entries if entry.path.split("/")[-1] == "checkpoint"}
    return complete_state(DirectoryListing("/live", entries, texts))


def state(entries: Sequence[PathItem], text: str = "") -> State:
    result = seen(entries, text)
    assert result is not None
    return result


def paths(state: State | None) -> set[str] | None:
    return None if state is None else {entry.path for entry in state.entries}


# --- complete states --------------------------------------------------------------------------------------------


def test_what_tensorflow_names_is_complete_and_declared_so() -> None:
    entries = [*files("checkpoint"), *saved("ckpt-3"), *saved("ckpt-4", shards=2)]
    result = state(entries, named("ckpt-4", "ckpt-3", "ckpt-4"))
    assert paths(result) == set(result.declared_complete) == {entry.path for entry in entries}


@pytest.mark.parametrize("lost", ["ckpt-4.index", "ckpt-4.data-00000-of-00002", "ckpt-4.data-00001-of-00002"])
def test_a_newest_checkpoint_that_lacks_a_file_is_not_complete(lost: str) -> None:
    entries = [*files("checkpoint"), *saved("ckpt-3"), *saved("ckpt-4", shards=2)]
    assert seen([entry for entry in entries if entry.path != lost], named("ckpt-4", "ckpt-3")) is None


def test_half_of_the_next_checkpoint_and_the_rest_of_an_old_one_are_left_out() -> None:
    whole = [*files("checkpoint"), *saved("ckpt-4")]
    half = [
        directory("ckpt-5_temp"),
        *files("ckpt-5_temp/part-00000-of-00001.data-00000-of-00001"),
        *files("ckpt-5.data-00000-of-00001", "checkpoint.tmp0a1b2c", "ckpt-5.tempstate123", "ckpt-1.index"),
    ]
    assert paths(seen([*whole, *half], named("ckpt-4", "ckpt-1"))) == {entry.path for entry in whole}


def test_one_being_saved_again_under_its_name_is_not_complete() -> None:
    entries = [*files("checkpoint"), *saved("weights")]
    assert seen(entries, named("weights"))
    assert seen([*entries, directory("weights_temp")], named("weights")) is None


def test_without_a_state_file_a_half_checkpoint_is_waited_for() -> None:
    assert seen(saved("w")) is not None
    assert seen(files("w.data-00000-of-00001")) is None
    assert seen(files("w.index")) is not None  # something else that is called so


def test_names_with_a_path_are_found_within_the_directory() -> None:
    entries = [directory("sub"), *files("sub/checkpoint"), *saved("sub/ckpt-1")]
    for name in ("ckpt-1", "/live/sub/ckpt-1", "../sub/ckpt-1"):
        assert seen(entries, named(name)) is not None
    assert seen(entries, named("ckpt-2")) is None
    assert seen(entries, named("/elsewhere/ckpt-2")) is not None  # nothing of ours


@pytest.mark.parametrize(
    ("name", "is_kept"),
    [
        *((name, False) for name in ("b.tmp", "b.json.tmp.123", "b.tmp0af", "b.part", "b.temp", "tmpab12_xyz", "b~")),
        *((name, False) for name in ("3.orbax-checkpoint-tmp-17/x", "ckpt-2_temp/part", "pipe")),
        *((name, True) for name in ("model.tmpl", "template", "temperature.npy", "my_temp.h5")),
    ],
)
def test_temporary_files_are_no_part_of_a_state(name: str, is_kept: bool) -> None:
    entry = PathItem(name, PathKind.OTHER if name == "pipe" else PathKind.FILE, 0o600)
    assert paths(seen([*files("a.json"), entry])) == ({"a.json", name} if is_kept else {"a.json"})


def test_what_other_workers_write_is_ignored() -> None:
    for path in ("workertemp_1/ckpt-1.data-00000-of-00001", ".fleet-12", "a/.nfs0000000000000001", "lost+found"):
        assert is_ignored(path)
    assert is_ignored("logs/events.out.tfevents.1.host.7.0.v2")
    assert not is_ignored("model.h5")


def test_a_state_file_is_read_with_its_escapes() -> None:
    text = 'model_checkpoint_path: "a\\"b\\303\\274"\nall_model_checkpoint_paths: "c"\n'
    assert named_checkpoints(text) == ['a"bü', "c"]
    assert named_checkpoints("something else") == []


# --- what is complete although the directory was not at rest -----------------------------------------------------


def test_only_what_tensorflow_declares_may_have_changed() -> None:
    old = state([*files("checkpoint"), *saved("ckpt-1"), *files("notes.txt")], named("ckpt-1")).keys
    new = [*files("checkpoint", mtime_ns=2), *saved("ckpt-2")]
    notes = files("notes.txt")
    part = state([*new, *notes], named("ckpt-2")).declared_part(old)
    assert paths(part) == {entry.path for entry in [*new, *notes]}
    for other in ([], files("notes.txt", mtime_ns=2), [*notes, *files("history.json")]):
        assert state([*new, *other], named("ckpt-2")).declared_part(old) is None
    assert state(files("weights.h5", mtime_ns=2)).declared_part(state(files("weights.h5")).keys) is None


def backup(*entries: PathItem, text: str = '{"epoch": 2}') -> State:
    result = complete_state(DirectoryListing("/live", entries, {"b/training_metadata.json": text}))
    assert result is not None
    return result


def test_a_backup_of_keras_is_complete_when_its_metadata_are_the_newest_file() -> None:
    weights, metadata = files("b/latest.weights.h5", mtime_ns=4), files("b/training_metadata.json", mtime_ns=5)
    copies = files("b/latest.weights.h5.bkp", "b/training_metadata.json.bkp", mtime_ns=3)
    whole = backup(directory("b"), *weights, *metadata, *copies)
    assert len(whole.declared_complete) == 4
    assert whole.declared_part({}) == whole
    assert backup(*weights, *metadata, *files("b/other.h5")).declared_complete == {weights[0].path, metadata[0].path}
    assert not backup(*metadata).declared_complete  # no weights
    assert not backup(*weights, *metadata, *copies, text="").declared_complete
    for newer in ("b/latest.weights.h5", "b/latest.weights.h5.bkp", "b/training_metadata.json.bkp"):
        kept = [entry for entry in [*weights, *metadata, *copies] if entry.path != newer]
        assert not backup(*kept, *files(newer, mtime_ns=6)).declared_complete


def test_a_checkpoint_that_is_not_named_yet_is_left_out() -> None:
    old = state([*files("checkpoint"), *saved("ckpt-1"), *saved("best")], named("ckpt-1")).keys
    kept = [*files("checkpoint", mtime_ns=2), *saved("ckpt-2"), *saved("best")]
    assert paths(state([*kept, *saved("ckpt-3")], named("ckpt-2")).declared_part(old)) == {e.path for e in kept}
