"""Instances use a bucket of Cloud Storage: their scopes, their roles, and TensorFlow."""

from __future__ import annotations

import sys

import pytest

from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.provider import ProviderError
from tests.cloud.conftest import Make, finding_of
from tests.emulator import Emulator
from tests.emulator.governance import DEFAULT_ACCOUNT
from tests.next_steps import command_lines
from tests.program import Program

BUCKET = "gs://bkt"
ACCOUNT = f"serviceAccount:{DEFAULT_ACCOUNT}"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"


def notes(provider: GceProvider, spec: FleetSpec) -> str:
    return "\n".join(provider.quote(spec, ["worker-0"]).notes)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("devstorage.read_only",), ["https://www.googleapis.com/auth/devstorage.read_only", SCOPE]),
        (("cloud-platform",), ["https://www.googleapis.com/auth/cloud-platform"]),
    ],
)
def test_instances_with_a_bucket_may_write_to_it(
    emulator: Emulator, make: Make, given: tuple[str, ...], expected: list[str]
) -> None:
    emulator.cloud.storage.create("bkt")
    provider, spec = make(bucket=BUCKET, scopes=given)
    provider.create(spec, ["worker-0"], lambda *_: None)
    [instance] = emulator.cloud.instances.values()
    assert instance.body["serviceAccounts"] == [{"email": DEFAULT_ACCOUNT, "scopes": expected}]
    assert spec.options.variables == {"FLEET_BUCKET": BUCKET}


def test_a_missing_bucket_is_found_before_the_price(make: Make) -> None:
    provider, spec = make(bucket=BUCKET)
    with pytest.raises(ProviderError, match="the bucket gs://bkt does not exist") as caught:
        provider.quote(spec, ["worker-0"])
    create = "gcloud storage buckets create gs://bkt --project proj-1 --location us-central1"
    assert create in command_lines(caught.value)
    result = finding_of(provider, "bucket")
    assert (result.ok, result.message) == (False, "the bucket gs://bkt does not exist")


@pytest.mark.parametrize(
    ("on_bucket", "on_project", "certain"),
    [
        ({"objectUser": ACCOUNT, "legacyBucketReader": ACCOUNT}, {}, True),
        ({}, {"roles/storage.admin": ACCOUNT}, True),
        ({"legacyBucketReader": ACCOUNT}, {"roles/storage.objectUser": ACCOUNT}, True),
        (
            {"legacyBucketOwner": "projectEditor:proj-1", "legacyObjectOwner": "projectEditor:proj-1"},
            {"roles/editor": ACCOUNT},
            True,
        ),
        ({"objectUser": ACCOUNT}, {}, False),  # TensorFlow reads the properties of the bucket, too
        ({"admin": "group:all@example.com"}, {}, False),
    ],
)
def test_the_roles_of_the_instances_are_read_from_the_policies(
    emulator: Emulator, make: Make, on_bucket: dict[str, str], on_project: dict[str, str], certain: bool
) -> None:
    storage = emulator.cloud.storage
    storage.create("bkt", **on_bucket)
    emulator.cloud.governance.members.update({role: {member} for role, member in on_project.items()})
    provider, spec = make(bucket=BUCKET)
    result = finding_of(provider, "bucket")
    assert result.ok is (True if certain else None)
    grant = "gcloud storage buckets add-iam-policy-binding gs://bkt --role roles/storage."
    member = f"--member={ACCOUNT}"
    assert command_lines(result).splitlines() == (
        [] if certain else [f"{grant}objectUser {member}", f"{grant}legacyBucketReader {member}"]
    )
    assert ("it is not certain" in notes(provider, spec)) is not certain
    assert (f"{DEFAULT_ACCOUNT} reads and writes gs://bkt" in notes(provider, spec)) is certain


@pytest.mark.parametrize(
    ("location", "is_far"), [("US-CENTRAL1", False), ("US", False), ("NAM4", False), ("US-WEST4", True), ("EU", True)]
)
def test_traffic_with_a_bucket_elsewhere_is_no_surprise(
    emulator: Emulator, make: Make, location: str, is_far: bool
) -> None:
    emulator.cloud.storage.create("bkt").location = location
    note = f"gs://bkt is in {location.lower()}: its traffic with instances in us-central1 costs extra"
    assert (note in notes(*make(bucket=BUCKET))) is is_far


CHECKPOINTED = """
import os
import tensorflow as tf
directory, bucket = os.environ["FLEET_CHECKPOINT_DIR"], os.environ["FLEET_BUCKET"]
print("bucket", bucket, "checkpoints", directory)
weights = tf.Variable([1.0, 2.0])
manager = tf.train.CheckpointManager(tf.train.Checkpoint(weights=weights), directory, max_to_keep=1)
for value in (3.0, 4.0):
    weights.assign([value, value])
    manager.save()
weights.assign([0.0, 0.0])
manager.checkpoint.restore(manager.latest_checkpoint)
with tf.io.gfile.GFile(f"{bucket}/data/words.txt") as words:
    print("restored", weights.numpy().tolist(), "read", words.read())
print("listed", sorted(tf.io.gfile.listdir(f"{bucket}/run1")))
"""


def train_with_bucket(program: Program, emulator: Emulator, *, is_denied_first: bool = False) -> None:
    """Create an instance with a bucket, and let TensorFlow save to it twice and restore.

    Args:
        program: The program.
        emulator: An emulator with guests.
        is_denied_first: Run the job also before the account has all roles.
    """
    program.env.update(
        FLEET_GCE_ENDPOINT=emulator.url,
        FLEET_GCE_PROJECT="proj-1",
        FLEET_ADDRESS_URL=f"{emulator.url}/emulator/address",
    )
    storage = emulator.cloud.storage
    bucket = storage.create("bkt", objectUser=ACCOUNT)
    storage.put("bkt", "data/words.txt", b"seven", {}, emulator.clock.stamp())
    program.script("task.py", CHECKPOINTED)
    options = ("--zone", "us-central1-a", "--bucket", BUCKET, "--python", sys.executable)
    program.run("up", "--workers", "1", "--yes", *options)
    train = ("train", "task.py", "--checkpoint-dir", f"{BUCKET}/run1")
    if is_denied_first:
        # The role for the objects does not include the properties of the bucket, which TensorFlow reads.
        failed = program.run(*train, code=100)
        assert f"add-iam-policy-binding {BUCKET}" in " ".join(failed.err.split())
        assert "roles/storage.legacyBucketReader" in failed.err
    bucket.members["roles/storage.legacyBucketReader"] = {ACCOUNT}
    ran = program.run(*train)
    assert f"bucket {BUCKET} checkpoints {BUCKET}/run1" in ran.text
    assert "restored [4.0, 4.0] read seven" in ran.text
    assert {"run1/checkpoint", "run1/ckpt-2.index"} <= set(bucket.objects)
    assert "run1/ckpt-1.index" not in bucket.objects
    program.run("down", "--yes")
    assert emulator.state()["violations"] == []


@pytest.mark.wire
def test_tensorflow_keeps_checkpoints_in_the_bucket(program: Program, guest_emulator: Emulator) -> None:
    guest_emulator.reset()
    train_with_bucket(program, guest_emulator)
