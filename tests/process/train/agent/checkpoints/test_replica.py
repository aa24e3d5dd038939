"""Test replicators as real processes: what they copy, send, fetch and restore, and which failures they survive."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.replicators import Host, Yard, step_in, tree
from tests.program import find_paths
from train.agent.checkpoints import replicator
from train.agent.checkpoints import store as replica_store
from train.agent.checkpoints import transfer as replica_wire
from train.agent.checkpoints.replicator import QUIET_S, News, Restored
from train.agent.checkpoints.snapshot import decode_manifest, newer
from train.agent.files.disk import DISK_RESERVE


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    yard = Yard(tmp_path)
    yield yard
    yard.close()


# --- the whole way ----------------------------------------------------------------------------------------------


def test_a_checkpoint_reaches_another_host_and_its_directory(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1")
    chief.write(("checkpoint", 'model_checkpoint_path: "ckpt-1"\n'), ("ckpt-1.index", "i"), ("sub/model.h5", "h" * 9))
    chief.write(("ckpt-1.data-00000-of-00001", "d"))
    (chief.live / "sub" / "last").symlink_to("model.h5")
    (chief.live / "empty").mkdir()
    (chief.live / "sub" / "model.h5").chmod(0o640)
    first = chief.snapshot()
    assert (first.attempt, first.number) == (0, 1)

    other.write(("stale/old.h5", "x"), ("model.h5", "x"), ("sub", "a file where a directory belongs"))
    assert other.fetch(first, chief).fetched == first
    assert other.held == first
    assert other.restore(first) == Restored(first)
    assert other.content() == chief.content()
    assert not chief.notes + other.notes


def test_deletions_arrive_and_nothing_is_restored_as_nothing(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1")
    other.restore(chief.snapshot(("a.h5", "one"), ("b.h5", "two")), chief)
    (chief.live / "a.h5").unlink()
    other.restore(chief.snapshot(), chief)
    assert list(other.content()) == ["b.h5"]
    (chief.live / "b.h5").unlink()
    emptied = chief.snapshot()
    other.restore(emptied, chief)
    assert other.content() == {}
    assert other.held == emptied
    other.write(("stale", "x"), ("deep/er/file", "x"))
    assert other.restore(None) == Restored(None)
    assert other.content() == {}
    assert other.held == emptied


def test_the_bound_holds_over_all_who_fetch(yard: Yard) -> None:
    chief, others = yard.host(mib_s=2.0), [yard.host(f"worker-{n}") for n in (1, 2)]
    snapshot = chief.snapshot(("big.h5", os.urandom(1 << 20).hex()))
    began = time.monotonic()
    for other in others:
        other.replicator.fetch(snapshot, [chief.source])
    yard.until(lambda: all(other.held == snapshot for other in others), "both to hold it")
    assert time.monotonic() - began > 1.5  # 4 MiB at 2 MiB a second


def test_writing_in_place_after_a_restore_does_not_touch_the_snapshot(yard: Yard) -> None:
    chief = yard.host()
    files = (
        ("checkpoint", 'model_checkpoint_path: "c"\n'),
        ("c.index", "i"),
        ("c.data-00000-of-00001", "d"),
        ("w.h5", "w"),
    )
    snapshot = chief.snapshot(*files)
    before = chief.content()
    assert os.path.samestat((chief.live / "c.data-00000-of-00001").stat(), (stored(chief) / "0").stat())
    for _ in range(2):
        for name in ("checkpoint", "c.index", "w.h5"):
            (chief.live / name).write_text("scribbled")
        (chief.live / "c.data-00000-of-00001").unlink()
        chief.write(("c.data-00000-of-00001", "other"))
        assert chief.restore(snapshot) == Restored(snapshot)
        assert chief.content() == before


def stored(host: Host) -> Path:
    """Return the directory of the newest snapshot; while the previous one is read, both exist."""
    numbers = {
        directory: tuple(map(int, directory.name.split("-")[:2])) for directory in host.store.glob("[0-9]*-*-*")
    }
    return max(numbers, key=lambda directory: numbers[directory])


def test_a_damaged_snapshot_is_fetched_again(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1")
    snapshot = chief.snapshot(("w.h5", "right"))
    other.fetch(snapshot, chief)
    (stored(other) / "0").write_text("wrong")
    assert other.restore(snapshot).error.text.startswith("no host gave snapshot 1 of attempt 0")
    assert other.restore(snapshot, chief) == Restored(snapshot)
    assert other.content() == chief.content()


# --- watching ---------------------------------------------------------------------------------------------------


def checked(host: Host) -> int:
    """Return the step that a host holds, restored to a separate directory; fail if it is incomplete."""
    probe = host.yard.directory / "probe"
    while True:
        newest = stored(host)
        shutil.rmtree(probe, ignore_errors=True)
        try:
            kept = replica_store.StoredSnapshot(str(newest), decode_manifest((newest / "manifest").read_bytes()))
            replica_store.restore(str(probe), kept)
        except (OSError, replica_store.ReplicaError):
            if stored(host) == newest:
                raise
            continue  # the replicator, another process, has stored a newer one and removed this one
        return step_in(probe)


FIT = """
import sys, time
import keras, numpy
directory = sys.argv[1]
model = keras.Sequential([keras.layers.Dense(1)])
model.build((None, 2))
model.compile("adam", "mse")
logs = open(directory + "/events.out.tfevents.1.host", "ab")

