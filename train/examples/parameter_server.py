"""Learn handwritten digits with parameter servers: a chief gives work to workers, servers keep the variables.

    python parameter_server.py                                       one process, here
    fleet train parameter_server.py --chief --ps 1 -- --epochs 10    on a fleet of 3 hosts or more
    fleet train parameter_server.py --chief --ps 1 --evaluator       and one that evaluates what is saved

Workers do not wait for each other here. If it is stopped and started again, it continues after the last finished
epoch.
"""

import argparse
import os
from pathlib import Path

import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description="Learn handwritten digits with parameter servers.")
parser.add_argument("--epochs", type=int, default=5)
parser.add_argument("--batch-size", type=int, default=16, help="examples a worker takes in one step")
args = parser.parse_args()

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
task_type = resolver.task_type or "chief"  # empty without TF_CONFIG
is_distributed = "TF_CONFIG" in os.environ

# Workers and servers run what the chief sends them, and never end by themselves: fleet stops them when it is done.
if task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    threads = max(4, os.cpu_count() or 1)  # with one, which TensorFlow chooses on one core, no step ever ends
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        config=tf.compat.v1.ConfigProto(inter_op_parallelism_threads=threads),
        start=True,
    )
    server.join()

checkpoint_dir = os.environ.get("FLEET_CHECKPOINT_DIR", "checkpoints")
digits = np.load(Path(__file__).with_name("digits.npz"))
images = digits["images"].reshape(-1, 64).astype("float32") / 16  # 1,797 pictures of 8 by 8 pixels, from 0 to 16
labels = digits["labels"].astype("int64")

if task_type == "chief" and is_distributed:
    strategy = tf.distribute.ParameterServerStrategy(
        resolver, variable_partitioner=tf.distribute.experimental.partitioners.MinSizePartitioner(max_shards=2)
    )
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
else:
    strategy = tf.distribute.get_strategy()
    coordinator = None

# What is made in the scope of the strategy lives on the parameter servers, a large variable in parts.
with strategy.scope():
    hidden = tf.Variable(tf.random.stateless_uniform([64, 128], seed=(1, 2), minval=-0.15, maxval=0.15))
    hidden_bias = tf.Variable(tf.zeros([128]))
    output = tf.Variable(tf.random.stateless_uniform([128, 10], seed=(3, 4), minval=-0.15, maxval=0.15))
    output_bias = tf.Variable(tf.zeros([10]))
    epochs_done = tf.Variable(0, dtype=tf.int64, trainable=False)
variables = [hidden, hidden_bias, output, output_bias]
checkpoint = tf.train.Checkpoint(
    hidden=hidden, hidden_bias=hidden_bias, output=output, output_bias=output_bias, epochs_done=epochs_done
)


def guess(pictures):
    """Return ten numbers for each picture, the largest for the digit that it shows."""
    inner = tf.nn.relu(tf.matmul(pictures, tf.convert_to_tensor(hidden)) + hidden_bias)
    return tf.matmul(inner, tf.convert_to_tensor(output)) + output_bias


if task_type == "evaluator":
    # fleet brings each checkpoint here as it is saved, and ends this task when there is none left to evaluate.
    for path in tf.train.checkpoints_iterator(checkpoint_dir):
        checkpoint.restore(path).expect_partial()
        right = tf.reduce_mean(tf.cast(tf.argmax(guess(images), axis=1) == labels, tf.float32))
        print(f"After epoch {epochs_done.numpy()}: accuracy {right:.4f}", flush=True)


def make_dataset():
    """Return the batches of one worker: each reads all examples in a different order."""
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(len(images)).repeat().batch(args.batch_size)


def learn(pictures, answers):
    """Run one step of one worker on the current variables."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(answers, guess(pictures)))
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(0.1 * tf.convert_to_tensor(gradient))
    return loss


@tf.function
def step(iterator):
    """Run one step on a worker when the chief schedules it."""
    return strategy.run(learn, args=next(iterator))


# Each server saves its variables unless one task is named for all: its disk then has the checkpoint.
options = tf.train.CheckpointOptions(experimental_io_device="/job:chief" if is_distributed else None)
manager = tf.train.CheckpointManager(checkpoint, checkpoint_dir, max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint, options=options)
    print(f"Resumed after epoch {epochs_done.numpy()}")

iterator = iter(coordinator.create_per_worker_dataset(make_dataset) if coordinator else make_dataset())
steps = len(images) // args.batch_size

for epoch in range(int(epochs_done.numpy()), args.epochs):
    if coordinator:
        losses = [coordinator.schedule(step, args=(iterator,)) for _ in range(steps)]
        coordinator.join()  # all steps are done, on any worker
        losses = [loss.fetch() for loss in losses]
    else:
        losses = [step(iterator) for _ in range(steps)]
    print(f"Epoch {epoch + 1}/{args.epochs} - loss: {np.mean(losses):.4f}", flush=True)

    epochs_done.assign_add(1)  # before saving, so that this epoch is not done again
    manager.save(options=options)
