"""Routes of SSH configurations: the first lines of each file give the expected result of OpenSSH."""

from __future__ import annotations

import dataclasses
import getpass
import shlex
import shutil
from pathlib import Path

import pytest

from provision.ssh_config.routes import Route, SshConfigError, agent_socket, resolve_route
from tests.next_steps import command_lines

DIRECTORY = Path(__file__).parent / "ssh"
FILES = sorted(DIRECTORY.glob("*.conf"))
KEYS = ("one", "two", "alpha.example.com-ann", "n-alpha", "100%", "held.pub", "with blank", "one-cert.pub")


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of the files, with their paths filled in and keys next to them."""
    monkeypatch.setenv("SHELL", "/bin/sh")
    monkeypatch.setenv("FLEET_TEST_KEYS", str(tmp_path / "ssh/keys"))
    monkeypatch.setenv("FLEET_TEST_AGENT", "/run/agent")
    shutil.copytree(DIRECTORY, tmp_path / "ssh")
    for path in (tmp_path / "ssh").rglob("*.*"):
        path.write_text(path.read_text().replace("@DIR@", str(tmp_path / "ssh")).replace("@USER@", getpass.getuser()))
    (tmp_path / "ssh/keys").mkdir()
    for name in (*(f"keys/{key}" for key in KEYS), "known one"):
        (tmp_path / "ssh" / name).touch()
    return tmp_path / "ssh"


def head(path: Path) -> dict[str, str]:
    """Return the fields that the first lines of a file give."""
    lines = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
    return {line.partition(" ")[0]: line.partition(" ")[2] for line in lines}


def field_text(route: Route, field: str) -> str:
    """Return a field of a route as the files write it."""
    value = getattr(route, field)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if field == "proxy":
        return " ".join(f'"{word}"' if " " in word else word for word in value)
    return " ".join(value) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize("name", [path.name for path in FILES])
def test_the_route_is_that_of_openssh(directory: Path, name: str) -> None:
    path = directory / name
    wanted = head(path)
    options = ["-F", str(path), *shlex.split(wanted.pop("options", ""))]
    route = resolve_route(wanted.pop("host"), options=options)
    texts = {key: text.replace("@FILE@", str(path)).replace("@SHELL@", "/bin/sh") for key, text in wanted.items()}
    assert {key: field_text(route, key) for key in wanted} == texts


def test_every_field_is_checked() -> None:
    assert len(FILES) >= 40
    named = {key for path in FILES for key in head(path)}
    assert named >= {field.name for field in dataclasses.fields(Route)}


# --- errors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Port none\n", "line 1"),
        ("Host a\n  Prot 22\n", "Bad configuration option: prot"),
    ],
)
def test_the_error_for_a_malformed_file_has_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(SshConfigError) as error:
        resolve_route("a", options=["-F", str(path)])
    assert error.value.message.startswith("your SSH configuration cannot be read")
    assert message in error.value.message + error.value.cause
    assert str(path) in error.value.message + error.value.cause + command_lines(error.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SshConfigError, match="cannot be read"):
        resolve_route("a", options=["-F", str(tmp_path / "none")])


def test_without_openssh_its_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SshConfigError, match="ssh is not installed") as error:
        resolve_route("a")
    assert "OpenSSH client" in error.value.hint


def answering(text: str) -> Route:
    """Return the route for a response of OpenSSH."""
    return resolve_route("a", run=lambda _: f"hostname a\nport 22\n{text}")


def test_a_proxy_that_hands_over_a_connection_is_refused() -> None:
    with pytest.raises(SshConfigError, match="ProxyUseFdpass is not supported for a"):
        answering("user me\nproxycommand p %h\nproxyusefdpass yes\n")


@pytest.mark.parametrize("user", ["$(reboot)", "a;b", "a b", "a'b", "a\\b"])
def test_nothing_that_a_shell_would_run_gets_into_a_proxy_command(user: str) -> None:
    with pytest.raises(SshConfigError, match="cannot be inserted into the ProxyCommand"):
        answering(f"user {user}\nproxycommand nc %h %p %r\n")
    assert answering(f"user {user}\nproxycommand nc %h %p\n").proxy[-1] == "exec nc a 22"


def test_the_agent_is_read_when_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/one")
    monkeypatch.setenv("MINE", "/run/two")
    assert [agent_socket(text) for text in ("", "SSH_AUTH_SOCK", "$MINE", "/run/x")] == [
        "", "/run/one", "/run/two", "/run/x",
    ]  # fmt: skip
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert agent_socket("SSH_AUTH_SOCK") == ""
