"""Training speed under the agent with replicated checkpoints, compared with the same script started by hand.

Two workers on this computer, both runs in turn; the script counts its steps and writes a checkpoint every five
seconds, as a script with a large model does.

Run: .venv/bin/python -m benchmarks.training
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.stage import Stage

WORKERS = 2
RUNS = 6
GOAL = 0.99
DEADLINE_S = 300.0
SCRIPT = """
import os, sys, time
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank = os.environ.get("RANK") or os.environ["FLEET_RANK"]
directory = os.environ.get("FLEET_CHECKPOINT_DIR") or os.path.join(sys.argv[1], "checkpoints-" + rank)
with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Dense(512, activation="relu", input_shape=(256,)),
        tf.keras.layers.Dense(512, activation="relu"),
        tf.keras.layers.Dense(10),
    ])
    checkpoint = tf.train.Checkpoint(model=model)
data = tf.random.stateless_normal([64, 256], [1, 2])

@tf.function
def step():
    def each():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(model(data)))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = tf.distribute.get_replica_context().all_reduce("sum", gradients)
        for variable, gradient in zip(model.trainable_variables, gradients):
            variable.assign_sub(1e-4 * gradient)
        return loss
    return strategy.run(each)

for _ in range(100):
    step()
manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
begin, count, saved = time.perf_counter(), 1500, 0
for number in range(count):
    step()
    if number % 300 == 0:
        manager.save()
seconds = time.perf_counter() - begin
path = os.path.join(sys.argv[1], "speed-" + rank)
with open(path + ".tmp", "w") as file:
    file.write(repr(count / seconds))
os.replace(path + ".tmp", path)
"""


def speed(marks: Path) -> float:
    """Return the steps per second that the workers counted."""
    result = [float((marks / f"speed-{rank}").read_text()) for rank in range(WORKERS)]
    for rank in range(WORKERS):
        (marks / f"speed-{rank}").unlink()
    return statistics.mean(result)


def with_fleet(stage: Stage) -> float:
    """Return the steps per second under the agent without a connected client, which runs on another computer.

    Raises:
        TimeoutError: The job does not end.
    """
    marks = stage.marks
    stage.run("train", "-d", str(stage.script), "--restarts", "1", "--", str(marks))
    end = time.monotonic() + DEADLINE_S
    while len(list(marks.glob("speed-?"))) < WORKERS:
        if time.monotonic() > end:
            raise TimeoutError(f"waited {DEADLINE_S:.0f} s for the job")
        time.sleep(0.5)
    stage.run("logs", "-f", "-n", "0")
    return speed(marks)


def by_hand(stage: Stage) -> float:
    """Return the steps per second of the same script, started by hand."""
    with stage.workers_by_hand() as processes:
        codes = [process.wait(DEADLINE_S) for process in processes]
    if any(codes):
        raise RuntimeError(f"the workers started by hand ended with {codes}")
    return speed(stage.marks)


def main() -> None:
    """Print both speeds and their ratio for each round."""
    agent: list[float] = []
    hand: list[float] = []
    with tempfile.TemporaryDirectory() as root, Stage(Path(root), SCRIPT, WORKERS) as stage:
        for number in range(RUNS):
            for turn in (0, 1):
                if turn == number % 2:
                    agent.append(with_fleet(stage))
                else:
                    hand.append(by_hand(stage))
    for title, speeds in (("under the agent", agent), ("started by hand", hand)):
        spread = f"({min(speeds):.1f} to {max(speeds):.1f}, n={len(speeds)})"
        print(f"{title:<18} {statistics.median(speeds):7.1f} steps/s  {spread}")
    ratio = statistics.median(agent) / statistics.median(hand)
    print(f"ratio of the medians {ratio:.3f}   goal: at least {GOAL}   {'reached' if ratio >= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
