"""`fleet stop` gives TensorFlow's preemption handler the time to save a last checkpoint and to exit."""

from __future__ import annotations

import json

import pytest

from tests.program import THREADS, Program, wait_for

pytestmark = pytest.mark.e2e

SCRIPT = """
import os, time
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    strategy.run(lambda: total.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", 0.5)))

checkpoint = tf.train.Checkpoint(total=total)
handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    strategy.cluster_resolver, checkpoint, os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "own"))
print("begins after", handler.total_run_calls, flush=True)
for number in range(10**9):
    handler.run(step)
    time.sleep(0.05)
    if number == 10:
        print("stepping", flush=True)
"""


def test_a_preemption_handler_saves_and_exits(program: Program) -> None:
    program.script("task.py", SCRIPT)
    program.run("up", "--workers", "2")
    client = program.start("train", "task.py", "--grace", "30", *THREADS)
    logs = "local/*/fleet/jobs/*/*/*/log"
    wait_for(
        "steps on both workers",
        lambda: [b"stepping" in log.read_bytes() for log in program.state.glob(logs)] == [True, True],
        deadline_s=90,
    )
    program.run("stop", timeout=60)
    program.finish(client, code=None, timeout=60)
    ended = {}
    for records in program.state.glob("local/*/fleet/jobs/*/*/attempt-1/records"):
        for line in records.read_text().splitlines():
            record = json.loads(line)
            if record["record"] == "task_state" and record["phase"] == "exited":
                ended[record["task"]] = record["exit"]
    assert ended == {f"worker-{index}": {"code": 42, "signal": None} for index in range(2)}
    assert list(program.state.glob("local/*/fleet/jobs/*/worker-0/checkpoints/own/ckpt-1.index"))
    assert not program.tasks()
