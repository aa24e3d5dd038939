"""Node lists as Slurm, ClusterShell and PBS write and expand them, and malformed ones."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision.inventory.allocation import expand_nodelist, parse_nodefile
from provision.inventory.files import InventoryError
from provision.provider import ErrorKind
from tests.unit.provision.inventory.record import find_tool

# Recorded output of `scontrol show hostnames` of Slurm 22.05.
SLURM = {
    "n1": "n1",
    "n[1-3]": "n1 n2 n3",
    "n[1-3,5-6,9]": "n1 n2 n3 n5 n6 n9",
    "n[10,2,1]": "n10 n2 n1",
    "n[8-11]": "n8 n9 n10 n11",
    "n[08-11]": "n08 n09 n10 n11",
    "n[098-102]": "n098 n099 n100 n101 n102",
    "n[1,02,003]": "n1 n02 n003",
    "c[01-02,10-11,100]": "c01 c02 c10 c11 c100",
    "gpu[1-2],login1": "gpu1 gpu2 login1",
    "n[1-2],n[2-3]": "n1 n2 n3",
    "n[1-2][3-4]": "n13 n14 n23 n24",
    "r[1-2]n[01-02]c[1,3]": "r1n01c1 r1n01c3 r2n01c1 r2n01c3 r1n02c1 r1n02c3 r2n02c1 r2n02c3",
    "a[1-2]b[1-2]c[1-2]d[1-2]": (
        "a1b1c1d1 a1b1c1d2 a2b1c1d1 a2b1c1d2 a1b2c1d1 a1b2c1d2 a2b2c1d1 a2b2c1d2 "
        "a1b1c2d1 a1b1c2d2 a2b1c2d1 a2b1c2d2 a1b2c2d1 a1b2c2d2 a2b2c2d1 a2b2c2d2"
    ),
    "10.0.0.[1-3]": "10.0.0.1 10.0.0.2 10.0.0.3",
    "[1-3]": "1 2 3",
}

# Recorded output of ClusterShell 1.9, `cluset -e`, for syntax that Slurm does not have.
CLUSTERSHELL = {
    "n[1-3]-ib": "n1-ib n2-ib n3-ib",
    "a[1-2],b[3-4]c,d": "a1 a2 b3c b4c d",
    "n[1-9/2]": "n1 n3 n5 n7 n9",
    "n[1-9/4,20]": "n1 n5 n9 n20",
    "r[1-2]n[1-2]x": "r1n1x r1n2x r2n1x r2n2x",
}

MALFORMED = {
    "": "the node list is empty",
    ",": "a name is missing before or after a comma",
    "n[1-3": r"invalid node list 'n\[1-3': unbalanced brackets in 'n\[1-3'",
    "n[a-c]": "'a-c' in '\\[a-c\\]' is not a range",
    "n[3-1]": "the range 3-1 in '\\[3-1\\]' is empty",
    "n[\u0661-\u0663]": "is not a range",
    "a b": "invalid node list 'a b': 'a b' is not a valid node name",
    "-n1": "invalid node list '-n1': '-n1' is not a valid node name",
    "n[1-99999999]": "more than 100000 nodes",
    "n[1-1000]m[1-1000]": "more than 100000 nodes",
    "n[1-" + "9" * 5000 + "]": "is not a range",
}


@pytest.mark.parametrize(("expression", "names"), [*SLURM.items(), *CLUSTERSHELL.items()])
def test_an_expression_yields_what_was_recorded(expression: str, names: str) -> None:
    assert expand_nodelist(expression) == tuple(names.split())


def scontrol(expression: str) -> list[str]:
    words = ["scontrol", "show", "hostnames", expression]
    done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    if "configuration source" in done.stderr:
        pytest.skip("scontrol has no configuration")
    return list(dict.fromkeys(done.stdout.split()))


@pytest.mark.skipif(not shutil.which("scontrol"), reason="scontrol is not on PATH")
def test_slurm_itself_agrees() -> None:
    assert {text: list(expand_nodelist(text)) for text in SLURM} == {text: scontrol(text) for text in SLURM}


@pytest.mark.skipif(not find_tool("cluset"), reason="cluset is not installed: ./scripts/setup")
def test_clustershell_itself_agrees() -> None:
    for expression in CLUSTERSHELL:
        words = [find_tool("cluset") or "", "-e", "-S", "\n", expression]
        done = subprocess.run(words, capture_output=True, text=True, timeout=30, check=True)
        assert sorted(expand_nodelist(expression)) == sorted(done.stdout.split())


@pytest.mark.parametrize(("expression", "message"), MALFORMED.items(), ids=lambda text: text[:20])
def test_a_malformed_expression_ends_in_a_message(expression: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message) as caught:
        expand_nodelist(expression)
    assert caught.value.kind is ErrorKind.USAGE
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=50, unique=True), st.integers(1, 8))
def test_numbers_come_back_in_their_order(numbers: list[int], width: int) -> None:
    words = [str(number).zfill(width) for number in numbers]
    assert expand_nodelist(f"n[{','.join(words)}]") == tuple(f"n{word}" for word in words)


def test_a_long_list_is_read_in_a_moment() -> None:
    names = [f"node-{index}" for index in range(20_000)]
    assert expand_nodelist(",".join(names)) == tuple(names)


NODEFILE = Path("/var/spool/pbs/aux/17.server")


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1\nn2\n", ("n1", "n2")),
        ("n2\nn2\nn1\nn2\nn1\n", ("n2", "n1")),
        ("\n  n1  \r\n\r\nn2\r\n", ("n1", "n2")),
    ],
)
def test_the_node_file_of_pbs(text: str, nodes: tuple[str, ...]) -> None:
    assert parse_nodefile(text, NODEFILE) == nodes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"/var/spool/pbs/aux/17\.server does not list a node"),
        ("n1\nn2 slots=4\n", r"/var/spool/pbs/aux/17\.server:2: 'n2 slots=4' is not a valid node name"),
        ("-oProxyCommand=x\n", "17.server:1: '-oProxyCommand=x' is not"),
        ("n1\0\n", r"/var/spool/pbs/aux/17\.server:1: 'n1\\x00' is not a valid node name"),
    ],
)
def test_a_malformed_node_file(text: str, message: str) -> None:
    with pytest.raises(InventoryError, match=message):
        parse_nodefile(text, NODEFILE)
