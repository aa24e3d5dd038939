"""Options of labels and network tags."""

from __future__ import annotations

import re
from dataclasses import dataclass

from provision.gce.options.groups import GENERAL, NETWORK
from provision.options import PAIRS, TEXTS, InvalidOptionError, option, split_pair

# https://cloud.google.com/compute/docs/labeling-resources#requirements,
# https://cloud.google.com/vpc/docs/add-remove-network-tags#restrictions
_LABEL_KEY = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_LABEL_VALUE = re.compile(r"[a-z0-9_-]{0,63}")
_LABELS_MAX = 60  # of 64; fleet sets up to four
_TAG = re.compile(r"[a-z]([a-z0-9-]{0,61}[a-z0-9])?")
_TAGS_MAX = 63  # of 64; fleet sets one


@dataclass(frozen=True)
class LabelOptions:
    """Options of labels and network tags.

    Attributes:
        labels: Further labels of instances and their disks, ``KEY=VALUE``.
        tags: Further network tags of instances.
    """

    labels: tuple[str, ...] = option(
        (),
        PAIRS,
        "labels",
        flags=("--label",),
        metavar="KEY=VALUE",
        help="Label of the instances and their disks. Repeatable.",
        group=GENERAL,
    )
    tags: tuple[str, ...] = option(
        (),
        TEXTS,
        "tags",
        flags=("--tag",),
        metavar="NAME",
        help="Network tag of the instances. Repeatable.",
        group=NETWORK,
    )


def check_labels(cloud: LabelOptions) -> None:
    """Raise InvalidOptionError for labels or tags that Compute Engine rejects, or that fleet sets itself."""
    for text in cloud.labels:
        key, value = split_pair(text, "--label")
        if not _LABEL_KEY.fullmatch(key) or not _LABEL_VALUE.fullmatch(value):
            raise InvalidOptionError(
                f"--label {text!r}: keys and values have up to 63 lower-case letters, digits, hyphens, and "
                "underscores; a key begins with a letter",
                {"--label": None},
            )
        if key == "fleet" or key.startswith("fleet-"):
            raise InvalidOptionError(f"--label {key}: fleet sets this label itself", {"--label": None})
    keys = [split_pair(text, "--label")[0] for text in cloud.labels]
    if repeated := next((key for key in keys if keys.count(key) > 1), ""):
        raise InvalidOptionError(f"--label {repeated} is given more than once", {"--label": None})
    if bad := next((tag for tag in cloud.tags if not _TAG.fullmatch(tag)), None):
        raise InvalidOptionError(
            f"--tag {bad!r}: a tag has up to 63 lower-case letters, digits, and hyphens, and begins with a letter",
            {"--tag": None},
        )
    for name, noun, given, most in (
        ("--label", "labels", cloud.labels, _LABELS_MAX),
        ("--tag", "network tags", cloud.tags, _TAGS_MAX),
    ):
        if len(given) > most:
            raise InvalidOptionError(
                f"{name}: {len(given)} {noun} are given; an instance has at most {most} in addition to those of "
                f"fleet: remove {len(given) - most}",
                {name: None},
            )
