"""Complete states of checkpoint directories, the time at which they count, and the contents of snapshots."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train.agent.checkpoints.snapshot import (
    CALM_S,
    FRESH_NS,
    MAX_INCOMPLETE,
    QUIET_PROVEN_S,
    QUIET_S,
    RAN_TICKS,
    STARVING_S,
    UNLIKELY_QUIET_S,
    Item,
    Keys,
    Kind,
    Listing,
    Manifest,
    Observer,
    Snapshot,
    State,
    Thread,
    complete_state,
    decode_manifest,
    digest_of,
    encode_manifest,
    identity,
    named_checkpoints,
    newer,
    read_snapshot,
    replicated_keys,
    replication_problem,
    surplus,
)

NOW = 10**18
OLD = NOW - 2 * FRESH_NS


def files(*paths: str, mtime_ns: int = OLD, inode: int = 1) -> list[Item]:
    return [Item(path, Kind.FILE, 0o644, 1, mtime_ns, inode=inode) for path in paths]


def directory(path: str) -> Item:
    return Item(path, Kind.DIRECTORY, 0o755)


def saved(prefix: str, shards: int = 1, inode: int = 1) -> list[Item]:
    data = [f"{prefix}.data-{n:05}-of-{shards:05}" for n in range(shards)]
    return files(f"{prefix}.index", *data, inode=inode)


def named(newest: str, *others: str) -> str:
    lines = [f'all_model_checkpoint_paths: "{name}"\n' for name in others]
    return f'model_checkpoint_path: "{newest}"\n' + "".join(lines)


def seen(
    entries: Sequence[Item], text: str = "", *, writing: Sequence[str] = (), baseline: Keys | None = None
) -> State | None:
    texts = {
        entry.path: text for entry in entries if entry.path.split("/")[-1] == "checkpoint" and entry.kind is Kind.FILE
    }
    return complete_state(Listing("/live", entries, texts, frozenset(writing), NOW), baseline or {})


def paths(state: State | None) -> set[str] | None:
    return None if state is None else {entry.path for entry in state.entries}


def state(*entries: Item) -> State:
    result = seen(entries)
    assert result is not None
    return result


# --- complete states --------------------------------------------------------------------------------------------


def test_what_tensorflow_names_is_complete_and_declared_so() -> None:
    entries = [*files("checkpoint"), *saved("ckpt-3"), *saved("ckpt-4", shards=2)]
    result = seen(entries, named("ckpt-4", "ckpt-3", "ckpt-4"))
    assert paths(result) == {entry.path for entry in entries}
    assert result is not None
    assert set(result.declared_complete) == paths(result)


@pytest.mark.parametrize("lost", ["ckpt-4.index", "ckpt-4.data-00000-of-00002", "ckpt-4.data-00001-of-00002"])
def test_a_newest_checkpoint_that_lacks_a_file_is_not_complete(lost: str) -> None:
    entries = [*files("checkpoint"), *saved("ckpt-3"), *saved("ckpt-4", shards=2)]
    assert seen([entry for entry in entries if entry.path != lost], named("ckpt-4", "ckpt-3")) is None


def test_half_of_the_next_checkpoint_is_left_out() -> None:
    whole = [*files("checkpoint"), *saved("ckpt-4")]
    half = [
        directory("ckpt-5_temp"),
        *files("ckpt-5_temp/part-00000-of-00001.data-00000-of-00001", mtime_ns=NOW),
        *files("ckpt-5.data-00000-of-00001", "checkpoint.tmp0a1b2c", "ckpt-5.tempstate123", mtime_ns=NOW),
    ]
    text = named("ckpt-4", "ckpt-4")
    assert paths(seen([*whole, *half], text)) == {entry.path for entry in whole}
    assert paths(seen([*whole, *saved("ckpt-5")], text, writing=["ckpt-5.index"])) == {entry.path for entry in whole}


def test_one_being_saved_again_under_its_name_is_not_complete() -> None:
    entries = [*files("checkpoint"), *saved("weights")]
    assert seen(entries, named("weights"))
    assert seen([*entries, directory("weights_temp")], named("weights")) is None
    assert seen(entries, named("weights"), writing=["weights.index"]) is None


def test_an_old_one_that_is_being_removed_does_not_matter() -> None:
    entries = [*files("checkpoint", "ckpt-1.index"), *saved("ckpt-4")]
    assert paths(seen(entries, named("ckpt-4", "ckpt-1", "ckpt-4"))) == {
        "checkpoint",
        *(f.path for f in saved("ckpt-4")),
    }


def test_a_complete_checkpoint_that_is_not_named_is_kept_but_not_declared() -> None:
    entries = [*files("checkpoint"), *saved("ckpt-4"), *saved("best")]
    result = seen(entries, named("ckpt-4"))
    assert paths(result) == {entry.path for entry in entries}
    assert result is not None
    assert "best.index" not in result.declared_complete


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


def test_keras_files_count_once_no_process_writes_to_them() -> None:
    entries = files("latest.weights.h5", "training_metadata.json", mtime_ns=NOW)
    assert seen(entries, writing=["latest.weights.h5"]) is None
    assert paths(seen(entries)) == {"latest.weights.h5", "training_metadata.json"}


def test_what_other_workers_write_and_leftovers_are_no_part_of_it() -> None:
    entries = [
        directory("workertemp_1"),
        *files("workertemp_1/ckpt-1.data-00000-of-00001", ".fleet-12", ".nfs0000000000000001"),
        directory("lost+found"),
        Item("pipe", Kind.OTHER, 0o600),
        *files("model.h5"),
    ]
    assert paths(seen(entries, writing=["workertemp_1/ckpt-1.data-00000-of-00001"])) == {"model.h5"}


@pytest.mark.parametrize("name", ["b.tmp", "b.json.tmp.123", "b.tmp0af", "b.part", "b.temp", "tmpab12_xyz"])
def test_a_fresh_temporary_name_is_waited_for_and_an_old_one_is_a_leftover(name: str) -> None:
    rest = files("a.json", "c.json")
    assert seen([*rest, *files(name, mtime_ns=NOW)]) is None
    assert paths(seen([*rest, *files(name)])) == {"a.json", "c.json"}
    assert seen([*rest, *files(name)], writing=[name]) is None


def test_a_temporary_name_for_what_is_new_already_belongs_to_what_comes_next() -> None:
    entries = [*files("a.json", "b.json"), *files("a.json.tmp", mtime_ns=NOW)]
    assert seen(entries) is not None
    baseline = {entry.path: entry.key for entry in files("a.json", "b.json")}
    assert seen(entries, baseline=baseline) is None
    assert seen([*files("only.json"), *files("tmpab12_xyz", mtime_ns=NOW)]) is not None


def test_names_that_only_look_temporary_are_kept() -> None:
    entries = files("model.tmpl", "template", "temperature.npy", "my_temp.h5")
    assert paths(seen(entries)) == {entry.path for entry in entries}


def test_a_state_file_is_read_with_its_escapes() -> None:
    assert named_checkpoints('model_checkpoint_path: "a\\"b\\303\\274"\nall_model_checkpoint_paths: "c"\n') == [
        'a"bü',
        "c",
    ]
    assert named_checkpoints("something else") == []


# --- when it counts ---------------------------------------------------------------------------------------------

NONE: frozenset[str] = frozenset()
ASLEEP = {1: Thread("S", 0)}


def test_a_state_counts_after_it_was_unchanged_for_a_time() -> None:
    observed = state(*files("a.h5"))
    observer = Observer({})
    assert not observer.is_due(observed, NONE, 1.0, ASLEEP)
    assert observer.wait_s(1.0) == pytest.approx(QUIET_S)
    assert not observer.is_due(observed, NONE, 1.0 + QUIET_S / 2, ASLEEP)
    assert observer.is_due(observed, NONE, 1.0 + QUIET_S, ASLEEP)
    observer.mark_taken(observed)
    assert not observer.is_due(observed, NONE, 9.0, ASLEEP)
    assert observer.wait_s(9.0) is None


def test_a_change_restarts_the_wait_and_starving_shortens_it_until_there_is_calm() -> None:
    def look(number: int) -> State:
        return state(*files("a.h5", inode=number))

    observer = Observer({})
    now = 0.0
    while now < STARVING_S:
        assert not observer.is_due(look(int(now * 1000) + 10), NONE, now, ASLEEP)
        now += QUIET_S / 2
    assert not observer.is_due(look(1), NONE, now, ASLEEP)
    assert observer.is_due(look(1), NONE, now + QUIET_PROVEN_S, ASLEEP)
    observer.mark_taken(look(1))
    assert not observer.is_due(look(2), NONE, now + CALM_S, ASLEEP)
    assert observer.is_due(look(2), NONE, now + CALM_S + QUIET_PROVEN_S, ASLEEP)
    observer.mark_taken(look(2))
    now += 3 * CALM_S
    assert not observer.is_due(look(3), NONE, now, ASLEEP)
    assert not observer.is_due(look(3), NONE, now + QUIET_PROVEN_S, ASLEEP)
    assert observer.is_due(look(3), NONE, now + QUIET_S, ASLEEP)


def test_what_is_declared_complete_needs_little_rest_and_none_when_starving() -> None:
    def look(step: int) -> State | None:
        return seen([*files("checkpoint", inode=step), *saved(f"ckpt-{step}")], named(f"ckpt-{step}"))

    observer = Observer({})
    assert not observer.is_due(look(1), NONE, 0.0, ASLEEP)
    assert observer.is_due(look(1), NONE, QUIET_PROVEN_S, ASLEEP)
    assert not observer.is_due(look(2), NONE, STARVING_S / 2, ASLEEP)
    assert observer.is_due(look(3), NONE, STARVING_S, ASLEEP)


def test_an_emptied_directory_is_given_time_to_be_filled_again() -> None:
    observer = Observer(state(*files("a.h5")).keys)
    empty = state()
    assert not observer.is_due(empty, NONE, 1.0, ASLEEP)
    assert not observer.is_due(empty, NONE, 1.0 + UNLIKELY_QUIET_S - 1, ASLEEP)
    assert observer.last(empty, NONE, is_orderly=False) is None
    assert observer.last(empty, NONE, is_orderly=True) == empty
    assert observer.is_due(empty, NONE, 1.0 + UNLIKELY_QUIET_S, ASLEEP)


def test_after_a_kill_only_what_was_seen_alive_counts() -> None:
    before, after = state(*files("a.h5")), state(*files("a.h5", inode=2))
    observer = Observer(before.keys)
    assert observer.last(after, NONE, is_orderly=False) is None
    assert observer.last(after, NONE, is_orderly=True)
    assert observer.last(after, frozenset(["a.h5"]), is_orderly=False)
    assert not observer.is_due(after, NONE, 0.0, ASLEEP)
    assert observer.last(after, NONE, is_orderly=False)
    assert observer.last(None, NONE, is_orderly=True) is None
    assert observer.last(before, NONE, is_orderly=True) is None


@pytest.mark.parametrize("waiting", ["R", "D", "T"])
def test_a_thread_that_could_continue_must_have_run(waiting: str) -> None:
    observed = state(*files("a.h5"))
    observer = Observer({})
    before = {1: Thread(waiting, 10), 2: Thread("S", 3)}
    assert not observer.is_due(observed, NONE, 1.0, before)
    assert not observer.is_due(observed, NONE, 60.0, before)
    assert observer.wait_s(60.0) == 0
    assert not observer.is_due(observed, NONE, 61.0, {**before, 3: Thread("R", 0)})
    assert observer.last(observed, NONE, is_orderly=False) is None
    after = {1: Thread(waiting, 10 + RAN_TICKS), 2: Thread("S", 3)}
    assert observer.is_due(observed, NONE, 62.0, after)
    assert observer.last(observed, NONE, is_orderly=False) == observed


def test_whole_files_do_not_wait_for_threads() -> None:
    busy = {1: Thread("R", 10)}
    observed = state(*files("a.h5"))
    observer = Observer({})
    assert not observer.is_due(observed, frozenset(["a.h5"]), 1.0, busy)
    assert observer.is_due(observed, frozenset(["a.h5"]), 1.0 + QUIET_PROVEN_S, busy)


def test_a_file_that_was_not_written_to_its_end_must_stand_for_long() -> None:
    observed = state(*files("a.h5", "b.json"))
    observer = Observer({})
    observer.is_due(observed, NONE, 1.0, ASLEEP)
    assert observer.to_check(observed, frozenset(["b.json"])) == {"a.h5"}
    observer.unfinished(observed, "a.h5")
    assert observer.last(observed, NONE, is_orderly=False) is None
    assert not observer.is_due(observed, NONE, UNLIKELY_QUIET_S, ASLEEP)
    assert observer.is_due(observed, NONE, 1.0 + UNLIKELY_QUIET_S, ASLEEP)
    assert observer.to_check(observed, NONE) == frozenset()


def test_a_file_that_never_fits_its_format_has_another_one() -> None:
    observer = Observer({})
    for number in range(MAX_INCOMPLETE):
        observed = state(*files("a.json", inode=number))
        assert observer.to_check(observed, NONE) == {"a.json"}
        observer.unfinished(observed, "a.json")
    assert observer.to_check(state(*files("a.json", inode=MAX_INCOMPLETE)), NONE) == frozenset()


def test_after_a_kill_declared_files_are_complete_and_a_file_next_to_them_is_not() -> None:
    old = seen([*files("checkpoint"), *saved("ckpt-1")], named("ckpt-1"))
    assert old is not None
    new = [*files("checkpoint", inode=2), *saved("ckpt-2")]
    observer = Observer(old.keys)
    assert observer.last(seen(new, named("ckpt-2")), NONE, is_orderly=False)
    assert observer.last(seen([*new, *files("history.json")], named("ckpt-2")), NONE, is_orderly=False) is None


def test_after_a_kill_a_complete_checkpoint_that_is_not_named_yet_is_left_out() -> None:
    before = seen([*files("checkpoint"), *saved("ckpt-1"), *saved("best")], named("ckpt-1"))
    assert before is not None
    named_now = [*files("checkpoint", inode=2), *saved("ckpt-2"), *saved("best")]
    last = Observer(before.keys).last(seen([*named_now, *saved("ckpt-3")], named("ckpt-2")), NONE, is_orderly=False)
    assert paths(last) == {entry.path for entry in named_now}
    again = [*files("checkpoint", inode=2), *saved("ckpt-2"), *saved("best", inode=2)]
    assert Observer(before.keys).last(seen(again, named("ckpt-2")), NONE, is_orderly=False) is None


def test_after_a_kill_a_file_that_is_gone_may_have_been_about_to_be_written_again() -> None:
    observer = Observer(state(*files("a", "b", "c")).keys)
    assert observer.last(state(*files("a", "b")), NONE, is_orderly=False) is None
    assert observer.last(state(*files("b", "c", "d")), frozenset(["d"]), is_orderly=False)
    assert observer.last(state(*files("c", "d")), frozenset(["d"]), is_orderly=False) is None


def test_a_directory_renamed_into_place_is_whole() -> None:
    observer = Observer({})
    entries = state(directory("step-1"), *files("step-1/a", "step-1/b"))
    assert observer.last(entries, NONE, is_orderly=False) is None
    assert observer.last(entries, frozenset(["step-1"]), is_orderly=False)


# --- snapshots --------------------------------------------------------------------------------------------------

ITEMS = (
    Item("checkpoint", Kind.FILE, 0o644, 3, 5, "aa"),
    Item("sub", Kind.DIRECTORY, 0o755),
    Item("sub/ü\udcff.h5", Kind.FILE, 0o600, 1 << 40, 7, "bb"),
    Item("sub/last", Kind.LINK, 0o777, content="../checkpoint"),
)
MANIFEST = Manifest(Snapshot(2, 5, digest_of(ITEMS)), "worker-0", "boot:1:2:", ITEMS)


def test_a_manifest_survives_its_way() -> None:
    assert decode_manifest(encode_manifest(MANIFEST)) == MANIFEST
    assert [number for number, _ in MANIFEST.files] == [0, 2]


@pytest.mark.parametrize(
    "items",
    [
        [Item("../out", Kind.FILE, 0o644)],
        [Item("/etc/passwd", Kind.FILE, 0o644)],
        [Item("a//b", Kind.FILE, 0o644)],
        [Item("nowhere/file", Kind.FILE, 0o644)],
        [Item("link", Kind.LINK, 0o777, content="/etc"), Item("link/passwd", Kind.FILE, 0o644)],
        [Item("a", Kind.FILE, 0o644), Item("a", Kind.FILE, 0o644)],
        [Item("socket", Kind.OTHER, 0o644)],
        [Item("", Kind.FILE, 0o644)],
    ],
)
def test_a_manifest_never_leads_out_of_its_directory(items: list[Item]) -> None:
    bad = Manifest(Snapshot(1, 1, digest_of(items)), "worker-0", "", tuple(items))
    with pytest.raises(ValueError):
        decode_manifest(encode_manifest(bad))


def test_a_manifest_that_was_changed_is_refused() -> None:
    data = encode_manifest(MANIFEST)
    for damaged in (data.replace(b'"aa"', b'"ab"'), data[:-1], b"[]", b"{}", b"[1,2,3,4]", b"null"):
        with pytest.raises(ValueError):
            decode_manifest(damaged)


def test_the_order_is_by_attempt_then_number() -> None:
    assert newer(Snapshot(2, 1, "a"), Snapshot(1, 9, "b"))
    assert newer(Snapshot(1, 2, "a"), Snapshot(1, 1, "b"))
    assert newer(Snapshot(1, 1, "a"), None)
    assert not newer(Snapshot(1, 1, "a"), Snapshot(1, 1, "b"))


def test_a_snapshot_travels_as_a_list() -> None:
    snapshot = Snapshot(1, 2, "abc")
    assert read_snapshot(json.loads(json.dumps(snapshot))) == snapshot
    assert read_snapshot(None) is None
    bads: list[object] = [[1, 2], [1, "2", "x"], "abc", [True, 1, "x"], {}]
    for bad in bads:
        with pytest.raises(ValueError, match="no snapshot"):
            read_snapshot(bad)


def test_the_digest_depends_on_contents_and_not_on_times() -> None:
    assert digest_of(ITEMS) == digest_of([item._replace(mtime_ns=1) for item in ITEMS])
    assert digest_of(ITEMS) != digest_of([ITEMS[0]._replace(content="x"), *ITEMS[1:]])


def test_what_a_directory_holds_of_a_snapshot_is_known() -> None:
    items = [Item("a", Kind.FILE, 0o644, 1, OLD, "x"), Item("d", Kind.DIRECTORY, 0o700)]
    same = [*files("a", inode=77), directory("d")]
    assert replicated_keys(items, same) == state(*same).keys
    for other in (files("a"), [*same, *files("b")], [*files("a", mtime_ns=OLD + 1), directory("d")], []):
        assert replicated_keys(items, other) != state(*other).keys


@given(st.lists(st.sampled_from(["a", "a/b", "a/b/c", "d", "e"]), unique=True))
def test_what_goes_first_is_what_lies_deepest(names: list[str]) -> None:
    gone = surplus([*(directory(name) for name in names), directory("lost+found")], [])
    order = [entry.path for entry in gone]
    assert set(order) == set(names)
    assert all(
        order.index(name) < order.index(parent) for name in order for parent in order if name.startswith(parent + "/")
    )


def test_what_has_another_kind_goes() -> None:
    assert surplus([directory("a"), *files("a/x", "b")], [Item("a", Kind.FILE, 0), Item("b", Kind.FILE, 0)]) == [
        *files("a/x"),
        directory("a"),
    ]


# --- directories ----------------------------------------------------------------------------------------------------

STORE = "/home/me/.fleet/jobs/j/worker-0/replica"


@pytest.mark.parametrize(
    "live",
    [
        "/",
        "/home",
        "/home/me",
        "/home/me/.fleet/jobs/j/worker-0",
        "/home/me/.fleet/jobs/j/worker-0/src",
        STORE + "/x",
    ],
)
def test_a_directory_with_other_things_in_it_is_refused(live: str) -> None:
    assert "checkpoint directory" in replication_problem(live, STORE, "/home/me")


@pytest.mark.parametrize(
    "live",
    [
        "/tmp/backup",
        "/home/me/ckpt",
        "/home/me/.fleet/jobs/j/worker-0/src/ckpt",
        "/home/me/.fleet/jobs/j/worker-0/checkpoints",
    ],
)
def test_a_directory_of_their_own_is_fit(live: str) -> None:
    assert replication_problem(live, STORE, "/home/me") == ""


MOUNTS = r"""
22 1 254:0 / / rw - ext4 /dev/vda rw
30 22 0:40 /export/home /home rw,relatime shared:1 - nfs4 filer:/export/home rw,vers=4.2
31 22 0:41 / /mnt/a\040b rw - cifs //filer/share rw
32 22 0:42 / /shared rw - 9p hostshare rw,trans=virtio
33 22 0:43 / /efs rw - nfs4 127.0.0.1:/ rw
34 22 0:44 / /bucket rw - fuse.gcsfuse my-bucket rw
35 22 0:45 / /n rw - nfs filer:/export rw
"""


def whose(path: str, boot: str = "boot", inode: int = 7) -> str:
    return identity(MOUNTS, path, boot, 3, inode, "new")


def test_a_network_directory_is_the_same_on_every_computer() -> None:
    for path in ("/home/x", "/mnt/a b/x", "/bucket/x"):
        assert whose(path, "one", 1) == whose(path, "two", 2)
    assert whose("/home/x") != whose("/home/y")
    assert len({whose(path) for path in ("/home/x", "/mnt/a b/x", "/bucket/x", "/x")}) == 4


def test_the_same_directory_through_two_mounts_is_one() -> None:
    nested = MOUNTS.replace("0:40 /export/home /home", "0:40 / /home")
    assert identity(nested, "/home/x", "a", 1, 1, "") == identity(MOUNTS, "/n/home/x", "b", 2, 2, "")


def test_a_local_directory_is_its_own_on_each_computer() -> None:
    for path in ("/tmp", "/shared/x", "/efs/x", "/homeless"):
        assert whose(path, "one") != whose(path, "two")
        assert whose(path, inode=1) != whose(path, inode=2)
        assert whose(path) == whose(path)
