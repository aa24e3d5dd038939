"""The wheel that users install: complete, and the same program as the sources."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

from fleet import __version__
from train.pack import build_agent

ROOT = Path(__file__).parents[2]
CHECK = "from train.pack import build_agent; print(build_agent().digest)"


def test_no_text_offers_the_project_of_another_owner_to_an_installer() -> None:
    """On the package index, the name fleet belongs to a stranger, whose code would run."""
    files = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True, cwd=ROOT).stdout.split(
        "\n"
    )
    offers = re.compile(
        r"\b(?:pip|pipx|uv|uvx)\b[^\n]*\b(?:install|run|add|uvx)\b[^\n]*[\s'\"](?:fleet|train|provision)(?:\[|[=<>~!]=|['\"]|\s*$)",
        re.M,
    )
    texts = {name: (ROOT / name).read_text("utf-8", "replace") for name in files if (ROOT / name).is_file()}
    offered = {name: match[0] for name, text in texts.items() if (match := offers.search(text))}
    assert offered == {}


def run(*command: str | Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FLEET_"))}
    return subprocess.run(
        [str(word) for word in command], check=True, capture_output=True, text=True, env=env, cwd="/"
    ).stdout


def test_the_wheel_holds_all_files_and_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("fleet_train-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name and ".data/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "fleet", "provision", "train"],
        check=True, capture_output=True, text=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    assert names == {name for name in listed if (ROOT / name).exists()}
    assert {"fleet/py.typed", "provision/py.typed", "train/py.typed"} <= names

    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (site,) = environment.glob("lib/python3*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not read
    assert run(environment / "bin" / "fleet", "--version") == f"fleet {__version__}\n"
    assert "Usage: fleet train" in run(environment / "bin" / "fleet", "train", "--help")
    assert run(python, "-c", CHECK).strip() == build_agent().digest
