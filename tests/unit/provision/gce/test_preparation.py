"""Options of metadata, labels, tags, and scripts of root."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provision.gce.api.messages import to_json
from provision.gce.api.requests import bulk_insert
from provision.gce.options import GceOptions
from provision.gce.provider import GceProvider
from provision.model import FleetSpec
from provision.options import declarations


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"metadata": ("ssh-keys=me:key",)}, "--metadata ssh-keys: fleet sets this item itself"),
        ({"metadata": ("startup-script=x",)}, "--metadata startup-script: fleet sets this item itself"),
        ({"metadata": ("fleet-stop-at=1",)}, "--metadata fleet-stop-at: fleet sets this item itself"),
        ({"metadata": ("a b=1",)}, "a key has up to 128 letters"),
        ({"metadata": ("a=1", "a=2")}, "--metadata a is given more than once"),
        ({"metadata": ("a",)}, "'a' does not have the form KEY=VALUE"),
        ({"metadata": (f"a={'x' * (256 * 1024 + 1)}",)}, "--metadata a: a metadata value has at most 256 KiB"),
        ({"setup": "x" * (256 * 1024 + 1)}, "--setup: a metadata value has at most 256 KiB"),
        ({"labels": ("fleet-owner=me",)}, "--label fleet-owner: fleet sets this label itself"),
        ({"labels": ("Team=vision",)}, "lower-case letters"),
        ({"labels": ("a=1", "a=2")}, "--label a is given more than once"),
        ({"tags": ("-web",)}, "--tag '-web'"),
        (
            {"labels": tuple(f"l{number}=" for number in range(65))},
            "--label: 65 labels are given; an instance has at",
        ),
        ({"tags": tuple(f"t{number}" for number in range(64))}, "at most 63 in addition to those of fleet: remove 1"),
        (
            {"setup": "x" * 2**18, "metadata": (f"a={'x' * 2**18}",)},
            "--metadata, --setup: an instance has at most 448",
        ),
    ],
)
def test_values_that_cannot_be_set_are_refused_before_any_call(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:
        GceProvider.change(GceOptions(), given)
    assert message in str(error.value)


def test_items_labels_and_tags_are_added_to_those_of_the_fleet() -> None:
    given = {"metadata": ("note=a=b",), "labels": ("team=vision",), "tags": ("web",), "setup": "true"}
    cloud = GceProvider.change(GceOptions(), given)
    spec = FleetSpec("demo", "gce", 1, "ssh-ed25519 AAAA me", options=cloud)
    request = bulk_insert(spec, {"worker-0": "w"}, owner="k3jq7xab", user="me", zones=None, now=0.0)
    body = to_json(request.instance_properties)
    items = {item["key"]: item["value"] for item in body["metadata"]["items"]}
    assert (items["note"], items["fleet-setup"]) == ("a=b", "true")
    assert "fleet-startup-script" not in items
    assert body["labels"] == {"team": "vision", "fleet": "demo", "fleet-owner": "k3jq7xab", "fleet-user": "me"}
    assert body["disks"][0]["initializeParams"]["labels"] == body["labels"]
    assert body["tags"]["items"] == ["demo-k3jq7xab", "web"]


def test_a_script_is_read_when_the_option_is_given(tmp_path: Path) -> None:
    declared = declarations(GceOptions)["startup_script"]
    (tmp_path / "boot.sh").write_text("true\n")
    assert declared.convert("boot.sh", tmp_path) == "true\n"
    (tmp_path / "boot.sh").write_bytes(b"\xff")
    for name, message in (("boot.sh", "is not UTF-8 text"), ("none.sh", "No such file or directory")):
        with pytest.raises(ValueError, match=message):
            declared.convert(name, tmp_path)


def test_pairs_are_a_table_in_a_file(tmp_path: Path) -> None:
    declared = declarations(GceOptions)["labels"]
    assert declared.read({"team": "vision", "a": "b"}, tmp_path) == ("team=vision", "a=b")
    with pytest.raises(ValueError, match="must be a table of strings"):
        declared.read(["team=vision"], tmp_path)
