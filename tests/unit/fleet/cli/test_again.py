"""Jobs of capsules, which can come from anywhere."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fleet.cli.app  # noqa: F401 - adds the commands
from fleet.cli.command_line import CommandLine
from fleet.cli.rerun import run_capsule
from fleet.cli.runtime import CommandFailed
from fleet.reports.capsule import Manifest, write_capsule


@pytest.mark.parametrize("line", ["-r{file}", "--requirement={file}", "--constraint  {file}", "-\\\nr {file}"])
@pytest.mark.parametrize("member", ["requirements", "constraints"])
def test_a_capsule_does_not_read_files_of_this_computer(tmp_path: Path, line: str, member: str) -> None:
    private = tmp_path / "private.txt"
    private.write_text("sesame\n")
    path = tmp_path / "x.capsule.zip"
    included = line.format(file=private)
    requirements, constraints = (included, "") if member == "requirements" else ("six\n", included)
    options = ["-m", "x", "--workdir", "."]
    manifest = Manifest(1, "j", options, [], requirements=requirements, constraints=constraints)
    write_capsule(path, manifest, {}, tmp_path)
    with pytest.raises(CommandFailed) as failed:
        run_capsule(CommandLine("train"), str(path), "default")
    assert "it must not include a file of this computer" in failed.value.error.message
    assert failed.value.error.exit_code == 2
    assert "sesame" not in json.dumps([failed.value.error.message, failed.value.error.cause])
