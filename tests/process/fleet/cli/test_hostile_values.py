"""Values of any size in files and options end in one sentence and exit code 2, within a limit of CPU time."""

from __future__ import annotations

import contextlib
import resource

import pytest

from tests.program import Program

CPU_S = 60
"""Limit of a command, which only failures reach; one takes less than a second."""

TOML: dict[str, bytes] = {
    "number": b"[fleet]\nworkers = 99999999999999999999",
    "nested and closed": b"x = " + b"[" * 3000 + b"]" * 3000,
    "nested tables": b"x = " + b"{a=" * 20_000,
    "zero in a path": b'[static]\ninventory = "a\\u0000b"',
    "control character": b'[fleet]\npython = "a\\u001bb"',
    "name": b'[fleet]\nname = "' + b"a" * 60_000 + b'"',
    "value": b'[gce]\nzone = "' + b"a" * 60_000 + b'"',
    "size": b"#" * 2_000_000,
    "bytes": b"\xff\xfe\x00",
    "pip option": b'[fleet]\nprovider = "static"\npackages = ["-r /etc/passwd"]\n[static]\ninventory = "hosts.ini"',
    "packages of a local fleet": b'[fleet]\nprovider = "local"\npackages = ["numpy"]',
    "infinite": b"[gce]\nmax-cost = inf",
    "negative": b"[fleet]\nworkers = -1",
}
LONG = "a" * 1_000_000
INVENTORIES: dict[str, str] = {
    "name": "a" * 400_000,
    "address": f"h ansible_host={LONG}",
    "port": f"h ansible_port={'9' * 5000}",
    "private address": f"h fleet_private_address={LONG}",
    "range": f"h[1:{'9' * 5000}]",
    "nested": "h x=" + "[" * 100_000,
    "control character": "h ansible_user=a\x1bb",
    "yaml nested": "---\n" + "[" * 20_000,
    "yaml user": f"---\nall: {{hosts: {{h: {{ansible_user: {'a' * 100_000}}}}}}}",
    "yaml bomb": "---\na0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{f'*a{n - 1},' * 9}]\n" for n in range(1, 10)),
}


def run_limited(program: Program, *arguments: str) -> tuple[int, str]:
    """Run a command with a limit of CPU time; return its exit code and its messages."""
    process = program.start(*arguments)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_CPU, (CPU_S, CPU_S))
    ran = program.finish(process, code=None)
    return ran.code, ran.err


def check_refused(code: int, err: str) -> None:
    assert code == 2, err[:2000]
    assert err.count("error:") == 1
    assert "internal error" not in err
    assert len(err) < 10_000
    assert all(character.isprintable() or character == "\n" for character in err)


@pytest.mark.parametrize("name", TOML)
def test_every_settings_file_is_read_or_refused_in_one_sentence(program: Program, name: str) -> None:
    program.script("hosts.ini", "h1\n")
    (program.directory / "fleet.toml").write_bytes(TOML[name])
    check_refused(*run_limited(program, "up", "--dry-run"))


@pytest.mark.parametrize("name", INVENTORIES)
def test_every_inventory_is_read_or_refused_in_one_sentence(program: Program, name: str) -> None:
    (program.directory / "hosts").write_text(INVENTORIES[name] + "\n", encoding="utf-8")
    check_refused(*run_limited(program, "up", "--dry-run", "--inventory", "hosts"))


@pytest.mark.parametrize(
    "limit", ["~(a+)+b$", "~" + "(" * 5000, "a" * 100_000, "a:" * 50_000, "h[" + "9" * 5000 + "]"]
)
def test_every_limit_is_evaluated_or_refused_in_one_sentence(program: Program, limit: str) -> None:
    program.script("hosts.ini", "a" * 60 + "\n")
    check_refused(*run_limited(program, "up", "--dry-run", "--inventory", "hosts.ini", "--limit", limit))


@pytest.mark.parametrize(
    "options",
    [
        ("--package", "a b"), ("--package", "-r /etc/passwd"), ("--package", "--index-url=http://x y"),
        ("--package", "./local"), ("--package", "a" * 100_000), ("--python", "a\x1bb"), ("--python", "a" * 100_000),
        ("--workers", "9" * 5000), ("--workers", "9" * 30), ("--fleet", "a" * 100_000),
        ("--index-url", "x" * 100_000), ("--zone", "a\x1bb"), ("--label", "a=\x1b"),
    ],
    ids=lambda options: " ".join(options)[:40],
)  # fmt: skip
def test_every_value_of_an_option_is_checked_by_a_dry_run(program: Program, options: tuple[str, str]) -> None:
    program.env["GOOGLE_APPLICATION_CREDENTIALS"] = "/no/such/file"  # without them, other requests exit with 10
    check_refused(*run_limited(program, "up", "--dry-run", "--provider", "gce", *options))


def test_a_byte_order_mark_in_a_settings_file_is_skipped(program: Program) -> None:
    (program.directory / "fleet.toml").write_bytes(b"\xef\xbb\xbf[fleet]\r\nworkers = 3\r\n")
    assert "worker-2" in program.run("up", "--dry-run").err