class Epoch(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, _=None):
        logs.write(b"x")
        logs.flush()
        print(epoch + 1, flush=True)
        time.sleep(0.3)

callbacks = [keras.callbacks.BackupAndRestore(directory + "/b", delete_checkpoint=False), Epoch()]
model.fit(numpy.ones((4, 2)), numpy.ones((4, 1)), epochs=1000, verbose=0, callbacks=callbacks)
"""


def test_a_backup_of_keras_is_copied_after_short_epochs_without_event_files(yard: Yard) -> None:
    if not importlib.util.find_spec("tensorflow"):
        pytest.skip("TensorFlow is not installed here")
    chief = yard.host()
    chief.live.mkdir(parents=True)
    writer = yard.process(chief, [sys.executable, "-c", FIT, str(chief.live)])
    yard.until(lambda: chief.held is not None and chief.held.number >= 4, "four snapshots")
    last = int(yard.output_of(writer)[-1])
    chief.settle()
    events = chief.live / "events.out.tfevents.1.host"
    size = events.stat().st_size
    assert not chief.restore(chief.held).error
    assert events.stat().st_size == size  # a log stays where it is
    assert json.loads((chief.live / "b" / "training_metadata.json").read_text())["epoch"] >= last - 5
    assert not chief.notes


def test_a_text_file_that_is_replaced_again_and_again_is_reported(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator, "_UNUSUAL_S", 4.0)
    chief = yard.host()
    code = (
        "import os, time\n"
        "while True:\n"
        f"    open('{chief.live}/.s.tmp', 'w').write(str(time.time()))\n"
        f"    os.replace('{chief.live}/.s.tmp', '{chief.live}/s.txt')\n"
        "    time.sleep(1.0)\n"
    )
    chief.live.mkdir(parents=True)
    yard.process(chief, [sys.executable, "-c", code])
    yard.until(lambda: bool(chief.notes), "the note", 30.0)
    assert "the directory was never unchanged for 2 s; save less often" in chief.notes[0]
    assert chief.held is None


def test_the_same_content_is_no_new_snapshot_and_numbers_continue(yard: Yard) -> None:
    chief = yard.host()
    snapshot = chief.snapshot(("a.h5", "x"))
    assert chief.snapshot(("a.h5", "x")) == snapshot
    chief.replicator.watch(2)
    two = chief.snapshot(("a.h5", "y"))
    three = chief.snapshot(("a.h5", "z"))
    assert [(s.attempt, s.number) for s in (snapshot, two, three)] == [(0, 1), (2, 1), (2, 2)]
    assert newer(three, two)
    assert len(list(chief.store.iterdir())) == 1


@pytest.mark.parametrize("kind", ["tensorflow", "keras"])
def test_whenever_the_writer_is_killed_nothing_half_is_kept(yard: Yard, kind: str) -> None:
    luck = random.Random(kind)
    last_file = {"tensorflow": "checkpoint", "keras": "training_metadata.json"}[kind]
    chief, other = yard.host(), yard.host("worker-1")
    best = 0
    for attempt in range(1, 6):
        changed_at = chief.changed_at(last_file)
        pause, slow = luck.choice([0.01, 0.3, QUIET_S]), luck.choice([0.0, 0.05, 0.2])
        writer = yard.writer(chief, kind, pause=pause, slow=slow, attempt=attempt)
        yard.until(lambda at=changed_at: chief.changed_at(last_file) != at, "a checkpoint")  # type: ignore[misc]
        yard.run_for(luck.uniform(0.0, 1.0 if kind == "tensorflow" else QUIET_S + 1.0))
        last = yard.end(writer)
        chief.settle()
        assert not other.restore(chief.held, chief).error
        if chief.held is not None:
            step = step_in(other.live)
            assert best <= step <= max(last, best) + 1
            assert step >= last or kind == "keras"
            best = step
        assert not chief.restore(chief.held).error
        assert chief.content() == other.content()


# --- failures ---------------------------------------------------------------------------------------------------


def test_no_more_than_one_older_snapshot_is_kept_for_those_who_still_read(yard: Yard) -> None:
    chief, other, third = yard.host(mib_s=0.5), yard.host("worker-1"), yard.host("worker-2")
    snapshot = chief.snapshot(("big.h5", os.urandom(2 << 20).hex()))
    other.replicator.fetch(snapshot, [chief.source])
    yard.until(lambda: any(find_paths(other.store, "making-*/*.part")), "the first transfer to begin")
    for text in ("small", "smaller", os.urandom(2 << 20).hex()):
        two = chief.snapshot(("big.h5", text))
        assert len(list(chief.store.iterdir())) == 2
    third.replicator.fetch(two, [chief.source])
    yard.until(lambda: any(find_paths(third.store, "making-*/*.part")), "the second transfer to begin")
    assert not any(news.error for news in other.news)
    three = chief.snapshot(("big.h5", "three"))
    yard.until(lambda: any(news.error for news in other.news), "the first transfer to be cut off")
    assert "no host gave snapshot 1" in other.news[-1].error
    assert other.fetch(three, chief).fetched == three
    assert len(list(chief.store.iterdir())) == 2
    third.replicator.restore(three, [chief.source])
    yard.until(lambda: len(list(chief.store.iterdir())) == 1, "older snapshots to be removed")


def test_a_newer_order_waits_for_what_is_on_its_way_and_a_restore_does_not(yard: Yard) -> None:
    chief, other, third = yard.host(mib_s=1.0), yard.host("worker-1"), yard.host("worker-2")
    snapshot = chief.snapshot(("big.h5", os.urandom(1 << 20).hex()))
    other.replicator.fetch(snapshot, [chief.source])
    third.replicator.fetch(snapshot, [chief.source])
    yard.run_for(0.5)
    two = chief.snapshot(("big.h5", "two"))
    other.replicator.fetch(two, [chief.source])
    assert third.restore(two, chief) == Restored(two)
    assert snapshot not in [news.fetched for news in third.news]
    assert third.content() == chief.content()
    yard.until(lambda: other.held == two, "the newest to arrive")
    assert [news.fetched for news in other.news if news.fetched] == [snapshot, two]
    assert not [news.fetched for news in third.news if news.fetched]


def test_a_receiver_that_is_killed_in_the_middle_begins_again(yard: Yard) -> None:
    chief, other = yard.host(mib_s=2.0), yard.host("worker-1")
    first = chief.snapshot(("small.h5", "first"))
    other.fetch(first, chief)
    second = chief.snapshot(("big.h5", os.urandom(2 << 20).hex()))
    other.replicator.fetch(second, [chief.source])
    yard.until(lambda: any(find_paths(other.store, "making-*/*.part")), "the transfer to begin")
    other.kill()
    assert other.news[-1] == News(first, 0, error=other.news[-1].error, ended=True)
    other.start()
    assert other.held == first
    assert len(list(other.store.iterdir())) == 1
    assert other.restore(second, chief) == Restored(second)
    assert other.content() == chief.content()


def test_when_the_sender_is_killed_another_source_goes_on(yard: Yard) -> None:
    chief, second, other = yard.host(mib_s=1.0), yard.host("worker-1"), yard.host("worker-2")
    parts = [(f"{n}.h5", os.urandom(1 << 19).hex()) for n in range(3)]
    snapshot = chief.snapshot(*parts)
    second.fetch(snapshot, chief)
    other.replicator.fetch(snapshot, [chief.source, second.source])
    yard.until(lambda: any(find_paths(other.store, "making-*/1.part")), "the transfer to be in its middle")
    chief.kill()
    yard.until(lambda: other.held == snapshot, "the rest to come from elsewhere")


def test_who_does_not_know_the_secret_gets_nothing(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1", secret=b"t" * 32)
    snapshot = chief.snapshot(("a.h5", "one"))
    assert "does not know the job's secret" in other.fetch(snapshot, chief).error
    assert "does not know the job's secret" in other.restore(snapshot, chief).error.text
    third = yard.host("worker-2", job="another")
    assert "the connection ended" in third.fetch(snapshot, chief).error
    with socket.create_connection(chief.source) as stranger:
        stranger.sendall(b'{"snapshot": [0, 1, "x"]}\n' * 200)
        stranger.settimeout(90.0)
        with contextlib.suppress(ConnectionResetError):
            assert stranger.recv(1000) == b""
    assert yard.host("worker-3").fetch(snapshot, chief).fetched == snapshot


def test_a_silent_sender_is_given_up(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_wire, "SILENCE_S", 2.0)
    chief, other = yard.host(mib_s=1.0), yard.host("worker-1")
    snapshot = chief.snapshot(("big.h5", os.urandom(2 << 20).hex()))
    other.replicator.fetch(snapshot, [chief.source])
    yard.until(lambda: any(find_paths(other.store, "making-*/*.part")), "the transfer to begin")
    os.kill(chief.replicator.pid, signal.SIGSTOP)
    try:
        yard.until(lambda: bool(other.news[-1].error), "the report of the silence")
    finally:
        os.kill(chief.replicator.pid, signal.SIGCONT)
    assert "it was silent" in other.news[-1].error


def test_damaged_bytes_never_count(yard: Yard) -> None:
    chief, other = yard.host(), yard.host("worker-1")
    snapshot = chief.snapshot(("a.h5", "right"))
    blob = stored(chief) / "0"
    status = blob.stat()
    blob.write_text("wrong")
    os.utime(blob, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "a.h5 was damaged on its way" in other.fetch(snapshot, chief).error
    assert other.held is None


def test_a_replicator_goes_on_from_disk(yard: Yard) -> None:
    chief = yard.host()
    snapshot = chief.snapshot(("a.h5", "one"))
    chief.kill()
    (chief.store / "making-1").mkdir()
    (chief.store / "1-1-half").mkdir()
    (chief.live / "a.h5").write_text("half")
    chief.start()
    assert chief.held == snapshot
    assert len(list(chief.store.iterdir())) == 1
    assert chief.restore(snapshot) == Restored(snapshot)
    assert (chief.live / "a.h5").read_text() == "one"


def test_a_restore_that_is_killed_in_the_middle_is_done_again(yard: Yard) -> None:
    luck = random.Random(7)
    chief = yard.host()
    snapshot = chief.snapshot(*((f"{n}/{n}.h5", str(n) * 20000) for n in range(200)))
    before = chief.content()
    for _ in range(5):
        shutil.rmtree(chief.live)
        chief.write(*((f"stale-{n}", "x") for n in range(100)))
        chief.replicator.restore(snapshot, [])
        yard.run_for(luck.uniform(0.0, 0.03))
        chief.kill()
        chief.start()
        assert chief.restore(snapshot) == Restored(snapshot)
        assert chief.content() == before


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a disk with 4 MiB more than the reserved space."""
    directory = tmp_path / "small"
    directory.mkdir()
    size = DISK_RESERVE + (4 << 20)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(directory)], check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    yield directory
    subprocess.run(["umount", "--lazy", str(directory)], check=True)


