from __future__ import annotations

import stat
from pathlib import Path

import pytest

from provision.ssh_config.include import include_line, install_include, remove_include

LINE = "Include /state/fleets/*/ssh_config"


@pytest.mark.parametrize("config", [b"", b"Host a", b"Host a\r\n\tUser b\r\n", b"# \xff\nHost a\n\n\n"])
def test_the_line_comes_first_and_once_and_its_removal_restores_the_file(tmp_path: Path, config: bytes) -> None:
    file = tmp_path / "config"
    file.write_bytes(config + b"\n    Include /state/fleets/*/ssh_config\n  User b\n")  # without effect there
    assert install_include(file, LINE)
    assert file.read_bytes() == LINE.encode() + b"\n" + config + b"\n  User b\n"
    assert not install_include(file, LINE)
    assert remove_include(file, LINE)
    assert file.read_bytes() == config + b"\n  User b\n"
    assert not remove_include(file, LINE)


def test_paths_that_ssh_would_expand_are_rejected() -> None:
    assert include_line(Path("/my state/fleets/*/ssh_config")) == 'Include "/my state/fleets/*/ssh_config"'
    for path in ('/a"b/*', "/a%h/*", "/${HOME}/*", "/[ab]/*", "/a\nb/*", "/a?/*"):
        with pytest.raises(ValueError, match="cannot be included"):
            include_line(Path(path))


def test_permissions_and_links_are_kept(tmp_path: Path) -> None:
    new = tmp_path / ".ssh" / "config"
    install_include(new, LINE)
    assert [stat.S_IMODE(path.stat().st_mode) for path in (new, new.parent)] == [0o600, 0o700]
    target = tmp_path / "dotfiles-config"
    target.write_bytes(b"Host a\n")
    target.chmod(0o644)
    file = tmp_path / "config"
    file.symlink_to(target)
    install_include(file, LINE)
    assert file.is_symlink()
    assert target.read_bytes() == LINE.encode() + b"\nHost a\n"
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == [".ssh", "config", "dotfiles-config"]
