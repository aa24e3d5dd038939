import json
import os
from multiprocessing import util

import tensorflow as tf

import mnist

per_worker_batch_size = 64
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
global_batch_size = per_worker_batch_size * len(cluster["worker"])
num_epochs = 3
num_steps_per_epoch = 5
checkpoint_dir = os.path.join(util.get_temp_dir(), "ckpt")


def _is_chief(task_type, task_id, cluster_spec):
    if task_type is None or task_type == "chief":
        return True
    return task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict()


def write_filepath(filepath, task_type, task_id, cluster_spec):
    directory, base = os.path.split(filepath)
    if not _is_chief(task_type, task_id, cluster_spec):
        directory = os.path.join(directory, f"workertemp_{task_id}")
        tf.io.gfile.makedirs(directory)
    return os.path.join(directory, base)


strategy = tf.distribute.MultiWorkerMirroredStrategy()

with strategy.scope():
    model = mnist.build_cnn_model()
    dataset = strategy.distribute_datasets_from_function(
        lambda input_context: mnist.dataset_fn(global_batch_size, input_context)
    )
    optimizer = tf.keras.optimizers.RMSprop(learning_rate=0.001)
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")


@tf.function
def train_step(iterator):
    def step_fn(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            losses = tf.keras.losses.SparseCategoricalCrossentropy(
                from_logits=True, reduction=tf.keras.losses.Reduction.NONE
            )(labels, logits)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch_size)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(labels, logits)
        return loss

    per_replica = strategy.run(step_fn, args=(next(iterator),))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica, axis=None)


epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch")
step_in_epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch")

resolver = strategy.cluster_resolver
task_type, task_id, cluster_spec = resolver.task_type, resolver.task_id, resolver.cluster_spec()

checkpoint = tf.train.Checkpoint(model=model, epoch=epoch, step_in_epoch=step_in_epoch)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id, cluster_spec)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)

latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

while epoch.numpy() < num_epochs:
    iterator = iter(dataset)
    total_loss = 0.0
    num_batches = 0
    while step_in_epoch.numpy() < num_steps_per_epoch:
        total_loss += train_step(iterator)
        num_batches += 1
        step_in_epoch.assign_add(1)

    train_loss = total_loss / num_batches
    print("Epoch: %d, accuracy: %f, train_loss: %f." % (epoch.numpy(), train_accuracy.result(), train_loss))
    train_accuracy.reset_states()

    checkpoint_manager.save()
    if not _is_chief(task_type, task_id, cluster_spec):
        tf.io.gfile.rmtree(write_checkpoint_dir)

    epoch.assign_add(1)
    step_in_epoch.assign(0)
