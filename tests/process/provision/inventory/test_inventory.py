"""Inventories compared with the results of Ansible, and with ssh's result for Ansible's options."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from provision.inventory.entry import Entry
from provision.inventory.files import InventoryError
from provision.inventory.reader import Inventory, convert, read_inventory
from tests.unit.provision.inventory.record import (
    FILES,
    INVENTORIES,
    LIMITS,
    ROOT,
    UNSAID,
    ansible_hosts,
    ansible_lists,
    expected,
    find_tool,
    given_to_ssh,
)

EXAMPLES = sorted((ROOT / "inventories").glob("hosts.*"))


def recorded(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(expected(path).read_text(encoding="utf-8"))
    return content


def below(listing: dict[str, Any], group: str) -> list[str]:
    """Return the hosts of a group of Ansible's list, then those of its child groups, level by level."""
    hosts: list[str] = []
    level = [group]
    while level:
        contents = [listing.get(name, {}) for name in level]
        hosts += [host for content in contents for host in content.get("hosts", [])]
        level = [child for content in contents for child in content.get("children", [])]
    return list(dict.fromkeys(hosts))


def as_json(value: Any) -> Any:
    """Return a value as JSON stores it, without Ansible's marker of unsafe text."""
    if isinstance(value, dict):
        if set(value) == {"__ansible_unsafe"}:
            return value["__ansible_unsafe"]
        return {str(key): as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


def assert_agrees(inventory: Inventory, listing: dict[str, Any]) -> None:
    """Check that groups and hosts are those of Ansible's list."""
    groups = set(listing) - {"_meta"}
    assert {name for name, hosts in inventory.groups.items() if hosts} == {
        name for name in groups if below(listing, name)
    }
    assert set(inventory.groups["all"]) == set(below(listing, "all"))  # the direct hosts of all are not in the list
    for group in groups - {"all"}:
        assert list(inventory.groups[group]) == below(listing, group), group
    for host in inventory.names:
        variables = {name: setting.value for name, setting in inventory.variables(host).items()}
        assert as_json(variables) == as_json(listing["_meta"]["hostvars"].get(host, {})), host


def options_of(host: Entry, directory: Path) -> dict[str, Any]:
    """Return what ssh makes of the options of an entry."""
    config = directory / "config"
    config.write_text("".join(f"{option} {value}\n" for option, value in UNSAID.items()))
    words = ["ssh", "-G", "-F", str(config), *host.options, "--", host.address]
    return given_to_ssh(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("path", INVENTORIES, ids=lambda path: str(path.relative_to(FILES)))
def test_an_inventory_yields_what_ansible_recorded(path: Path, tmp_path: Path) -> None:
    inventory = read_inventory(path)
    record = recorded(path)
    assert_agrees(inventory, record["list"])
    assert list(inventory.names) in record["orders"]
    assert {host.name: options_of(host, tmp_path) for host in inventory.select()} == record["ssh"]


@pytest.mark.skipif(not find_tool("ansible-inventory"), reason="ansible-inventory is not installed: ./scripts/setup")
def test_ansible_itself_agrees(subtests: pytest.Subtests) -> None:
    examples = [path for path in EXAMPLES if path.suffix != ".txt"]
    for path, listing in ansible_lists([*INVENTORIES, *examples]).items():
        with subtests.test(path.name):
            assert_agrees(read_inventory(path), listing)
    for path in examples:
        with subtests.test(f"order of {path.name}"):
            assert list(read_inventory(path).names) == ansible_hosts(path)


@pytest.mark.skipif(not find_tool("ansible-inventory"), reason="ansible-inventory is not installed: ./scripts/setup")
def test_ansible_converts_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{ROOT}/.tools/bin")
    script = tmp_path / "script"
    listing = (
        '{"gpu": {"hosts": ["g2", "g1"], "vars": {"ansible_user": "lab"}}, "_meta": {"hostvars": {"g1": {"a": "b"}}}}'
    )
    script.write_text(f"#!/bin/sh\necho '{listing}'\n")
    script.chmod(0o755)
    assert convert(script, tmp_path / "state/hosts.yml")
    hosts = read_inventory(tmp_path / "state/hosts.yml").select("gpu")
    assert {host.name: host.options for host in hosts} == dict.fromkeys(("g1", "g2"), ("-o", "user=lab"))
    assert not convert(tmp_path / "state/hosts.yml", tmp_path / "other")
    script.write_text("#!/bin/sh\nexit 1\n")
    with contextlib.suppress(InventoryError):  # newer versions only warn
        convert(script, tmp_path / "state/hosts.yml")
        assert not read_inventory(tmp_path / "state/hosts.yml").names


def test_there_is_an_example_of_each_kind() -> None:
    assert len(INVENTORIES) >= 30
    inventories = [read_inventory(path) for path in EXAMPLES]
    assert all(inventory.select() for inventory in inventories)
    assert {inventory.path.suffix for inventory in inventories} == {".ini", ".yaml", ".txt"}


@pytest.mark.parametrize(("limit", "hosts"), json.loads(LIMITS.read_text(encoding="utf-8")).items())
def test_a_limit_selects_what_ansible_selects(limit: str, hosts: list[str]) -> None:
    inventory = read_inventory(FILES / "limits" / "hosts.ini")
    if hosts:
        assert [host.name for host in inventory.select(limit)] == hosts
    else:
        with pytest.raises(InventoryError):
            inventory.select(limit)


def test_nested_groups_have_one_order() -> None:
    """If Ansible's order depends on the hash seed, the order of the file is used."""
    inventory = read_inventory(FILES / "ini_nested.ini")
    assert inventory.names == ("d1", "s1", "n2", "n1")
    assert inventory.groups["site"] == ("n2", "n1", "s1")


def test_an_entry_has_all_options_of_ssh() -> None:
    inventory = read_inventory(FILES / "ini_ssh_args.ini")
    by_name = {host.name: host for host in inventory.select()}
    assert "proxycommand=none" in by_name["nothing"].options
    assert "proxycommand=none" not in by_name["jump"].options
    assert by_name["key"].keys[0] == "/keys/lab"
    (host_w2,) = read_inventory(FILES / "next_to" / "hosts.ini").select("w2")
    assert (host_w2.address, host_w2.options) == ("10.0.0.2", ("-o", "user=lab"))


def test_the_interpreter_is_a_path_or_found_on_the_host() -> None:
    hosts = read_inventory(FILES / "ini_interpreter.ini").select()
    assert [host.python for host in hosts] == ["/usr/bin/python3.11", "", ""]


def test_users_and_ports_of_a_plain_list(tmp_path: Path) -> None:
    path = tmp_path / "machines"
    path.write_text("lab@gpu[1:2]:2222\n; away\n\n  admin@login # here\n[2001:db8::1]:22\nlab@gpu2:2222\n")
    inventory = read_inventory(path)
    assert [(host.name, *host.options) for host in inventory.select()] == [
        ("gpu1", "-o", "port=2222", "-o", "user=lab"),
        ("gpu2", "-o", "port=2222", "-o", "user=lab"),
        ("login", "-o", "user=admin"),
        ("2001:db8::1", "-o", "port=22"),
    ]


def test_a_mark_of_byte_order_and_the_mode_of_an_executable_have_no_effect(tmp_path: Path) -> None:
    """Some file systems mark every file as executable."""
    path = tmp_path / "hosts.ini"
    path.write_bytes(b"\xef\xbb\xbf[gpu]\ng1\n")
    path.chmod(0o755)
    assert read_inventory(path).groups["gpu"] == ("g1",)


def test_a_host_that_cannot_be_honoured_disturbs_only_those_who_want_it(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text("[gpu]\ng1\n[windows]\nw1 ansible_connection=winrm\n[here]\nlocalhost ansible_connection=local\n")
    inventory = read_inventory(path)
    assert [host.name for host in inventory.select("gpu")] == ["g1"]
    with pytest.raises(InventoryError, match="winrm"):
        inventory.select("windows")
    with pytest.raises(InventoryError, match="ansible_connection=local") as caught:
        inventory.select("here")
    assert "--provider local" in caught.value.hint


def test_a_sealed_file_disturbs_only_its_group(tmp_path: Path) -> None:
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "db.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    path = tmp_path / "hosts.ini"
    path.write_text("[gpu]\ng1\n[db]\nd1\n")
    assert len(read_inventory(path).select("gpu")) == 1
    with pytest.raises(InventoryError, match=r".*group_vars/db\.yml: encrypted by ansible-vault"):
        read_inventory(path).select("db")


def test_aliases_inside_aliases_are_read_once(tmp_path: Path) -> None:
    """Each level names the previous one twice: as a tree, this would have 10^12 groups."""
    lines = ["a0: &a0 {hosts: {h1: }}"]
    lines += [f"a{n}: &a{n} {{children: {{l{n}: *a{n - 1}, r{n}: *a{n - 1}}}}}" for n in range(1, 40)]
    path = tmp_path / "hosts.yml"
    path.write_text("\n".join(lines))
    assert read_inventory(path).groups["a39"] == ("h1",)
