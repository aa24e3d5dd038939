"""Test the request Bootstrap for a job: an environment that overlays the host's interpreter, with a real pip."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, end_all
from tests.process.train.agent.packages.test_packages import complete, done, refused, venvs
from tests.process.train.agent.wheels import pip_environment, wheel
from train.agent.protocol.records import Bootstrapped, Prepared, Refusal


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory in which pip finds wheels."""
    directory = tmp_path_factory.mktemp("wheels")
    wheel(directory, "tensorflow_cpu", "2.21.0", "FROM = 'below'\n", requires=["numbers_lib>=1"])
    wheel(directory, "numbers_lib", "1.0", "VERSION = 1\n")
    wheel(directory, "adds", "1.0", requires=["numbers_lib"])
    return directory


@pytest.fixture(scope="module")
def host(
    tmp_path_factory: pytest.TempPathFactory, wheels: Path, interpreter: str
) -> Iterator[tuple[Agent, Bootstrapped]]:
    """Yield a host, and the environment with TensorFlow that its fleet created on it."""
    agent = Agent(tmp_path_factory.mktemp("host"), python=interpreter, env=pip_environment(wheels))
    try:
        made = done(agent, requirements="tensorflow-cpu==2.21.0", python=interpreter)
        wheel(wheels, "numbers_lib", "2.0", "VERSION = 2\n")  # released later
        yield agent, made
    finally:
        output = agent.close()
        end_all([agent.root])
    assert output == ""


def run_code(python: str, code: str) -> str:
    return subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()


def installed(python: str) -> set[str]:
    (site,) = Path(python).parents[1].glob("lib/python*/site-packages")
    return {path.name.partition("-")[0] for path in site.glob("*.dist-info")} - {"pip", "setuptools", "wheel"}


def test_only_what_is_not_there_is_installed(host: tuple[Agent, Bootstrapped], interpreter: str) -> None:
    agent, base = host
    above = done(agent, requirements="adds\n", python=base.python, on_top=True)
    assert above.made
    assert above.python not in (base.python, interpreter)
    assert above.versions["tensorflow"] == "2.21.0"
    assert installed(above.python) == {"adds"}
    assert run_code(
        above.python, "import adds, tensorflow_cpu, numbers_lib as n; print(tensorflow_cpu.FROM, n.VERSION)"
    ) == ("below 1")
    again = done(agent, requirements="adds", python=base.python, on_top=True)
    assert (again.python, again.made) == (above.python, False)
    prepared = agent.prepare("j", Bundle("pass"), python=above.python)
    assert isinstance(prepared, Prepared)
    assert prepared.versions == above.versions
    ready = json.loads((Path(above.python).parents[1] / "ready.json").read_text())
    assert ready["owner"] == str(Path(base.python).parents[1])


def test_what_tensorflow_requires_is_kept(host: tuple[Agent, Bootstrapped], wheels: Path) -> None:
    agent, base = host
    wheel(wheels, "numbers_lib", "0.5")
    answer = refused(agent, requirements="numbers_lib<1", python=base.python, on_top=True)
    assert (answer.kind, answer.reason) == (Refusal.PACKAGES, "the packages exclude each other")
    assert "tensorflow-cpu 2.21.0 depends on numbers_lib>=1" in answer.cause


def test_other_versions_go_before_those_below(host: tuple[Agent, Bootstrapped], wheels: Path) -> None:
    agent, base = host
    wheel(wheels, "tensorflow_cpu", "2.15.1", "FROM = 'above'\n")
    requirements = "adds\nnumbers_lib>=2\ntensorflow_cpu==2.15.1"
    above = done(agent, requirements=requirements, python=base.python, on_top=True)
    assert above.versions["tensorflow"] == "2.15.1"
    both = "import tensorflow_cpu, numbers_lib; print(tensorflow_cpu.FROM, numbers_lib.VERSION)"
    assert run_code(above.python, both) == "above 2"
    assert run_code(base.python, both) == "below 1"


def test_constraints_hold_and_decide_the_name_and_environments_of_overlays_are_kept(
    host: tuple[Agent, Bootstrapped], wheels: Path
) -> None:
    agent, base = host
    wheel(wheels, "extra", "1.0", "V = 1\n")
    wheel(wheels, "extra", "2.0", "V = 2\n")
    unconstrained = done(agent, requirements="extra", python=base.python, on_top=True)
    assert run_code(unconstrained.python, "import extra; print(extra.V)") == "2"

    now, mine = time.time(), Path(base.python).parents[1]
    for name in venvs(agent) - {mine.name}:  # of other tests
        shutil.rmtree(agent.root / "venvs" / name)
    os.utime(mine / "ready.json", (now - 900, now - 900))
    for age, name in enumerate(["recent", "newer", "owner", "old"], 1):
        complete(agent, name, now - 100 * age)
    (agent.root / "venvs" / "newer" / "ready.json").write_text(json.dumps({"owner": str(agent.root / "venvs/owner")}))
    above = done(agent, requirements="extra", constraints="extra<2\n", python=base.python, on_top=True)
    assert run_code(above.python, "import extra; print(extra.V)") == "1"
    assert above.python != unconstrained.python
    assert venvs(agent) == {Path(above.python).parts[-3], mine.name, "recent", "newer", "owner"}
    assert (mine / "ready.json").stat().st_mtime >= now - 1


def test_on_top_of_an_environment_that_is_not_ours(
    connect: Connect, tmp_path: Path, wheels: Path, interpreter: str
) -> None:
    """Python's own --system-site-packages would not find its packages."""
    directory = tmp_path / "own"
    subprocess.run([interpreter, "-m", "venv", "--without-pip", directory], check=True)
    (site,) = directory.glob("lib/python*/site-packages")
    (site / "mine.py").write_text("FROM = 'own'\n")
    (site / "more.pth").write_text(f"{tmp_path}/far\n")
    (tmp_path / "far").mkdir()
    (tmp_path / "far" / "distant.py").write_text("")
    agent = connect(env=pip_environment(wheels))
    above = done(agent, requirements="adds", python=str(directory / "bin" / "python"), on_top=True)
    assert run_code(above.python, "import mine, adds, distant; print(mine.FROM)") == "own"
    assert (Path(above.python).parents[1] / "pyvenv.cfg").read_text().count(str(directory / "bin")) == 0
    assert "tensorflow" not in above.versions
    assert venvs(agent) == {Path(above.python).parents[1].name}
