"""Options of the Cloud Storage bucket that instances use."""

from __future__ import annotations

from dataclasses import dataclass

from provision.gce.options.groups import GENERAL
from provision.options import TEXT, option


@dataclass(frozen=True)
class StorageOptions:
    """Options of the Cloud Storage bucket that instances use.

    Attributes:
        bucket: URL of a bucket, ``gs://training-data``, that jobs find in FLEET_BUCKET; empty: none.
    """

    bucket: str = option(
        "",
        TEXT,
        "bucket",
        metavar="URL",
        help="Cloud Storage bucket for data, checkpoints, and models, e.g. gs://training-data.",
        group=GENERAL,
    )
