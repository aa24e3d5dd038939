"""Files that decide what runs belong to the user or to root, and no other user can change them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fleet.errors import UsageError
from fleet.settings import load
from provision.inventory.reader import read_inventory
from provision.provider import ProviderError
from provision.ssh_config.programs import require_ownership


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "fleet.toml"
    path.parent.mkdir(mode=0o755)
    path.write_text("")
    path.chmod(0o644)
    return path


def give_away(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a path belong to another user than the one of the program."""
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 65534)


def test_own_files_and_those_of_the_system_are_accepted(file: Path) -> None:
    for path in (file, Path("/etc/passwd"), file.with_name("missing")):
        require_ownership(path)
    file.parent.chmod(0o1777)  # users cannot replace files of others there
    require_ownership(file)
    file.chmod(0o664)
    if file.group() == file.owner():  # a private group
        require_ownership(file)


@pytest.mark.parametrize("name", ["fleet.toml", "."])
def test_a_file_that_others_can_write_or_replace_is_refused(file: Path, name: str) -> None:
    changed = file.parent / name
    changed.chmod(changed.stat().st_mode | 0o002)
    with pytest.raises(ProviderError, match="other users may write to the") as error:
        require_ownership(file)
    assert error.value.next_steps == [("chmod", "go-w", str(changed))]


@pytest.mark.parametrize("name", ["fleet.toml", "."])
def test_a_file_or_directory_of_another_user_is_refused(
    file: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_away(file.parent / name, monkeypatch)
    with pytest.raises(ProviderError, match="belongs to another user"):
        require_ownership(file)


def test_the_target_of_a_link_counts(file: Path) -> None:
    target = file.with_name("target")
    target.write_text("")
    target.chmod(0o666)
    file.unlink()
    file.symlink_to(target)
    with pytest.raises(ProviderError, match="other users may write to the file"):
        require_ownership(file)


def test_settings_and_files_that_they_name_are_checked(file: Path) -> None:
    script = file.with_name("boot.sh")
    script.write_text("true\n")
    script.chmod(0o666)
    file.write_text('[gce]\nstartup-script = "boot.sh"\n')
    with pytest.raises(UsageError, match=r"other users may write to the file .*boot\.sh"):
        load(file)
    script.chmod(0o600)
    load(file)
    file.chmod(0o606)
    with pytest.raises(UsageError, match=r"other users may write to the file .*fleet\.toml"):
        load(file)


@pytest.mark.parametrize("name", ["hosts.ini", "group_vars/all.yml", "host_vars/h1"])
def test_inventories_and_their_files_of_variables_are_checked(tmp_path: Path, name: str) -> None:
    inventory, changed = tmp_path / "hosts.ini", tmp_path / name
    inventory.write_text("h1 x=1\n")
    changed.parent.mkdir(exist_ok=True)
    changed.write_text(changed.read_text() if changed.exists() else "x: 2\n")
    assert read_inventory(inventory).select()
    changed.chmod(0o666)
    with pytest.raises(ProviderError, match="other users may write to the file"):
        read_inventory(inventory).select()
