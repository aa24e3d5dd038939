"""Every command on a provider of another package, which is found through its entry point."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from tests.cloud.conftest import TOY
from tests.program import Program, has_ended, wait_for

pytestmark = pytest.mark.wire

UP = ("up", "--provider", "toy", "--python", sys.executable, "--yes")


@pytest.fixture
def caller(program: Program) -> Program:
    """The program in an environment in which the package of the provider is installed."""
    program.env["PYTHONPATH"] = str(TOY)
    return program


def instances(program: Program, shop: str = "shop") -> list[dict[str, object]]:
    """Return the instances of a shop, as the provider has stored them."""
    paths = sorted((program.state / "toy" / shop).glob("*.json"))
    return [json.loads(path.read_text())[0] for path in paths]


def test_every_command_works_with_a_provider_of_another_package(caller: Program, tmp_path: Path) -> None:
    up_help = caller.run("up", "--provider", "toy", "--help").text
    assert "Toys" in up_help
    assert "--toy-lifetime" in up_help
    assert "[default: 1h]" in up_help
    assert "--toy-size" not in caller.run("up", "--help").text
    assert "sshd" in caller.run("doctor", "--provider", "toy").text

    plan = caller.run("up", "--provider", "toy", "--toy-size", "large", "--python", sys.executable, "--dry-run").text
    assert "large toy" in plan
    assert "0.04" in plan
    assert "confirmation requires a terminal" in caller.run("up", "--provider", "toy", code=2).err
    assert "unknown toy size 'huge'" in caller.run(*UP, "--toy-size", "huge", code=2).err
    assert instances(caller) == []

    caller.run(*UP, "--toy-size", "large")
    assert [instance["price_usd_h"] for instance in instances(caller)] == [0.02, 0.02]
    [status] = [event for event in caller.run("status", "-o", "json").events if event["event"] == "fleet_status"]
    assert (status["provider"], len(status["hosts"])) == ("toy", 2)
    assert "the fleet has large" in caller.run(*UP, "--toy-size", "small", code=2).err

    caller.script("task.py", "import os\nprint('in', os.environ['TF_CONFIG'])\nopen('result', 'w').write('done')\n")
    ran = caller.run("train", "task.py")
    assert ran.text.count("worker-1 | in ") == 1
    assert "ansible_port" in caller.run("inventory").text
    caller.run("extend", "3h")
    assert len({instance["delete_at"] for instance in instances(caller)}) == 1

    identity = str(instances(caller)[0]["id"])
    [lost] = [listener for listener in caller.listeners() if identity in " ".join(listener.cmdline())]
    lost.kill()
    wait_for("the end of an instance", lambda: has_ended(lost))
    caller.run("up", "--yes")
    env = {"PYTHONPATH": str(tmp_path)}  # the provider is not installed
    shown = caller.run("status", env=env, code=None)
    assert "the provider of fleet 'default' is not installed" in shown.text + shown.err
    assert "unknown provider 'toy'" in caller.run("down", "--yes", env=env, code=2).err
    assert "unknown provider 'toy'" in caller.run(*UP, env=env, code=None).err
    assert instances(caller)
    assert "0 left" in caller.run("down", "--yes").err
    assert instances(caller) == []


def test_gc_deletes_instances_of_a_provider_of_another_package(caller: Program) -> None:
    """The settings of the provider come from its table in fleet.toml and from its variables."""
    caller.script("fleet.toml", '[fleet]\nprovider = "toy"\nworkers = 1\n\n[toy]\nlifetime = "2h"\n')
    caller.env["TOY_SHOP"] = "corner"
    caller.run("up", "--python", sys.executable, "--yes")
    [instance] = instances(caller, "corner")
    assert float(str(instance["delete_at"])) - float(str(instance["created_at"])) == 7200.0
    shutil.rmtree(caller.state / "fleets")
    assert "default-worker-0" in caller.run("gc", "--yes").text
    assert instances(caller, "corner") == []
