"""Values of any size in files and options end in one sentence and exit code 2, within a limit of CPU time."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.cli import app

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


@pytest.fixture
def check_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., None]]:
    """Run a command in an empty directory; its process is killed at the limit of CPU time."""

    def check(*arguments: str) -> None:
        assert app.run(["up", "--dry-run", *arguments]) == 2
        err = capfd.readouterr().err
        assert err.count("error:") == 1
        assert "internal error" not in err
        assert len(err) < 10_000
        assert all(character.isprintable() or character == "\n" for character in err)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLEET_STATE_DIR", str(tmp_path / "state"))
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    yield check
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@pytest.mark.parametrize("name", TOML)
def test_every_settings_file_is_refused_in_one_sentence(check_refused: Callable[..., None], name: str) -> None:
    Path("hosts.ini").write_text("h1\n")
    Path("fleet.toml").write_bytes(TOML[name])
    check_refused()


@pytest.mark.parametrize("name", INVENTORIES)
def test_every_inventory_is_refused_in_one_sentence(check_refused: Callable[..., None], name: str) -> None:
    Path("hosts").write_text(INVENTORIES[name] + "\n", encoding="utf-8")
    check_refused("--inventory", "hosts")


@pytest.mark.parametrize(
    "limit", ["~(a+)+b$", "~" + "(" * 5000, "a" * 100_000, "a:" * 50_000, "h[" + "9" * 5000 + "]"]
)
def test_every_limit_is_refused_in_one_sentence(check_refused: Callable[..., None], limit: str) -> None:
    Path("hosts.ini").write_text("a" * 60 + "\n")
    check_refused("--inventory", "hosts.ini", "--limit", limit)


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
def test_every_value_of_an_option_is_checked_by_a_dry_run(
    check_refused: Callable[..., None], monkeypatch: pytest.MonkeyPatch, options: tuple[str, str]
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such/file")  # without them, the exit code is 10
    check_refused("--provider", "gce", *options)


def test_a_byte_order_mark_in_a_settings_file_is_skipped(
    check_refused: Callable[..., None], capfd: pytest.CaptureFixture[str]
) -> None:
    Path("fleet.toml").write_bytes(b"\xef\xbb\xbf[fleet]\r\nworkers = -3\r\n")
    assert app.run(["up", "--dry-run"]) == 2
    assert "workers" in capfd.readouterr().err
