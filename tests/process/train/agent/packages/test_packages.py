"""Test the request Bootstrap on agents that communicate over pipes: a real pip installs wheels made here."""

from __future__ import annotations

import fcntl
import hashlib
import http.server
import json
import os
import py_compile
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator import python as bare_python
from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, alive, gone
from tests.process.train.agent.requests.test_bootstrap import interpreter as find_interpreter
from tests.process.train.agent.wheels import pip_environment, wheel
from tests.program import PYTHON
from train.agent.files import boot
from train.agent.host import gpus
from train.agent.host.facts import Probe
from train.agent.host.runner import OverdueError, Steps, run
from train.agent.packages.venv import Base, EnvironmentSpec, environment_name, least_disk_bytes, significant_lines
from train.agent.protocol.channel import Channel
from train.agent.protocol.errors import RefusedError
from train.agent.protocol.records import (
    Bootstrap,
    Bootstrapped,
    BootstrapStep,
    Gpu,
    Inspect,
    NeedPip,
    PipWheel,
    Prepared,
    Refusal,
    Refused,
)
from train.agent.requests import bootstrap as module
from train.bundled_pip import Wheel, read_pip_wheel

BASE = Base("/usr/bin/python3", ".".join(map(str, sys.version_info[:3])))
T4 = "0, Tesla T4, 15360, 580.82.07\n"
TENSORFLOW = """
import sys
sys.stderr.write({output!r})
class config:
    @staticmethod
    def list_physical_devices(kind):
        return ["GPU"] * {gpus}
"""