def test_a_full_disk_in_the_middle_leaves_the_older_one(yard: Yard, small_disk: Path) -> None:
    chief, other = yard.host(mib_s=1.0), yard.host("worker-1", store=small_disk / "replica")
    first = chief.snapshot(("a.h5", "first"))
    other.fetch(first, chief)
    second = chief.snapshot(("a.h5", os.urandom(3 << 19).hex()))
    other.replicator.fetch(second, [chief.source])
    yard.until(lambda: any(find_paths(other.store, "making-*/*.part")), "the transfer to begin")
    with contextlib.suppress(OSError), (small_disk / "filler").open("wb") as filler:
        while True:
            filler.write(bytes(1 << 16))
            filler.flush()
    yard.until(lambda: bool(other.news[-1].error), "the report of the full disk")
    assert other.news[-1].error == "a copy of the checkpoint cannot be written: No space left on device"
    assert other.held == first


# --- directories of other programs --------------------------------------------------------------------------------


def test_a_directory_that_two_hosts_share_is_left_alone(yard: Yard) -> None:
    shared = yard.directory / "shared"
    chief, other = yard.host(live=shared), yard.host("worker-1", live=shared)
    snapshot = chief.snapshot(("a.h5", "one"))
    chief.write(("b.h5", "written since"))
    before = tree(shared)
    assert other.fetch(snapshot, chief).fetched == snapshot
    assert other.held is None
    assert other.restore(snapshot, chief) == Restored(snapshot)
    assert tree(shared) == before
    assert chief.restore(snapshot) == Restored(snapshot)
    assert sorted(tree(shared)) == ["a.h5"]


def test_a_directory_with_other_things_in_it_is_never_emptied(yard: Yard) -> None:
    host = yard.host(live=yard.directory)
    (yard.directory / "precious").write_text("x")
    assert "give checkpoints a directory of their own" in host.restore(None).error.text
    host.settle(is_orderly=True)
    assert host.held is None
    assert (yard.directory / "precious").exists()
    yard.until(lambda: bool(host.notes), "the note")
    assert ["give checkpoints a directory of their own" in note for note in host.notes] == [True]


# --- the process ------------------------------------------------------------------------------------------------
