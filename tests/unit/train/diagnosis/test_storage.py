"""Errors of Cloud Storage in the log of a task, and the commands that fix them."""

from __future__ import annotations

import pytest

from train.agent.protocol.records import Exit, Outcome
from train.diagnosis.cause import diagnose
from train.diagnosis.storage import hint
from train.diagnosis.verdict import Kind, TaskEvidence

EMAIL = "100000000001-compute@developer.gserviceaccount.com"
TRACEBACK = """Traceback (most recent call last):
  File "/home/fleet/.fleet/jobs/j/worker-0/src/task.py", line 10, in <module>
    manager.save()
  File "/usr/lib/python3/dist-packages/tensorflow/python/lib/io/file_io.py", line 513, in recursive_create_dir_v2
    _pywrap_file_io.RecursivelyCreateDir(compat.path_to_bytes(path))
"""
HEAD = "tensorflow.python.framework.errors_impl."


def answered(error: str, status: int, message: str, activity: str = "") -> str:
    """Return the traceback that TensorFlow 2.21 prints for an answer of Cloud Storage."""
    body = f'{{\n  "error": {{\n    "code": {status},\n    "message": "{message}",\n    "errors": [\n      {{\n'
    text = f"Error executing an HTTP request: HTTP response code {status} with body '{body}'\n{activity}"
    return f"{TRACEBACK}{HEAD}{error}: {text}"


@pytest.mark.parametrize(
    ("log", "kind", "fix"),
    [
        (
            answered(
                "PermissionDeniedError",
                403,
                f"{EMAIL} does not have storage.objects.create access to the Google Cloud Storage object. Permission "
                "'storage.objects.create' denied on resource (or it may not exist).",
                "\t when initiating an upload to gs://bkt/run1/ckpt-1.index\n",
            ),
            Kind.PERMISSION,
            "give the account the role: gcloud storage buckets add-iam-policy-binding gs://bkt "
            f"--member serviceAccount:{EMAIL} --role roles/storage.objectUser",
        ),
        (
            "saving to gs://bkt/run1\n"
            + answered(
                "PermissionDeniedError",
                403,
                f"{EMAIL} does not have storage.buckets.get access to the Google Cloud Storage bucket.",
            ),
            Kind.PERMISSION,
            "give the account the role: gcloud storage buckets add-iam-policy-binding gs://bkt "
            f"--member serviceAccount:{EMAIL} --role roles/storage.legacyBucketReader",
        ),
        (
            answered(
                "PermissionDeniedError",
                403,
                f"{EMAIL} does not have storage.buckets.get access to the Google Cloud Storage bucket.",
            ),
            Kind.PERMISSION,
            f"give {EMAIL} the role roles/storage.legacyBucketReader on the bucket",
        ),
        (
            answered(
                "PermissionDeniedError", 403, "Insufficient Permission", "\t when reading gs://bkt/data/a.npz\n"
            ),
            Kind.PERMISSION,
            "the hosts have no access to Cloud Storage; on Compute Engine, create the fleet again with "
            "fleet up --bucket gs://bkt",
        ),
        (
            answered(
                "PermissionDeniedError",
                401,
                "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object.",
                "\t when reading metadata of gs://bkt/data/a.npz\n",
            ),
            Kind.PERMISSION,
            "the hosts have no access to Cloud Storage; on Compute Engine, create the fleet again with "
            "fleet up --bucket gs://bkt",
        ),
        (
            answered(
                "NotFoundError",
                404,
                "The specified bucket does not exist.",
                "\t when reading metadata of gs://bkt/data/a.npz\n",
            ),
            Kind.FILE_NOT_FOUND,
            "correct the name of the bucket, or create it: gcloud storage buckets create gs://bkt",
        ),
        (
            f"{TRACEBACK}google.api_core.exceptions.Forbidden: 403 GET https://storage.googleapis.com/storage/v1/b/bkt/"
            f"o/a?alt=json: {EMAIL} does not have storage.objects.get access to the Google Cloud Storage object.\n",
            Kind.PERMISSION,
            "give the account the role: gcloud storage buckets add-iam-policy-binding gs://bkt "
            f"--member serviceAccount:{EMAIL} --role roles/storage.objectUser",
        ),
    ],
)
def test_an_error_of_cloud_storage_names_the_command_that_fixes_it(log: str, kind: Kind, fix: str) -> None:
    verdict = diagnose([TaskEvidence("worker-0", exit=Exit(1), log_tail=log.encode())], Outcome.FAILED, "worker-0")
    assert verdict is not None
    assert (verdict.kind, verdict.hint) == (kind, fix)


@pytest.mark.parametrize(
    "text",
    [
        "HTTP response code 403 with body ''",
        "me@example.com does not have storage.objects.get access to the Google Cloud Storage object.",
        "the specified key does not exist: s3://bkt/a",
        "No such object: bkt/data/a.npz when reading gs://bkt/data/a.npz",
    ],
)
def test_other_errors_have_no_hint_of_cloud_storage(text: str) -> None:
    assert hint(text, ["gs://bkt/run1"]) == ""
