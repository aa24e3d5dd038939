"""Test that the request Bootstrap finds the GPUs of a host usable, by its driver and by TensorFlow."""

from __future__ import annotations

import os
import py_compile
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.packages.test_packages import bootstrap, done, refused
from tests.process.train.agent.wheels import pip_environment, wheel
from train.agent.host import gpus, jobs
from train.agent.host.facts import Probe
from train.agent.host.runner import Steps
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import Bootstrap, Bootstrapped, BootstrapStep, Gpu, Refusal, Refused
from train.agent.requests import bootstrap as module

T4 = "0, Tesla T4, 15360, 580.82.07\n"
TENSORFLOW = """
import sys
sys.stderr.write({output!r})
class config:
    @staticmethod
    def list_physical_devices(kind):
        return ["GPU"] * {gpus}
"""


def smi(directory: Path, text: str, code: int = 0) -> None:
    """An nvidia-smi that says `text`."""
    directory.mkdir(exist_ok=True)
    program = directory / "nvidia-smi"
    (directory / "output").write_text(text)
    program.write_text(f"#!/bin/sh\ncat {directory}/output\nexit {code}\n")
    program.chmod(0o755)


def tensorflow(directory: Path, *, gpus: int, output: str = "") -> dict[str, str]:
    """Return the environment of a TensorFlow that lists `gpus` GPUs, which every interpreter finds."""
    info = directory / "tensorflow-2.21.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: tensorflow\nVersion: 2.21.0\n")
    module = directory / "tensorflow.py"
    module.write_text(TENSORFLOW.format(gpus=gpus, output=output))
    py_compile.compile(str(module))  # as pip does
    return {"PYTHONPATH": str(directory), "PATH": f"{directory.parent / 'bin'}:/usr/bin:/bin"}


def test_gpus_that_tensorflow_lists_are_asked_for_once(connect: Connect, tmp_path: Path) -> None:
    env = tensorflow(tmp_path / "packages", gpus=2)
    smi(tmp_path / "bin", T4 + T4.replace("0", "1", 1))
    steps, answer = bootstrap(connect(env=env), python=sys.executable, gpus=2)
    assert isinstance(answer, Bootstrapped)
    assert answer.gpus == [Gpu(number, "Tesla T4", 15360, "580.82.07") for number in range(2)]
    assert (answer.seen, answer.made, answer.python) == (2, False, sys.executable)
    assert "checking the GPUs of TensorFlow" in [step.step for step in steps]
    steps, answer = bootstrap(connect(env=env), python=sys.executable, gpus=2)
    assert isinstance(answer, Bootstrapped)
    assert answer.seen == 2
    assert "checking the GPUs of TensorFlow" not in [step.step for step in steps]
    (tmp_path / "packages" / "new.py").touch()  # a package was installed
    steps, _ = bootstrap(connect(env=env), python=sys.executable, gpus=2)
    assert "checking the GPUs of TensorFlow" in [step.step for step in steps]


NO_DRIVERS = (
    "I0000 00:00:1795251120.885977   23419 cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will "
    "not be used.\n"
    "E0000 00:00:1795251121.801082   23419 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: Failed "
    "call to cuInit: UNKNOWN ERROR (303)\n"
)
NO_LIBRARIES = (
    "2026-02-24 16:46:54.006789: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2342] Cannot dlopen some GPU "
    "libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to "
    "use GPU.",
    "Skipping registering GPU devices...",
)


def test_the_reason_of_a_tensorflow_without_gpus_is_quoted(connect: Connect, tmp_path: Path) -> None:
    smi(tmp_path / "bin", T4)
    env = tensorflow(tmp_path / "packages", gpus=0, output=NO_DRIVERS)
    answer = refused(connect(env=env), python=sys.executable, gpus=1)
    assert answer.kind is Refusal.GPU
    assert answer.reason == "TensorFlow 2.21.0 on this host sees 0 of 1 GPUs"
    assert answer.cause == (
        "Could not find cuda drivers on your machine, GPU will not be used; "
        "failed call to cuInit: INTERNAL: CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)"
    )
    assert "tensorflow[and-cuda]" in answer.hint
    assert gpus.extract_reasons(NO_LIBRARIES) == "Cannot dlopen some GPU libraries"
    assert gpus.extract_reasons(["nothing that is known"]) == "nothing that is known"


def test_no_tensorflow_at_all(connect: Connect, tmp_path: Path) -> None:
    smi(tmp_path / "bin", T4)
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
    env = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    answer = refused(connect(env=env), python=str(bare / "bin" / "python"), gpus=1)
    assert answer.reason == f"{bare}/bin/python on this host has no TensorFlow that could use the GPUs"
    assert answer.cause == "ModuleNotFoundError: No module named 'tensorflow'"


