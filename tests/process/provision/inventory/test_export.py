"""Exports of a fleet for other programs, read back by these programs."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.inventory.export import export
from provision.inventory.reader import read_inventory
from provision.model import Host
from provision.ssh_config.arguments import quoted_path
from tests.unit.provision.inventory.record import ansible_hosts, ansible_list, find_tool, ssh_options

KEY = Path("/home/a user/.local/state/fleet/demo/100% key")
KNOWN = Path("/home/a user/.local/state/fleet/demo/known_hosts")
PROXY = ("gcloud", "compute", "start-iap-tunnel", "demo-worker-1", "%p", "--zone=a b", "it's")
HOSTS = [
    Host("worker-0", "10.0.0.1", 22, "fleet", "ssh-ed25519 AAAA", "gce-1234", "10.128.0.1"),
    Host("worker-1", "2001:db8::1", 2222, "10", "ssh-ed25519 BBBB", "gce-5678", "", "/opt/py 3/bin/python"),
    Host("worker-2", "127.0.0.3", 2200, "True", "ssh-ed25519 CCCC", "", "127.0.0.3", proxy=PROXY),
    Host("worker-3", "lab3", 22, "me", "ssh-ed25519 DDDD", "lab3", "", agent="SSH_AUTH_SOCK"),
    Host(
        *("worker-4", "lab4", 22, "me", "ssh-ed25519 EEEE", "lab4", ""),
        identities=("/keys/one", "/my keys/two"),
        certificates=("/my keys/two-cert.pub",),
        agent="/run/agent",
        identities_only=True,
    ),
]


def keys_of(host: Host) -> tuple[str, ...]:
    """Return the private keys that a host is offered; none if it uses only an agent."""
    return host.identities or (() if host.agent else (str(KEY),))


def parsed_by_ssh(directory: Path) -> dict[str, dict[str, str]]:
    """Return the ``ssh -G`` output for the exported configuration, by host name."""
    path = directory / "config"
    path.write_text(export("my-fleet", HOSTS, KEY, KNOWN, "ssh-config"))
    by_host: dict[str, dict[str, str]] = {}
    for host in HOSTS:
        words = ["ssh", "-G", "-F", str(path), f"my-fleet-{host.name}"]
        text = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
        options: dict[str, str] = {}
        by_host[host.name] = options
        for name, _, value in (line.partition(" ") for line in text.splitlines()):
            options[name] = f"{options[name]}\n{value}" if name in options else value
    return by_host


def test_ssh_reads_the_configuration(tmp_path: Path) -> None:
    options = parsed_by_ssh(tmp_path)
    for host in HOSTS:
        read = options[host.name]
        assert (read["hostname"], read["port"], read["user"]) == (host.address, str(host.port), host.user)
        keys = [key.replace("%", "%%") for key in keys_of(host)]  # ssh replaces tokens when it opens the file
        assert [key for key in read["identityfile"].split("\n") if not key.startswith("~/.ssh/id_")] == keys
        assert read["userknownhostsfile"] == str(KNOWN)
        assert read["stricthostkeychecking"] == "true"
        assert read["identitiesonly"] == ("no" if host.name == "worker-3" else "yes")
        assert read.get("identityagent", "") == host.agent
        assert read.get("certificatefile", "") == "".join(host.certificates)
        assert read.get("hostkeyalias", "") == host.key_alias
    assert "proxycommand" not in options["worker-0"]
    assert options["worker-2"]["proxycommand"] == (
        """gcloud compute start-iap-tunnel demo-worker-1 %%p '--zone=a b' 'it'"'"'s'"""
    )


def test_the_reader_of_inventories_reads_the_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(export("my-fleet", HOSTS, KEY, KNOWN, "ansible"))
    entries = read_inventory(path).select("my_fleet")
    for host, entry in zip(HOSTS, entries, strict=True):
        assert (entry.name, entry.address, entry.python) == (host.name, host.address, host.python)
        assert [key.replace("%%", "%") for key in entry.keys] == list(keys_of(host))
        words = ["ssh", "-F", "none", *entry.options, "-G", "--", entry.address]
        read = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        expected = parsed_by_ssh(tmp_path)[host.name]
        for name in (
            *("hostname", "port", "user", "identityfile", "certificatefile", "identityagent", "identitiesonly"),
            *("userknownhostsfile", "stricthostkeychecking", "hostkeyalias", "proxycommand"),
        ):
            values = [
                value for option, _, value in (line.partition(" ") for line in read.splitlines()) if option == name
            ]
            assert "\n".join(values) == expected.get(name, ""), name


@pytest.mark.skipif(not find_tool("ansible-inventory"), reason="ansible-inventory is not installed: ./scripts/setup")
def test_ansible_reads_the_inventory(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(export("my-fleet", HOSTS, KEY, KNOWN, "ansible"))
    listing = ansible_list(path)
    assert listing["my_fleet"]["hosts"] == ansible_hosts(path) == [host.name for host in HOSTS]
    variables = listing["_meta"]["hostvars"]
    for host in HOSTS:
        mine = variables[host.name]
        assert (mine["ansible_host"], mine["ansible_port"]) == (host.address, host.port)
        assert str(mine["ansible_user"]) == host.user
        assert mine.get("ansible_python_interpreter", "") == host.python
    options = parsed_by_ssh(tmp_path)
    for name, reported in ssh_options(path, [host.name for host in HOSTS]).items():
        keys = options[name]["identityfile"].split("\n")
        assert reported["identityfile"] == [key for key in keys if not key.startswith("~/.ssh/id_")]
        for option in ("hostname", "port", "user", "userknownhostsfile", "stricthostkeychecking"):
            assert reported[option] == options[name][option], (name, option)
        for option in ("proxycommand", "hostkeyalias"):
            assert reported.get(option) == options[name].get(option), (name, option)


def test_json_holds_everything() -> None:
    content = json.loads(export("my-fleet", HOSTS, KEY, KNOWN, "json"))
    assert (content["version"], content["fleet"]) == (1, "my-fleet")
    assert (content["key"], content["known_hosts"]) == (str(KEY), str(KNOWN))
    assert content["hosts"] == json.loads(json.dumps([asdict(host) for host in HOSTS]))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ('a"b', "cannot be written into a configuration"),
        ("a\nb", "cannot be written into a configuration"),
        ("/keys/{{ x }}", r"Ansible would expand '/keys/\{\{ x \}\}' as a template"),
    ],
)
def test_a_path_that_cannot_be_written_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        export("demo", HOSTS, Path(name), KNOWN, "ansible")


WORDS = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"{', include_characters=" "),
    min_size=1,
)


@given(paths=st.tuples(WORDS, WORDS), proxy=st.lists(WORDS, max_size=3))
def test_any_path_survives_the_export(
    tmp_path_factory: pytest.TempPathFactory, paths: tuple[str, str], proxy: list[str]
) -> None:
    key, known_hosts = (Path("/", text.strip() or "x") for text in paths)
    host = Host("worker-0", "10.0.0.1", 22, "fleet", "ssh-ed25519 AAAA", "alias", "10.0.0.1", proxy=tuple(proxy))
    path = tmp_path_factory.mktemp("export") / "hosts.ini"
    path.write_text(export("demo", [host], key, known_hosts, "ansible"), encoding="utf-8")
    (entry,) = read_inventory(path).select()
    values = dict(word.split("=", 1) for word in entry.options if "=" in word)
    assert [key.replace("%%", "%") for key in entry.keys] == [str(key)]
    assert values["userknownhostsfile"] == quoted_path(str(known_hosts))
    assert ("proxycommand" in values) == bool(proxy)
