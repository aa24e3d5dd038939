from __future__ import annotations

import stat
from pathlib import Path

import pytest

from provision.ssh_config.include import add_line, include_line, install_include, remove_include, remove_line

LINE = "Include /state/fleets/*/ssh_config"


def test_the_line_comes_first_and_once() -> None:
    config = b"Host a\n    User b\n"
    added = add_line(config, LINE)
    assert added == LINE.encode() + b"\n" + config
    assert add_line(added, LINE) == added


def test_a_line_within_a_block_moves_to_the_top() -> None:
    """In a block of another host it would have no effect."""
    assert add_line(b"Host a\n    Include /state/fleets/*/ssh_config\n  User b\n", LINE) == (
        LINE.encode() + b"\nHost a\n  User b\n"
    )


@pytest.mark.parametrize("config", [b"", b"Host a", b"Host a\r\n\tUser b\r\n", b"# \xff\nHost a\n\n\n"])
def test_removing_the_line_restores_the_file(config: bytes) -> None:
    assert remove_line(add_line(config, LINE), LINE) == config


def test_paths_that_ssh_would_expand_are_rejected() -> None:
    assert include_line(Path("/my state/fleets/*/ssh_config")) == 'Include "/my state/fleets/*/ssh_config"'
    for path in ('/a"b/*', "/a%h/*", "/${HOME}/*", "/[ab]/*", "/a\nb/*", "/a?/*"):
        with pytest.raises(ValueError, match="cannot be included"):
            include_line(Path(path))


def test_a_new_file_is_only_for_its_owner(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "config"
    assert install_include(file, LINE)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not install_include(file, LINE)
    assert remove_include(file, LINE)
    assert not remove_include(file, LINE)
    assert file.read_bytes() == b""


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles-config"
    target.write_bytes(b"Host a\n")
    target.chmod(0o644)
    file = tmp_path / "config"
    file.symlink_to(target)
    install_include(file, LINE)
    assert file.is_symlink()
    assert target.read_bytes() == LINE.encode() + b"\nHost a\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config", "dotfiles-config"]
