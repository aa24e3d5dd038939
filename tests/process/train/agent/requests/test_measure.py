"""Test the requests MeasureNetwork and MeasureSteps, with a stand-in for TensorFlow."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest

from tests.process.train.agent.conftest import Connect
from tests.process.train.agent.hosts import Agent, Bundle, prepared
from train.agent.peers.network import Arrival, rates
from train.agent.protocol.records import (
    BootstrapStep,
    Exit,
    MeasureNetwork,
    MeasureSteps,
    Member,
    NetworkMeasured,
    Refusal,
    Refused,
    StepsMeasured,
)
from train.agent.requests.measure import observe

SECRET = "5" * 64

# The modules of TensorFlow that the hook wraps or uses: a function is traced by its first call.
PACKAGES = ("", "python/", "python/eager/", "python/framework/", "python/util/")
TENSORFLOW = {
    **{f"tensorflow/{package}__init__.py": "" for package in PACKAGES},
    "tensorflow/python/eager/context.py": "def executing_eagerly(): return True\n",
    "tensorflow/python/framework/ops.py": "def get_default_graph(): return None\n",
    "tensorflow/python/util/nest.py": "def flatten(value, expand_composites=False): return list(value)\n",
    "tensorflow/python/eager/backprop.py": """
from types import SimpleNamespace as Value
dtype = Value(size=4)
dtype.base_dtype = Value(name="float32")
variable = Value(assign=None, dtype=dtype, shape=Value(num_elements=lambda: 1000))
class GradientTape:
    def gradient(self, target, sources): return list(sources)
""",
    "tensorflow/python/eager/def_function.py": """
class Function:
    def __init__(self, body): self.body, self.traced = body, False
    def __call__(self, *args):
        if not self.traced: self.body()
        self.traced = True
        return []
""",
}
SCRIPT = """
import sys
from tensorflow.python.eager.backprop import GradientTape, variable
from tensorflow.python.eager.def_function import Function
step = Function(lambda: GradientTape().gradient(None, [variable]))
validate = Function(lambda: None)
for _ in range(int(sys.argv[1])):
    validate()
    step(iter([[1]] * 100))
sys.exit(int(sys.argv[2]))
"""


def bundle() -> Bundle:
    made = Bundle(SCRIPT)
    for path, text in TENSORFLOW.items():
        made.add(path, text.encode())
    return made


def measured(agent: Agent, members: Sequence[Member], *arguments: str) -> tuple[StepsMeasured, list[BootstrapStep]]:
    command = [sys.executable, "task.py", *arguments]
    agent.send(MeasureSteps(command, {}, {}, list(members), 10, 30.0))
    steps: list[BootstrapStep] = []
    while True:
        record, _ = agent.receive()
        if isinstance(record, StepsMeasured):
            return record, steps
        assert isinstance(record, BootstrapStep), record
        steps.append(record)


def test_two_hosts_measure_their_network(connect: Connect) -> None:
    agents = [connect(0), connect(1)]
    members = prepared(agents, "check-1", Bundle("pass"))
    for agent in agents:
        agent.send(MeasureNetwork(SECRET, members))
    for agent in agents:
        answer = agent.expect(NetworkMeasured)
        assert answer.error == ""
        assert len(answer.latencies_s) == 50
        assert answer.bytes_s
        assert min(answer.latencies_s + answer.bytes_s) > 0
    for agent, secret in zip(agents, (SECRET, "6" * 64), strict=True):  # the reservation stays
        agent.send(MeasureNetwork(secret, members))
    assert all(agent.expect(NetworkMeasured).error for agent in agents)
    agents[0].send(MeasureNetwork(SECRET, members[:1]))
    assert agents[0].expect(Refused).kind is Refusal.REQUEST


def test_a_script_ends_after_its_steps_were_measured(connect: Connect) -> None:
    agent = connect()
    (member,) = prepared([agent], "check-1", bundle())
    (worker,) = members = [member._replace(task="worker-0")]
    assert worker.slot == "worker-0"
    answer, steps = measured(agent, members, "1000", "0")
    assert answer.exit is None
    assert (len(answer.step_s), len(answer.wait_s)) == (10, 10)
    assert (answer.gradient_bytes, answer.dtypes, answer.in_loop) == (4000, ["float32"], False)
    assert answer.input_s is not None
    assert steps[0].step == "starting the script to measure its steps"
    assert not list((agent.root / "jobs").glob("*/*"))

    prepared([agent], "check-1", bundle())
    failed, _ = measured(agent, members, "6", "3")
    assert (failed.exit, len(failed.step_s)) == (Exit(3), 4)


def test_observations_of_a_process_that_was_killed_are_read() -> None:
    lines = ["gradient 40 float32", "gradient x", "step 0 1", "step 2 3", "step 3.5 4", "step 4 4.5", "step 5 5."]
    seen = observe("\n".join(lines))
    assert seen.step_s == [1.0, 0.5]
    assert seen.wait_s == [0.5, 0.0]
    assert seen.gradients == [(40, "float32")]
    assert not seen.is_done
    assert observe("\x00nan\nstep nan inf\n\n").step_s == []


@pytest.mark.parametrize(
    ("arrivals", "expected"),
    [
        ([(0, 0)], []),
        ([(0, 0), (0, 10)], []),
        ([(0, 0), (1, 10)], [10]),
        ([(0, 0), (1, 1), (2, 11), (3, 21), (4, 31)], [10, 10, 10]),
    ],
)
def test_the_first_slice_of_a_stream_is_left_out(arrivals: list[tuple[float, int]], expected: list[float]) -> None:
    assert rates([Arrival(*item) for item in arrivals]) == expected