@pytest.fixture
def wheels(tmp_path: Path) -> Path:
    return tmp_path / "wheels"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an interpreter without ensurepip and pip, as on the images of Ubuntu."""
    return str(bare_python.build(tmp_path_factory.mktemp("bare")))


def bundled_pip(python: str) -> Wheel:
    """Return the pip that ensurepip of an interpreter has."""
    (path,) = Path(python).parents[1].glob("lib/python*/ensurepip/_bundled/pip-*.whl")
    data = path.read_bytes()
    return Wheel(data, hashlib.sha256(data).hexdigest())


def without(directory: Path, module: str) -> str:
    """Return an interpreter that lacks a module of the standard library."""
    script = directory / "python3"
    script.write_text(
        "#!/bin/sh\n"
        f'case "$*" in *"-m {module}"*) echo "$0: No module named {module}" >&2; exit 1 ;; esac\n'
        f'exec {PYTHON} "$@"\n'
    )
    script.chmod(0o755)
    return str(script)


def until(agent: Agent) -> tuple[list[BootstrapStep], Bootstrapped | Refused | NeedPip]:
    """Return the steps up to the next answer."""
    steps: list[BootstrapStep] = []
    while True:
        record, _ = agent.receive()
        if not isinstance(record, BootstrapStep):
            assert isinstance(record, (Bootstrapped, Refused, NeedPip)), record
            return steps, record
        steps.append(record)


def bootstrap(agent: Agent, **fields: object) -> tuple[list[BootstrapStep], Bootstrapped | Refused]:
    agent.send(Bootstrap(**fields))  # type: ignore[arg-type]
    steps, answer = until(agent)
    if isinstance(answer, NeedPip):
        pip = read_pip_wheel(answer.python)
        agent.send(PipWheel(pip.digest, len(pip.data)), pip.data)
        more, answer = until(agent)
        steps += more
    assert not isinstance(answer, NeedPip)
    return steps, answer


def done(agent: Agent, **fields: object) -> Bootstrapped:
    _, answer = bootstrap(agent, **fields)
    assert isinstance(answer, Bootstrapped), answer
    return answer


def refused(agent: Agent, **fields: object) -> Refused:
    _, answer = bootstrap(agent, **fields)
    assert isinstance(answer, Refused), answer
    return answer


def venvs(agent: Agent) -> set[str]:
    return {path.name for path in (agent.root / "venvs").iterdir() if path.is_dir()}


def complete(agent: Agent, name: str, used_at: float) -> Path:
    """An environment that was finished long ago."""
    directory = agent.root / "venvs" / name
    directory.mkdir(parents=True)
    (directory / "ready.json").write_text("{}")
    os.utime(directory / "ready.json", (used_at, used_at))
    return directory


# --- packages ---------------------------------------------------------------------------------------------------


def test_packages_are_installed_once_per_content(connect: Connect, wheels: Path, interpreter: str) -> None:
    wheel(wheels, "tensorflow", "2.21.0", requires=["adds"])
    wheel(wheels, "adds", "1.0")
    agent = connect(env=pip_environment(wheels))
    steps, answer = bootstrap(agent, requirements="tensorflow==2.21.0  # the same everywhere\n")
    assert isinstance(answer, Bootstrapped)
    assert answer.made
    assert answer.versions["tensorflow"] == "2.21.0"
    assert answer.python == str(agent.root / "venvs" / next(iter(venvs(agent))) / "bin/python")
    assert (answer.gpus, answer.seen) == ([], 0)
    kinds = list(dict.fromkeys(step.step for step in steps))
    assert kinds == ["creating the environment", "installing packages", "checking Python"]
    subprocess.run([answer.python, "-c", "import tensorflow, adds"], check=True)
    ready = json.loads((Path(answer.python).parents[1] / "ready.json").read_text())
    assert ready["base"] == os.path.realpath(interpreter)
    assert not (Path(answer.python).parents[1] / "scratch").exists()

    again = done(connect(env=pip_environment(wheels)), requirements="\n# only this\ntensorflow==2.21.0")
    assert (again.made, again.python) == (False, answer.python)
    prepared = agent.prepare("j", Bundle("pass"), python=answer.python)
    assert isinstance(prepared, Prepared)
    assert prepared.versions == answer.versions


def test_the_oldest_python_does_as_well(connect: Connect, wheels: Path) -> None:
    wheel(wheels, "adds", "1.0")
    python = find_interpreter("3.9")
    agent = connect(env=pip_environment(wheels), python=python)
    answer = done(agent, requirements="adds")
    assert answer.versions["python"].startswith("3.9.")
    subprocess.run([answer.python, "-c", "import adds"], check=True)


def test_nothing_to_install_leaves_the_interpreter_as_it_is(connect: Connect) -> None:
    agent = connect()
    answer = done(agent, python=sys.executable, requirements="# nothing\n")
    assert (answer.python, answer.made) == (sys.executable, False)
    assert not (agent.root / "venvs").exists()


def test_a_failed_installation_is_reported_and_nothing_is_left(connect: Connect, wheels: Path) -> None:
    wheel(wheels, "one", "1", requires=["common==1"])
    wheel(wheels, "two", "1", requires=["common==2"])
    wheel(wheels, "common", "1")
    wheel(wheels, "common", "2")
    agent = connect(env=pip_environment(wheels))
    answer = refused(agent, requirements="one\ntwo")
    assert (answer.kind, answer.reason) == (Refusal.PACKAGES, "the packages exclude each other")
    assert answer.cause == "one 1 depends on common==1; two 1 depends on common==2"
    assert venvs(agent) == set()
    agent.send(Inspect())  # the session continues
    agent.receive()


def test_an_unreachable_index_is_reported(connect: Connect) -> None:
    env = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}
    agent = connect(env={**env, "PIP_FIND_LINKS": "", "no_proxy": "*"})
    answer = refused(agent, requirements="tensorflow")
    assert (answer.reason, answer.cause) == ("pip cannot reach the package index", "Connection refused")
    assert "Cloud NAT" in answer.hint


def test_a_host_without_ensurepip_gets_pip_from_the_client_once(
    connect: Connect, wheels: Path, bare: str, interpreter: str
) -> None:
    wheel(wheels, "adds", "1.0")
    # Settings of pip that do not apply to the installation of pip itself.
    agent = connect(env={**pip_environment(wheels), "PIP_REQUIRE_VIRTUALENV": "1", "PIP_USER": "1"})
    version = ".".join(BASE.version.split(".")[:2])
    pip = bundled_pip(interpreter)
    agent.send(Bootstrap("adds", bare))
    steps, request = until(agent)
    assert [step.step for step in steps] == ["creating the environment", "receiving pip"]
    assert request == NeedPip(version, [])
    agent.send(PipWheel(pip.digest, len(pip.data)), pip.data)
    _, answer = until(agent)
    assert isinstance(answer, Bootstrapped), answer
    (site,) = Path(answer.python).parents[1].glob("lib/python*/site-packages")
    assert sorted(path.name.partition("-")[0] for path in site.glob("*.dist-info")) == ["adds", "pip"]
    command = [str(Path(answer.python).with_name("pip")), "--version"]
    assert str(site) in subprocess.run(command, capture_output=True, text=True, check=True).stdout

    agent.send(Bootstrap("more", bare))
    assert until(agent)[1] == NeedPip(version, [pip.digest])
    agent.send(PipWheel(pip.digest))
    assert agent.expect(BootstrapStep).step == "installing packages"  # pip runs


def test_pip_that_arrives_damaged_is_refused(connect: Connect, bare: str) -> None:
    agent = connect()
    damaged, other = "pip arrived damaged", "the file that came as pip is not a wheel of pip"
    for sent, digest, reason in (
        (b"x", "0" * 64, damaged),
        (b"", "0" * 64, damaged),
        (b"x", hashlib.sha256(b"x").hexdigest(), other),
    ):
        agent.send(Bootstrap("six", bare))
        assert isinstance(until(agent)[1], NeedPip)
        agent.send(PipWheel(digest, len(sent)), sent)
        _, answer = until(agent)
        assert isinstance(answer, Refused)
        assert (answer.kind, answer.reason) == (Refusal.BUNDLE, reason)
        assert venvs(agent) == set()


def test_a_library_without_venv_is_reported(connect: Connect, tmp_path: Path) -> None:
    answer = refused(connect(), requirements="six", python=without(tmp_path, "venv"))
    assert answer.kind is Refusal.PYTHON
    assert answer.reason == f"{tmp_path}/python3 on this host has no module venv"
    assert "apt" not in answer.next_step


def test_who_waited_for_the_lock_removes_incomplete_and_old_environments_and_keeps_those_in_use(
    connect: Connect, wheels: Path, interpreter: str
) -> None:
    wheel(wheels, "adds", "1.0")
    agent = connect(env=pip_environment(wheels))
    name = environment_name(EnvironmentSpec("adds"), BASE._replace(path=os.path.realpath(interpreter)))
    incomplete = agent.root / "venvs" / name
    (incomplete / "bin").mkdir(parents=True)
    (incomplete / "bin" / "python").symlink_to(sys.executable)
    (agent.root / "venvs" / "other" / "lib").mkdir(parents=True)
    now = time.time()
    ages = {"newest": 1, "newer": 2, "old": 3, "busy": 4, "job": 5, "ended": 6}
    directories = {name: complete(agent, name, now - age) for name, age in ages.items()}
    for job in ("job", "ended"):
        task = agent.root / "jobs" / job / "worker-0"
        task.mkdir(parents=True)
        (task / "job.json").write_text(
            json.dumps({"job": job, "command": [str(directories[job] / "bin" / "python")]})
        )
    result = {"record": "job_result", "job": "ended", "attempt": 1, "outcome": "succeeded", "at": 1.0}
    (agent.root / "jobs/ended/worker-0/result.json").write_text(json.dumps(result))
    with subprocess.Popen([str(directories["busy"] / "bin" / "python"), "60"], executable="/bin/sleep") as process:
        try:
            with (agent.root / "venvs" / "lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                agent.send(Bootstrap("adds"))
                waiting = agent.expect(BootstrapStep)
            _, made = until(agent)
        finally:
            process.kill()
    assert (waiting.step, waiting.detail) == ("waiting", "packages are installed for others on this host")
    assert isinstance(made, Bootstrapped), made
    assert made.made
    assert Path(made.python).parts[-3] == incomplete.name
    assert (incomplete / "ready.json").exists()
    assert venvs(agent) == {"newest", "newer", "busy", "job", incomplete.name}


def test_slots_of_a_host_share_their_packages(tmp_path: Path, wheels: Path, interpreter: str) -> None:
    wheel(wheels, "adds", "1.0")
    host = tmp_path / "host"
    agents = [
        Agent(host / f"slot-{slot}", env=pip_environment(wheels), shared=str(host), python=interpreter)
        for slot in range(2)
    ]
    with agents[0], agents[1]:
        for agent in agents:
            agent.send(Bootstrap("adds"))
        answers = [until(agent)[1] for agent in agents]
        assert all(isinstance(answer, Bootstrapped) for answer in answers), answers
        first, second = (answer for answer in answers if isinstance(answer, Bootstrapped))
        assert first.python == second.python
        assert sorted([first.made, second.made]) == [False, True]
        assert Path(first.python).is_relative_to(host / "venvs")
        assert not list(host.glob("slot-*/venvs"))
        # An environment that a job in the other slot uses is not removed, however old.
        (made,) = [path for path in (host / "venvs").iterdir() if path.is_dir()]
        task = host / "slot-1/jobs/job/worker-1"
        task.mkdir(parents=True)
        (task / "job.json").write_text(json.dumps({"job": "job", "command": [first.python]}))
        os.utime(made / "ready.json", (1, 1))
        assert done(agents[0], requirements="adds>=0.1").made  # which removes unused ones
        assert made.is_dir()


class Slow(http.server.BaseHTTPRequestHandler):
    """A package index with one wheel, of which half comes, and the rest when it is let go."""

    wheel: Path
    go: threading.Event

    def do_GET(self) -> None:
        if self.path.endswith(".whl"):
            data = self.wheel.read_bytes()
        else:
            data = f'<a href="/{self.wheel.name}">{self.wheel.name}</a>'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        half = len(data) // 2 if self.path.endswith(".whl") else len(data)
        self.wfile.write(data[:half])
        self.wfile.flush()
        if half < len(data) and self.go.wait(90):
            self.wfile.write(data[half:])

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def index(wheels: Path) -> Iterator[dict[str, str]]:
    """Return variables for pip with an index that sends only half of the package ``large``."""
    go = threading.Event()
    path = wheel(wheels, "large", "1.0", f"DATA = '{'x' * 3_000_000}'\n")
    kind = type("_", (Slow,), {"wheel": path, "go": go})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/simple"
        yield {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": url, "PIP_FIND_LINKS": "", "no_proxy": "*"}
        go.set()
        server.shutdown()
        thread.join()


def test_a_download_is_reported_and_ends_if_the_client_disconnects(connect: Connect, index: dict[str, str]) -> None:
    agent = connect(env=index)
    agent.send(Bootstrap("large"))
    while "Downloading" not in agent.expect(BootstrapStep).detail:
        pass
    mark = str(agent.root / "venvs").encode()
    (pip,) = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if (words := _read(path)).startswith(mark) and b"\0install\0" in words
    ]
    agent.close()
    assert gone(pip)
    assert venvs(agent) == set()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize(
    ("requirements", "gib"),
    [
        ("adds", 1),
        ("", 1),
        ("tensorflow-cpu", 1),
        ("scipy\nTensorFlow>=2.16", 3),
        ("tensorflow [and-cuda]==2.21\ntensorflow", 10),
    ],
)
def test_an_installation_of_tensorflow_requires_its_disk_space(requirements: str, gib: int) -> None:
    assert least_disk_bytes(requirements) == gib << 30


def test_tensorflow_is_refused_at_once_on_a_disk_that_is_too_small(tmp_path: Path, connect: Connect) -> None:
    if os.getuid() != 0 or not shutil.which("mount"):
        pytest.skip("a small file system can be mounted by root alone")
    directory = tmp_path / "host-77"
    directory.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2g", "tmpfs", str(directory)]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        answer = refused(connect(77), requirements="tensorflow")
        assert answer.kind is Refusal.DISK
        assert answer.reason.startswith(f"no space left on this host: {directory}/venvs has ")
        assert list((directory / "venvs").glob("*/")) == []
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)


def test_what_decides_the_name() -> None:
    name = environment_name(EnvironmentSpec("b==1\na==2"), BASE)
    assert environment_name(EnvironmentSpec("# both\na==2\r\n\n  b==1 # why\n"), BASE) == name
    assert environment_name(EnvironmentSpec("a==2\nb==2"), BASE) != name
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(path="/other")) != name
    major, minor, _ = BASE.version.split(".")
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(version=f"{major}.{minor}.99")) == name
    assert environment_name(EnvironmentSpec("b==1\na==2"), BASE._replace(version=f"{major}.99.0")) != name
    assert significant_lines("a==1 \\\n  --hash=sha256:1\n--hash=sha256:2") == [
        "--hash=sha256:2",
        "a==1    --hash=sha256:1",
    ]
    assert significant_lines("x @ https://h/x.whl#sha256=1") == ["x @ https://h/x.whl#sha256=1"]


def test_a_program_that_makes_no_progress_is_ended() -> None:
    (reads, client), (answers, writes) = os.pipe(), os.pipe()
    lines: list[str] = []

    def on_lines(new: list[str]) -> bool:
        lines.extend(new)
        return bool(new)

    command = ["/bin/sh", "-c", "echo $$; exec sleep 60"]
    with pytest.raises(OverdueError):
        run(command, {}, "/", Steps(Channel(reads, writes)), deadline_s=2, on_lines=on_lines)
    assert not alive(int(lines[0]))
    for fd in (reads, client, answers, writes):
        os.close(fd)


# --- GPUs -------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "I0000 00:00:1795251120.885977   23419 cudart_stub.cc:31] Could not find cuda drivers on your machine, "
            "GPU will not be used.\n"
            "E0000 00:00:1795251121.801082   23419 cuda_platform.cc:52] failed call to cuInit: INTERNAL: CUDA error: "
            "Failed call to cuInit: UNKNOWN ERROR (303)\n",
            "Could not find cuda drivers on your machine, GPU will not be used; failed call to cuInit: INTERNAL: "
            "CUDA error: Failed call to cuInit: UNKNOWN ERROR (303)",
        ),
        (
            "2026-02-24 16:46:54.006789: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2342] Cannot dlopen some "
            "GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you "
            "would like to use GPU. Follow the guide at https://www.tensorflow.org/install/gpu for how to download "
            "and setup the required libraries for your platform.\nSkipping registering GPU devices...\n",
            "Cannot dlopen some GPU libraries",
        ),
        ("nothing that is known\n", "nothing that is known"),
    ],
)
def test_the_reason_of_a_tensorflow_without_gpus_is_quoted(
    connect: Connect, tmp_path: Path, output: str, cause: str
) -> None:
    smi(tmp_path / "bin", T4)
    env = tensorflow(tmp_path / "packages", gpus=0, output=output)
    answer = refused(connect(env=env), python=sys.executable, gpus=1)
    assert answer.kind is Refusal.GPU
    assert answer.reason == "TensorFlow 2.21.0 on this host sees 0 of 1 GPUs"
    assert answer.cause == cause
    assert "tensorflow[and-cuda]" in answer.hint


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
    probe = Probe(str(tmp_path / "probe.json"), {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"})
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


@pytest.mark.parametrize("restarted", [False, True])
def test_a_host_restarts_once_for_a_driver_that_an_upgrade_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Path, restarted: bool
) -> None:
    boots = iter(["before", "before", "after"] if restarted else ["before"] * 3)
    monkeypatch.setattr(gpus, "boot_id", lambda: next(boots))
    for _ in range(2 if restarted else 1):
        restart.unlink(missing_ok=True)
        refused = refused_driver(tmp_path)
    assert restart.exists() != restarted
    assert "the kernel has the old one loaded" in refused.reason
    assert refused.cause == " ".join(MISMATCH.split())


def test_a_host_with_a_job_does_not_restart_for_a_replaced_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restart: Path
) -> None:
    marks = tmp_path / "jobs"
    marks.mkdir()
    monkeypatch.setattr(boot, "MARKS", str(marks))
    boot.mark_job()
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
