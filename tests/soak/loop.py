"""A custom training loop with real TensorFlow, for faults."""

from __future__ import annotations

from tests.faults.scripts import SAY

# The custom loop of TensorFlow's tutorial on multi-worker training, with its way to save: each task saves to a
# separate directory, and only the directory of the chief is kept. An epoch has 10 steps; every fifth step is saved.
#
# With hold=STEP, the second task waits after that step until the file "go" exists in its log directory.
#
#     task.py EPOCHS [pause=SECONDS] [raise=STEP] [hold=STEP] [directory=PATH] [big]
LOOP = (
    SAY
    + r"""
options = dict(word.split("=") for word in sys.argv[2:] if "=" in word)
checkpoint_dir = options.get("directory", directory)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
task_type, task_id = strategy.cluster_resolver.task_type, strategy.cluster_resolver.task_id
cluster_spec = strategy.cluster_resolver.cluster_spec()
with strategy.scope():
    weights = tf.Variable(tf.zeros([1000, 2000 if "big" in sys.argv else 10]))

def _is_chief(task_type, task_id, cluster_spec):
    return (
        task_type is None
        or task_type == "chief"
        or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
    )

def _get_temp_dir(dirpath, task_id):
    base_dirpath = "workertemp_" + str(task_id)
    temp_dir = os.path.join(dirpath, base_dirpath)
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir

def write_filepath(filepath, task_type, task_id, cluster_spec):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id, cluster_spec):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)

epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="epoch")
step_in_epoch = tf.Variable(initial_value=tf.constant(0, dtype=tf.dtypes.int64), name="step_in_epoch")
checkpoint = tf.train.Checkpoint(weights=weights, epoch=epoch, step_in_epoch=step_in_epoch)
write_checkpoint_dir = write_filepath(checkpoint_dir, task_type, task_id, cluster_spec)
checkpoint_manager = tf.train.CheckpointManager(checkpoint, directory=write_checkpoint_dir, max_to_keep=1)
latest_checkpoint = tf.train.latest_checkpoint(checkpoint_dir)
if latest_checkpoint:
    checkpoint.restore(latest_checkpoint)

@tf.function
def train_step():
    def one():
        weights.assign_add(tf.ones_like(weights))
        return tf.constant(1.0)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(one), axis=None)

def total():
    return int(epoch) * 10 + int(step_in_epoch)

say("begin", total(), int(weights[0, 0]))
while int(epoch) < int(sys.argv[1]):
    while int(step_in_epoch) < 10:
        train_step()
        step_in_epoch.assign_add(1)
        say("step", total())
        if int(options.get("raise", -1)) == total() and task_id == 1:
            raise ValueError("no such thing")
        if int(options.get("hold", -1)) == total() and task_id == 1:
            while not os.path.exists(os.path.join(os.environ["FLEET_LOG_DIR"], "go")):
                time.sleep(0.2)
        time.sleep(float(options.get("pause", 0.05)) if attempt < 3 else 0.01)
        if int(step_in_epoch) % 5 == 0:
            if task_id == 0:
                say("saving", total())
            checkpoint_manager.save()
            if not _is_chief(task_type, task_id, cluster_spec):
                tf.io.gfile.rmtree(write_checkpoint_dir)
            else:
                say("saved", total())
    epoch.assign_add(1)
    step_in_epoch.assign(0)
say("end", total())
"""
)
