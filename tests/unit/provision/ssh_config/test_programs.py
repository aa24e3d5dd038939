"""Programs that an inventory lets run on this computer."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.model import LocalProgram
from provision.provider import ProviderError
from provision.ssh_config.programs import AcceptedPrograms, describe_program, fingerprint, programs_of_ssh


@pytest.mark.parametrize(
    "line",
    [
        "Match exec id",
        'match host x e"xe"c id',
        "ProxyCommand sh -c id",
        "Include other",
        "KnownHostsCommand id",
        "PKCS11Provider /x.so",
        "SmartcardDevice /x.so",
    ],
)
def test_a_configuration_that_can_run_a_program_is_one(tmp_path: Path, line: str) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host a\n  HostName b\n  {line}\n")
    (program,) = programs_of_ssh("hosts.ini", ("-F", str(config)))
    assert program.source == "hosts.ini"
    assert line in program.text


def test_options_that_run_only_ssh_name_no_program(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("Host gpu*\n  HostName 10.0.0.1\n  Port 2222\n  ProxyJump bastion\n  IdentityFile key\n")
    for options in (("-o", "ProxyJump=bastion"), ("-o", "ProxyCommand=none"), ("-F", "none"), ("-F", str(config))):
        assert not programs_of_ssh("hosts.ini", options)


@pytest.mark.parametrize(
    ("text", "mode", "reason"),
    [("Host a\n", 0o666, "other users may write"), ("Include /x/%h\n", 0o600, "Include line with a variable")],
)
def test_a_configuration_that_cannot_be_compared_is_refused(
    tmp_path: Path, text: str, mode: int, reason: str
) -> None:
    config = tmp_path / "config"
    config.write_text(text)
    config.chmod(mode)
    with pytest.raises(ProviderError, match=reason):
        programs_of_ssh("hosts.ini", ("-F", str(config)))


def test_a_program_is_accepted_until_it_or_a_file_of_its_command_changes(tmp_path: Path) -> None:
    accepted = AcceptedPrograms(tmp_path / "state" / "programs")
    script = tmp_path / "proxy.sh"
    script.write_text("one")

    def program(source: str = "hosts.ini", words: str = "") -> list[LocalProgram]:
        return accepted.missing([describe_program(source, "ProxyCommand", f"sh {script}{words}")] * 2)

    (new,) = program()
    with pytest.raises(ProviderError, match=r"hosts\.ini names a program .* you have not accepted: ProxyCommand sh"):
        accepted.require([describe_program("hosts.ini", "ProxyCommand", f"sh {script}")])
    accepted.add([describe_program("hosts.ini", "ProxyCommand", f"sh {script}")])
    assert new
    assert not program()
    assert program("other.ini")
    assert program(words=" x")
    script.write_text("two")
    assert program()


@pytest.mark.parametrize(
    "words",
    [
        "/usr/bin/python3 -u {file} %h",
        "sh -c 'exec {file}'",
        "ssh -F {config} -W %h:%p b",
        "-F{config}",
    ],
)
def test_a_program_is_compared_with_its_files(tmp_path: Path, words: str) -> None:
    file, config = tmp_path / "file", tmp_path / "config"
    file.write_text("one")
    file.chmod(0o644 if "python" in words else 0o755)
    (tmp_path / "more").mkdir()
    config.write_text(f'Include "{tmp_path}/more/*"\nHost b\n  ProxyCommand {file}\n')
    command = words.format(file=file, config=config)
    before = fingerprint(command)
    config.write_text(config.read_text() + "Host c\n  Port 23\n# exec\n")
    assert fingerprint(command) == before
    file.write_text("two")
    assert fingerprint(command) != before
    if "config" in words and "=" not in words:
        before = fingerprint(command)
        (tmp_path / "more/one").write_text(f"Include {tmp_path}/config\n")
        assert fingerprint(command) != before
        before = fingerprint(command)
        (tmp_path / "more/two").write_text("Match exec id\n")
        assert fingerprint(command) != before


def test_a_program_that_path_finds_is_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "carry").write_text("one")
    (tmp_path / "carry").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin")
    before = fingerprint("carry %h"), fingerprint(f"{tmp_path}/carry")
    (tmp_path / "carry").write_text("two")
    after = fingerprint("carry %h"), fingerprint(f"{tmp_path}/carry")
    assert [old == new for old, new in zip(before, after, strict=True)] == [False, False]


@pytest.mark.parametrize("words", ["touch {log}", "ssh -E {log} -W %h:%p b", "sh -c 'exec nc %h %p 2>>{log}'"])
def test_a_file_that_a_program_writes_is_not_compared(tmp_path: Path, words: str) -> None:
    command = words.format(log=tmp_path / "log")
    before = fingerprint(command)
    (tmp_path / "log").write_text("connected")
    assert fingerprint(command) == before


def test_a_long_command_is_cut_with_a_mark() -> None:
    assert describe_program("hosts.ini", "ProxyCommand", "x" * 400).text.endswith("x… (113 more characters)")