def test_gpus_are_not_sought_by_tensorflow_if_the_packages_replace_it(
    connect: Connect, tmp_path: Path, wheels: Path, interpreter: str
) -> None:
    smi(tmp_path / "bin", T4)
    wheel(wheels, "flax", "1.0")
    env = {**pip_environment(wheels), "PATH": f"{tmp_path}/bin:/usr/bin:/bin"}
    answer = done(connect(env=env), requirements="flax==1.0", python=interpreter, gpus=1)
    assert ([gpu.name for gpu in answer.gpus], answer.seen) == (["Tesla T4"], 0)


def test_fewer_gpus_than_were_asked_for(connect: Connect, tmp_path: Path) -> None:
    smi(tmp_path / "bin", T4)
    answer = refused(connect(env=tensorflow(tmp_path / "packages", gpus=1)), python=sys.executable, gpus=4)
    assert (answer.kind, answer.reason) == (Refusal.GPU, "this host has 1 of 4 GPUs")
    assert answer.cause == "nvidia-smi lists 0: Tesla T4"
    smi(tmp_path / "bin", "".join(T4.replace("0", str(number), 1) for number in range(4)))
    env = tensorflow(tmp_path / "more", gpus=4)
    assert len(done(connect(env=env), python=sys.executable, gpus=4).gpus) == 4


def test_the_driver_is_waited_for(connect: Connect, tmp_path: Path) -> None:
    text = (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest\n\n"
    )
    smi(tmp_path / "bin", text, 9)
    agent = connect(env=tensorflow(tmp_path / "packages", gpus=1))
    agent.send(Bootstrap(python=sys.executable, gpus=1))
    step = BootstrapStep("")
    while step.step != "waiting for the NVIDIA driver":
        step = agent.expect(BootstrapStep)
    assert step.detail == " ".join(text.split())
    smi(tmp_path / "bin", T4)
    record: object = None
    while not isinstance(record, Bootstrapped):
        record, _ = agent.receive()
        assert not isinstance(record, Refused), record
    assert record.seen == 1


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.82\n"


def refused_driver(tmp_path: Path) -> Refused:
    """Return why a host whose nvidia-smi fails is refused."""
    probe = Probe(str(tmp_path / "probe.json"), {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}, "")
    with Path(os.devnull).open("r+b", buffering=0) as null, pytest.raises(RefusedError) as raised:
        gpus.await_driver(probe, 1, Steps(Channel(null.fileno(), null.fileno())))
    return raised.value.record


@pytest.fixture
def restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file with which the agent requests a restart of a host whose driver does not fit its kernel."""
    smi(tmp_path / "bin", MISMATCH, 18)
    path = tmp_path / "again" / "restart"
    path.parent.mkdir()
    monkeypatch.setattr(gpus, "RESTART", str(path))
    monkeypatch.setattr(gpus, "RESTART_DEADLINE_S", 0.0)
    return path


def test_a_host_restarts_once_for_a_driver_that_an_upgrade_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Path
) -> None:
    boots = iter(["before", "before", "after"])
    monkeypatch.setattr(gpus, "boot_id", lambda: next(boots))
    refused_driver(tmp_path)
    restart.unlink()
    refused = refused_driver(tmp_path)
    assert not restart.exists()
    assert "the kernel has the old one loaded" in refused.reason
    assert refused.cause == " ".join(MISMATCH.split())


def test_a_host_with_a_job_does_not_restart_for_a_replaced_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Path
) -> None:
    marks = tmp_path / "jobs"
    marks.mkdir()
    monkeypatch.setattr(jobs, "MARKS", str(marks))
    jobs.mark_job()
    running = refused_driver(tmp_path)
    assert not restart.exists()
    assert "would end the job" in running.reason
    assert running.next_step.splitlines() == ["fleet logs -f", "fleet up"]
    (marks / str(os.getpid())).rename(marks / "999999999")
    assert refused_driver(tmp_path).next_step == "fleet up"
    assert restart.exists()


def test_a_driver_that_does_not_come_up_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER_DEADLINE_S", 0.0)
    refused = refused_driver(tmp_path)
    assert refused.cause == "nvidia-smi is not installed"
    assert "install-drivers-gpu" in refused.hint


def test_scripts_are_not_awaited_on_a_host_whose_startup_script_does_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AGAIN", str(tmp_path / "again"))
    monkeypatch.setattr(module, "BEGIN_LEAST_S", 0.0)
    monkeypatch.setattr(module, "BEGIN_S", 0.0)
    with Path(os.devnull).open("r+b", buffering=0) as null:
        steps = Steps(Channel(null.fileno(), null.fileno()))
        module.await_root_scripts({}, False, steps)
        with pytest.raises(RefusedError, match="the startup script of this host does not run"):
            module.await_root_scripts({"--setup": "0" * 64}, False, steps)
