"""Malformed inventories, and those that say what cannot be honoured: one sentence with file and line."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.inventory.files import InventoryError
from provision.inventory.reader import read_inventory
from provision.provider import ErrorKind, ProviderError
from tests.next_steps import command_lines

INI = {
    "section never closed": ("h1\n[web\nh2\n", r"hosts\.ini:2: '\[web' is not a section"),
    "unknown kind of section": ("\n[web:bogus]\nh1\n", r":2: unknown kind of section \[web:bogus\]"),
    "variables of no group": ("[web:vars]\nx=1\n", r":1: \[web:vars\] requires the undefined group 'web'"),
    "groups in a circle": (
        "[a:children]\nb\n[b:children]\nc\n[c:children]\na\n",
        ":6: groups 'c' and 'a' contain each other",
    ),
    "two names in a line": ("[web]\nh1 h2\n", ":2: 'h2' after a host name is not variable=value"),
    "open quote": ('[a]\nh1 x="un\n', ":2: unbalanced quotes"),
    "user before the host": ("[a]\nlab@h1 x=1\n", ":2: 'lab@h1' is not a valid host name or address"),
    "port 0": ("[a]\nh1:0\n", ":2: invalid port '0'; expected a number from 1 to 65535"),
    "range with a hyphen": (
        "[a]\nh[1-3]\n",
        r":2: the range \[1-3\] must be begin:end or begin:end:step, as in \[1:3\]",
    ),
    "range backwards": ("[a]\nh[3:1]\n", r":2: the range \[3:1\] is empty"),
    "range of unequal widths": ("[a]\nh[01:3]\n", r":2: the range \[01:3\] is padded with zeros"),
    "range too large": ("[a]\nh[1:99999999]\n", r":2: the range \[1:99999999\] has more than 10000 hosts"),
    "priority in words": (
        "[a]\n[a:vars]\nansible_group_priority=high\n",
        ":3: ansible_group_priority of group 'a' is not a whole number",
    ),
    "port twice": (
        "[a]\nh1 ansible_port=22\n[b]\nh1 ansible_port=23\n",
        r"hosts\.ini:4: host 'h1' has ansible_port=23 here, but ansible_port=22 at .*hosts\.ini:2",
    ),
}

WANTED = {
    "no hosts": ("# no hosts\n", "the inventory has no hosts"),
    "winrm": (
        "\nh1 ansible_connection=winrm\n",
        r"hosts\.ini:2: ansible_connection=winrm of host 'h1' is not supported; only SSH is",
    ),
    "password": (
        "h1 ansible_password=hunter2\n",
        ":1: ansible_password of host 'h1' is not supported; only key files and the SSH agent are",
    ),
    "template as address": (
        "h1 ansible_host='{{ lookup(1) }}'\n",
        r":1: ansible_host of host 'h1' is a template, which is not supported: \{\{ lookup\(1\) \}\}",
    ),
    "float as address": (
        "h1 ansible_host=10.10\n",
        r":1: ansible_host of host 'h1' must be text or a whole number, not 10\.1",
    ),
    "port in words": (
        "h1 ansible_port=ssh\n",
        ":1: invalid SSH port 'ssh' of host 'h1'; expected a number from 1 to 65535",
    ),
    "user with a space": ("h1 ansible_user='a b'\n", ":1: invalid login name 'a b' of host 'h1'"),
    "user in the address": ("h1 ansible_host=lab@h9\n", ":1: invalid address 'lab@h9' of host 'h1'"),
    "names old and new": (
        "h1 ansible_host=10.0.0.1 ansible_ssh_host=10.0.0.2\n",
        r":1: host 'h1' has contradictory values: ansible_host=10\.0\.0\.1 \(.*\) and ansible_ssh_host=10\.0\.0\.2",
    ),
    "interpreter in words": (
        "h1 ansible_python_interpreter='/usr/bin/env python3'\n",
        ":1: ansible_python_interpreter of host 'h1' must be one word",
    ),
    "become another user": (
        "h1 ansible_become=yes ansible_become_user=bob\n",
        ":1: ansible_become_user=bob of host 'h1' is not supported: tasks run as the login user",
    ),
    "misspelt": ("h1 ansible_ssh_prot=22\n", ":1: ansible_ssh_prot of host 'h1' is not supported"),
    "agent": ("h1 ansible_ssh_common_args=-A\n", "of host 'h1': the option -A of ssh is not supported"),
    "no option": ("h1 ansible_ssh_common_args='bastion'\n", "of host 'h1': 'bastion' is not an option of ssh"),
    "agent by name": (
        "h1 ansible_ssh_common_args='-o ForwardAgent=yes'\n",
        ":1: ansible_ssh_common_args of host 'h1': the option forwardagent=yes of ssh is not supported",
    ),
    "another name": (
        "h1 ansible_ssh_common_args='-o HostName=x'\n",
        ":1: ansible_ssh_common_args of host 'h1': the option hostname=x of ssh is not supported",
    ),
    "two files of hosts": ("h1 ansible_ssh_common_args='-o \"UserKnownHostsFile /a /b\"'\n", "must be one word"),
}

YAML = {
    "list of hosts": ("web:\n  hosts:\n    - h1\n", ":2: hosts of group 'web' must be a mapping, not a list"),
    "unknown part": ("web:\n  hosts:\n    h1:\n  bogus: 1\n", ":4: unknown key 'bogus' in group 'web'"),
    "host twice": (
        "web:\n  hosts:\n    h1:\n    h1:\n",
        ":4: invalid YAML: duplicate key 'h1', first in line 3",
    ),
    "tab": ("web:\n\thosts:\n", r":2: invalid YAML"),
    "object of Python": (
        "web:\n  vars:\n    x: !!python/object/apply:os.system [id]\n",
        r":3: invalid YAML",
    ),
    "circle": ("web:\n  children:\n    a: {children: {web: }}\n", ":3: groups 'a' and 'web' contain each other"),
    "nested without end": ("x: " + "[" * 1000, r"hosts\.yml: invalid YAML: nested too deeply"),
    "dynamic plugin": (
        "plugin: amazon.aws.aws_ec2\nregions: [a]\n",
        r":1: dynamic inventory plugins are not supported: 'amazon\.aws\.aws_ec2'",
    ),
    "truth value that is none": ("web:\n  vars:\n    x: !!bool perhaps\n", ":3: invalid YAML: invalid value"),
    "key without a hash": ("web:\n  vars:\n    ? !vault x\n    : 1\n", "invalid YAML: invalid value"),
    "encrypted value": (
        "web:\n  hosts:\n    h1:\n      ansible_user: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        61\n",
        ":4: ansible_user of host 'h1' is encrypted by ansible-vault",
    ),
    "value that is none": ("web:\n  vars:\n    x: " + "9" * 5000 + "\n", ":3: invalid YAML: invalid value"),
}

LIMITS = {
    "unknown name": ("nosuch", "--limit 'nosuch' is not a group or host of the inventory"),
    "empty group": ("empty", "group 'empty' has no hosts"),
    "nothing left": ("web:!w*", r"--limit 'web:!w\*' selects no host"),
    "position": ("web[7]", r"--limit 'web\[7\]' selects no host: 'web' has 5, counted from 0"),
    "file": ("@retry", "files are not supported in --limit: '@retry'"),
    "expression": (
        "~w(",
        r"--limit '~w\(' is not a regular expression: missing \), unterminated subpattern at position 1",
    ),
}


def refused(path: Path) -> InventoryError:
    """The error of an inventory, which is one sentence."""
    with pytest.raises(InventoryError) as caught:
        read_inventory(path).select()
    error = caught.value
    assert isinstance(error, ProviderError)
    assert error.kind is ErrorKind.USAGE
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert "hunter2" not in error.message + error.cause + error.hint + command_lines(error)
    return error


@pytest.mark.parametrize(("text", "message"), [*INI.values(), *WANTED.values()], ids=[*INI, *WANTED])
def test_ini(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text(text)
    assert_matches(message, refused(path))


@pytest.mark.parametrize(("text", "message"), YAML.values(), ids=YAML)
def test_yaml(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(text)
    assert_matches(message, refused(path))


@pytest.mark.parametrize(("limit", "message"), LIMITS.values(), ids=LIMITS)
def test_limits(limit: str, message: str) -> None:
    inventory = read_inventory(Path(__file__).parent / "files" / "limits" / "hosts.ini")
    with pytest.raises(InventoryError) as caught:
        inventory.select(limit)
    assert_matches(message, caught.value)


def assert_matches(pattern: str, error: InventoryError) -> None:
    """The sentence is found in the error."""
    assert re.search(pattern, error.message), error.message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\n", r"machines\.txt:1: 'a b' contains several hosts"),
        ("@a\n", ":1: no user before the @ in '@a'"),
        ("x@a\ny@a\n", r":2: host 'a' has ansible_user=y here, but ansible_user=x at .*:1"),
        ("-x@a\n", ":1: invalid login name '-x' of host 'a'"),
        ("", "the inventory has no hosts"),
    ],
)
def test_plain(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "machines.txt"
    path.write_text(text)
    assert_matches(message, refused(path))


def test_files_that_are_no_inventories(tmp_path: Path) -> None:
    script = tmp_path / "ec2.py"
    script.write_text("#!/usr/bin/env python3\nprint({})\n")
    script.chmod(0o755)
    assert_matches(r"ec2\.py is executable; dynamic inventories are not supported", refused(script))
    assert_matches("is a directory; an inventory must be a file", refused(tmp_path))
    assert_matches("cannot be read: No such file or directory", refused(tmp_path / "missing"))
    toml = tmp_path / "hosts.toml"
    toml.write_text("[web]\n")
    assert_matches("inventories in TOML are not supported", refused(toml))
    for name, content, message in (
        ("latin.ini", b"[a]\nh\xff1\n", r"latin\.ini:2: not UTF-8 text"),
        ("zero.ini", b"[a]\n\nh\0\n", r"zero\.ini: not a text file"),
        ("vault.yml", b"$ANSIBLE_VAULT;1.1;AES256\n6162\n", "encrypted by ansible-vault"),
        ("large.ini", b"#" * (16 * 2**20 + 1), "larger than 16 MiB"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert_matches(message, refused(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", r"group_vars/web\.yml: a file of variables must be a mapping"),
        ("ansible_user: lab\nansible_port: x\n", r"web\.yml:2: invalid SSH port 'x' of host 'h1'; expected"),
        ("a: [\n", r"web\.yml:2: invalid YAML"),
    ],
)
def test_files_of_variables(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text("[web]\nh1\n")
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "web.yml").write_text(text)
    assert_matches(message, refused(path))


WORDS = ["all", "hosts", "vars", "children", "h1", "h[1:3]", "ansible_host=", "ansible_ssh_common_args="]
TEXTS = st.lists(st.sampled_from([*"[]:{}=!&*,#;'\"|>-@~ \t\n%\\.01ahé", *WORDS, "[a]\n", "-o "]), max_size=40).map(
    "".join
)


@given(text=TEXTS, name=st.sampled_from(["x", "x.ini", "x.yml", "x.json", "x.txt"]), limit=TEXTS)
def test_no_content_of_a_file_causes_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str, name: str, limit: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(InventoryError):
        assert len(read_inventory(path).select(limit)) > 0
