"""Malformed inventories, and those that say what cannot be honoured: one sentence with file and line."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from provision.inventory import InventoryError, read_inventory
from provision.provider import ErrorKind, ProviderError

INI = {
    "section never closed": ("h1\n[web\nh2\n", r"hosts\.ini:2: '\[web' is no section"),
    "section with a space": ("[a b]\nh1\n", r"hosts\.ini:1: '\[a b\]' is no section"),
    "section of three parts": ("[a:b:c]\n", r":1: '\[a:b:c\]' is no section"),
    "unknown kind of section": ("\n[web:bogus]\nh1\n", r":2: the section \[web:bogus\] is of an unknown kind"),
    "variables of no group": ("[web:vars]\nx=1\n", r":1: the group 'web' is not defined, and \[web:vars\] needs it"),
    "child that is not defined": (
        "[web]\nh1\n[lab:children]\nweb\ndb\n",
        r":5: the group 'db' is not defined, and \[lab:children\] needs it",
    ),
    "groups in a circle": (
        "[a:children]\nb\n[b:children]\nc\n[c:children]\na\n",
        r":6: the groups 'c' and 'a' contain each other",
    ),
    "group in itself": ("[a:children]\na\n[a]\nh1\n", "the group 'a' contains itself"),
    "all as a child": ("[a:children]\nall\n", r":2: the group 'all' cannot be in the group 'a'"),
    "ungrouped as a child": (
        "h1\n[a:children]\nungrouped\n",
        r":3: the group 'ungrouped' cannot be in the group 'a'",
    ),
    "two names in a line": ("[web]\nh1 h2\n", r":2: 'h2' stands behind a host and is no variable=value"),
    "spaces around the sign": ("h1 x = 1\n", r":1: 'x' stands behind a host"),
    "semicolon behind a host": ("h1 ansible_user=x ; no\n", r":1: ';' stands behind a host"),
    "two children in a line": ("[a:children]\nb c\n", r":2: 'b c' is no name of a group"),
    "variable without a value": ("[a]\n[a:vars]\nx\n", r":3: 'x' in \[a:vars\] is no variable=value"),
    "open quote": ('[a]\nh1 x="un\n', ":2: a quote is opened and not closed"),
    "commas": ("[a]\nh1,h2\n", r":2: 'h1,h2' cannot be the name or the address of a host"),
    "user before the host": ("[a]\nlab@h1 x=1\n", r":2: 'lab@h1' cannot be the name or the address"),
    "option for a host": ("[a]\n-oProxyCommand=x\n", r":2: '-oProxyCommand=x' cannot be the name"),
    "template for a host": ("[a]\n{{h1}}\n", r":2: '\{\{h1\}\}' cannot be the name"),
    "port 0": ("[a]\nh1:0\n", r":2: '0' is no port"),
    "port too high": ("[a]\nh1:65536\n", r":2: '65536' is no port"),
    "port in letters": ("[a]\nh1:ssh\n", r":2: 'ssh' is no port"),
    "port missing": ("[a]\nh1:\n", r":2: '' is no port"),
    "range with a hyphen": (
        "[a]\nh[1-3]\n",
        r":2: the range \[1-3\] must be begin:end or begin:end:step, as in \[1:3\]",
    ),
    "range backwards": ("[a]\nh[3:1]\n", r":2: the range \[3:1\] is empty"),
    "range of letters backwards": ("[a]\nh[c:a]\n", r":2: the range \[c:a\] is empty"),
    "range without an end": ("[a]\nh[1:]\n", r":2: the range \[1:\] has no end"),
    "range of step 0": ("[a]\nh[1:3:0]\n", r":2: the step of the range \[1:3:0\] must be a number above 0"),
    "range of unequal widths": ("[a]\nh[01:3]\n", r":2: the range \[01:3\] is padded with zeros"),
    "range of both kinds": ("[a]\nh[1:c]\n", r":2: the range \[1:c\] must go from number to number"),
    "range without a partner": ("[a]\nh[1:3\n", r":2: a bracket of 'h\[1:3' has no partner"),
    "range too large": ("[a]\nh[1:99999999]\n", r":2: the range \[1:99999999\] makes more than 10000 hosts"),
    "ranges too large": ("[a]\nh[1:2000]-[1:2000]\n", r":2: the range \[1:2000\] makes more than 10000 hosts"),
    "brackets that hold no address": ("[a]\n[a:c]:22\n", r":2: '\[a:c\]:22' is no section"),
    "priority in words": ("[a]\n[a:vars]\nansible_group_priority=high\n", r":3: ansible_group_priority of the group"),
    "port twice": (
        "[a]\nh1 ansible_port=22\n[b]\nh1 ansible_port=23\n",
        r"hosts\.ini:4: the host 'h1' has ansible_port=23 here and ansible_port=22 at .*hosts\.ini:2",
    ),
    "port and port": ("h1:22 ansible_port=23\n", r":1: the host 'h1' has ansible_port=23 here and ansible_port=22"),
    "user of a group twice": (
        "[a]\nh1\n[a:vars]\nansible_user=x\nansible_user=y\n",
        r":5: the group 'a' has ansible_user=y here and ansible_user=x at .*:4",
    ),
}

WANTED = {
    "no hosts": ("# nobody\n", "The inventory names no host"),
    "only empty groups": ("[a]\n[b]\n", "The inventory names no host"),
    "two names for one host": (
        "h1 ansible_host=10.0.0.1\nh2 ansible_host=10.0.0.1\n",
        r"the hosts 'h1' and 'h2' are one: both are 10\.0\.0\.1",
    ),
    "address of another": ("h1\nh2 ansible_host=h1 ansible_port=22\nh3:22 ansible_host=h1\n", "'h2' and 'h3' are"),
    "winrm": ("\nh1 ansible_connection=winrm\n", r"hosts\.ini:2: the host 'h1' has ansible_connection=winrm"),
    "docker": ("h1\n[all:vars]\nansible_connection=community.docker.docker\n", ":3: the host 'h1' has ansible_conn"),
    "password": ("h1 ansible_password=hunter2\n", r":1: the host 'h1' has ansible_password"),
    "old password": ("h1 ansible_ssh_pass=hunter2\n", r":1: the host 'h1' has ansible_ssh_pass"),
    "template as address": (
        "h1 ansible_host='{{ lookup(1) }}'\n",
        r":1: ansible_host of the host 'h1' is a template, \{\{ lookup\(1\) \}\}",
    ),
    "template as option": (
        "h1 ansible_ssh_common_args='-J {{ b }}'\n",
        ":1: ansible_ssh_common_args of the host 'h1' is a",
    ),
    "template as interpreter": ("h1 ansible_python_interpreter={{ansible_playbook_python}}\n", "'h1' is a template"),
    "statement as user": ("h1 ansible_user='{% if x %}a{% endif %}'\n", "'h1' is a template"),
    "float as address": ("h1 ansible_host=10.10\n", r"ansible_host of the host 'h1' is read as 10\.1,"),
    "list as user": ("h1 ansible_user=\"['a']\"\n", r"ansible_user of the host 'h1' is read as \['a'\]"),
    "port in words": ("h1 ansible_port=ssh\n", r":1: 'ssh' cannot be the SSH port of the host 'h1'"),
    "port too high": ("h1\n[all:vars]\nansible_port=70000\n", r":3: '70000' cannot be the SSH port"),
    "user with a space": ("h1 ansible_user='a b'\n", r":1: 'a b' cannot be the login name on the host 'h1'"),
    "user like an option": ("h1 ansible_user=-oProxyCommand=x\n", ":1: '-oProxyCommand=x' cannot be the login name"),
    "address like an option": ("h1 ansible_host=-oProxyCommand=x\n", ":1: '-oProxyCommand=x' cannot be the address"),
    "user in the address": ("h1 ansible_host=lab@h9\n", ":1: 'lab@h9' cannot be the address of the host 'h1'"),
    "names old and new": (
        "h1 ansible_host=10.0.0.1 ansible_ssh_host=10.0.0.2\n",
        r":1: the host 'h1' has ansible_host=10\.0\.0\.1 .* and ansible_ssh_host=10\.0\.0\.2 .*mean the same",
    ),
    "interpreter in words": ("h1 ansible_python_interpreter='/usr/bin/env python3'\n", "'h1' is more than one word"),
    "shell of Windows": ("h1 ansible_shell_type=powershell\n", ":1: the host 'h1' has ansible_shell_type=powershell"),
    "become somebody": (
        "h1 ansible_become=yes ansible_become_user=bob\n",
        r":1: tasks on the host 'h1' are to run as bob",
    ),
    "become perhaps": ("h1 ansible_become=perhaps\n", ":1: ansible_become=perhaps is neither yes nor no"),
    "executable": (
        "h1 ansible_ssh_executable=/opt/ssh\n",
        ":1: ansible_ssh_executable of the host 'h1' cannot be honoured",
    ),
    "misspelt": ("h1 ansible_ssh_prot=22\n", ":1: ansible_ssh_prot of the host 'h1' cannot be honoured"),
    "key with a token": ("h1 ansible_ssh_private_key_file=%d/key\n", ":1: the path '%d/key' holds a token of ssh"),
    "agent": ("h1 ansible_ssh_common_args=-A\n", ":1: .* the option -A of ssh cannot be honoured"),
    "forwarded port": ("h1 ansible_ssh_extra_args='-L 1:h:2'\n", "the option -L of ssh cannot be honoured"),
    "agent by name": (
        "h1 ansible_ssh_common_args='-o ForwardAgent=yes'\n",
        "the option forwardagent=yes of ssh cannot",
    ),
    "another name": (
        "h1 ansible_ssh_common_args='-o HostName=x'\n",
        "the option hostname=x of ssh cannot be honoured",
    ),
    "no option": ("h1 ansible_ssh_common_args='bastion'\n", "'bastion' is no option of ssh"),
    "no value": ("h1 ansible_ssh_common_args='-C -J'\n", "the option -J of ssh has no value"),
    "no name": ("h1 ansible_ssh_common_args='-o ProxyJump'\n", "-o 'ProxyJump' is no NAME=VALUE"),
    "open quote in options": (
        'h1 ansible_ssh_common_args="-o \'ProxyJump=a"\n',
        ":1: .* a quote is opened and not closed",
    ),
    "jump behind a proxy": ("h1 ansible_ssh_common_args='-o ProxyJump=a -J b'\n", "ssh takes -J once"),
    "jump over a command": ("h1 ansible_ssh_common_args='-J a;b'\n", "'a;b' names no jump hosts"),
    "checking perhaps": ("h1 ansible_ssh_common_args='-o StrictHostKeyChecking=perhaps'\n", "is none of yes, ask"),
    "two files of hosts": ("h1 ansible_ssh_common_args='-o \"UserKnownHostsFile /a /b\"'\n", "must be one word"),
    "port in options": ("h1 ansible_ssh_common_args='-p 99999'\n", "'99999' cannot be the SSH port of the host 'h1'"),
}

YAML = {
    "list of hosts": ("web:\n  hosts:\n    - h1\n", r":2: hosts of the group 'web' .*this is a list"),
    "group as a list": ("web:\n  - h1\n", r":1: the group 'web' .*this is a list"),
    "text": ("just words\n", r"hosts\.yml: an inventory in YAML must be groups by name"),
    "nothing": ("", r"hosts\.yml: an inventory in YAML must be groups by name"),
    "unknown part": ("web:\n  hosts:\n    h1:\n  bogus: 1\n", r":4: 'bogus' in the group 'web' is none of hosts"),
    "host twice": (
        "web:\n  hosts:\n    h1:\n    h1:\n",
        r":4: this is not usable YAML: 'h1' stands twice, .* line 3",
    ),
    "variable twice": ("web:\n  hosts:\n    h1: {a: 1, b: 2, a: 3}\n", r":3: .*'a' stands twice"),
    "number as a host": ("web:\n  hosts:\n    10:\n", r":3: 10 is no name of a host"),
    "number as a group": ("web:\n  children:\n    5:\n", r":3: 5 is no name of a group"),
    "value for a host": ("web:\n  hosts:\n    h1: 5\n", r":3: the host 'h1' .*this is a single value"),
    "tab": ("web:\n\thosts:\n", r":2: this is not usable YAML"),
    "open bracket": ("web: {hosts: {h1: }\n", r":2: this is not usable YAML"),
    "unknown tag": ("web:\n  vars:\n    x: !foo 1\n", r":3: this is not usable YAML: could not determine .*!foo"),
    "object of Python": (
        "web:\n  vars:\n    x: !!python/object/apply:os.system [id]\n",
        r":3: this is not usable YAML",
    ),
    "set": ("web:\n  vars:\n    x: !!set {a}\n", r":3: this is not usable YAML"),
    "two documents": ("web:\n---\ndb:\n", r":2: this is not usable YAML"),
    "circle": ("web:\n  children:\n    a: {children: {web: }}\n", r":3: the groups 'a' and 'web' contain each other"),
    "alias of itself": ("web: &a\n  vars:\n    x: *a\n", r":\d: this is not usable YAML: .*recursive"),
    "list as a name": ("web:\n  vars:\n    [a, b]: 1\n", r":3: this is not usable YAML: only text can stand before"),
    "nested without end": ("x: " + "[" * 5000, "this is nested too deeply"),
    "character": ("web:\n  vars:\n    x: \x07\n", r":3: a character that YAML does not allow"),
    "range": ("web:\n  hosts:\n    h[1-3]:\n", r":3: the range \[1-3\] must be begin:end"),
    "dynamic plugin": (
        "plugin: amazon.aws.aws_ec2\nregions: [a]\n",
        r":1: .*dynamic inventory plugin 'amazon.aws.aws_ec2'",
    ),
    "output of a script": (
        '{"_meta": {"hostvars": {}}, "web": ["h1"]}',
        ":1: this is what an inventory script prints",
    ),
    "contradiction": (
        "a:\n  hosts:\n    h1: {ansible_user: x}\nb:\n  hosts:\n    h1: {ansible_user: y}\n",
        r":6: the host 'h1' has ansible_user=y here and ansible_user=x at .*:3",
    ),
    "value that is none": ("web:\n  vars:\n    x: " + "9" * 5000 + "\n", r":3: .*not the value that it looks like"),
}

LIMITS = {
    "nobody": ("nosuch", "names neither a group nor a host"),
    "nobody taken away": ("web:!nosuch", "The limit 'nosuch' names neither a group nor a host"),
    "slip of the pen": ("wbe", "names neither"),
    "empty group": ("empty", "The group 'empty' has no hosts"),
    "nothing left": ("web:!w*", "No host is left by the limit 'web:!w\\*'"),
    "position": ("web[7]", r"The limit 'web\[7\]' names no host: 'web' has 5 of them, counted from 0"),
    "this computer": ("localhost", "The limit 'localhost' is not in the inventory"),
    "file": ("@retry", "The limit '@retry' asks for a file of names"),
    "sign alone": ("web:!", "a '!' stands without a name behind it"),
    "expression": ("~w(", r"The limit '~w\(' is no regular expression"),
}


def refused(path: Path) -> InventoryError:
    """The error of an inventory, which is one sentence."""
    with pytest.raises(InventoryError) as caught:
        assert read_inventory(path).hosts is None
    error = caught.value
    assert isinstance(error, ProviderError)
    assert error.kind is ErrorKind.USAGE
    assert "\n" not in error.message
    assert not error.message.endswith(".")
    assert "hunter2" not in error.message + error.cause + error.hint + error.next_step
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


def test_a_sealed_value_is_refused_where_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yml"
    path.write_text(
        "web:\n  hosts:\n    h1:\n      ansible_user: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        61\n"
    )
    assert_matches(r":4: ansible_user of the host 'h1' is sealed by ansible-vault", refused(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a b\n", r"machines\.txt:1: 'a b' is more than one host"),
        ("\na,b\n", r":2: 'a,b' is more than one host"),
        ("@a\n", r":1: the user is missing before the @ of '@a'"),
        ("a:70000\n", r":1: '70000' is no port"),
        ("x@a\ny@a\n", r":2: the host 'a' has ansible_user=y here and ansible_user=x at .*:1"),
        ("-x@a\n", r"'-x' cannot be the login name"),
        ("", "The inventory names no host"),
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
    assert_matches(r"ec2\.py is a program, and inventories are read, not run", refused(script))
    assert_matches("is a directory, and an inventory is one file", refused(tmp_path))
    assert_matches("cannot be read: No such file or directory", refused(tmp_path / "missing"))
    toml = tmp_path / "hosts.toml"
    toml.write_text("[web]\n")
    assert_matches("is TOML", refused(toml))
    for name, content, message in (
        ("latin.ini", b"[a]\nh\xff1\n", r"latin\.ini:2: this is not UTF-8 text"),
        ("zero.ini", b"[a]\n\nh\0\n", r"zero\.ini:3: this is not text"),
        ("vault.yml", b"$ANSIBLE_VAULT;1.1;AES256\n6162\n", "is sealed by ansible-vault"),
        ("large.ini", b"#" * (16 * 2**20 + 1), "this is larger than 16 MiB"),
    ):
        path = tmp_path / name
        path.write_bytes(content)
        assert_matches(message, refused(path))


def test_files_of_variables(tmp_path: Path) -> None:
    path = tmp_path / "hosts.ini"
    path.write_text("[web]\nh1\n")
    directory = tmp_path / "group_vars"
    directory.mkdir()
    (directory / "web.yml").write_text("- 1\n")
    assert_matches(r"web\.yml: a file of variables must be names with values", refused(path))
    (directory / "web.yml").write_text("ansible_user: lab\nansible_port: x\n")
    assert_matches(r"web\.yml:2: 'x' cannot be the SSH port", refused(path))
    (directory / "web.yml").write_text("a: [\n")
    assert_matches(r"web\.yml:2: this is not usable YAML", refused(path))


WORDS = [
    "all",
    "hosts",
    "vars",
    "children",
    "h1",
    "[a]\n",
    "h[1:3]",
    "ansible_host=",
    "ansible_ssh_common_args=",
    "-o ",
]
TEXTS = st.lists(st.sampled_from([*"[]:{}=!&*,#;'\"|>-@~ \t\n%\\.01ahé", *WORDS]), max_size=40).map("".join)


@given(text=TEXTS, name=st.sampled_from(["x", "x.ini", "x.yml", "x.json", "x.txt"]), limit=TEXTS)
@settings(deadline=None)
def test_no_content_of_a_file_causes_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, text: str, name: str, limit: str
) -> None:
    path = tmp_path_factory.getbasetemp() / name
    path.write_text(text, encoding="utf-8")
    with contextlib.suppress(InventoryError):
        assert len(read_inventory(path).select(limit)) > 0
