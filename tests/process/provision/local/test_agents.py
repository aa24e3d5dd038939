"""Test which directory of compiled agents the local hosts share."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.local.sshd import AGENTS_VARIABLE, agents_directory


def test_a_directory_that_other_users_can_write_to_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "cache" / "agents"
    monkeypatch.setenv(AGENTS_VARIABLE, str(directory))
    assert agents_directory() == directory
    assert directory.stat().st_mode & 0o777 == 0o700
    for mode in (0o770, 0o707):
        directory.chmod(mode)
        assert agents_directory() is None
