"""Scripts with real TensorFlow, small enough for a suite of faults."""

from __future__ import annotations

_SAY = r"""
import gc, os, sys, time
# Many tasks start: no collection of garbage during the import, and no module that TensorFlow imports if it is there.
gc.disable()
sys.modules["googleapiclient"] = None
import tensorflow as tf
gc.enable()

side = None
def say(*words):
    global side
    if side is None:
        logs = os.environ["FLEET_LOG_DIR"]
        os.makedirs(logs, exist_ok=True)
        side = open(os.path.join(logs, "said-" + os.environ["FLEET_ATTEMPT"]), "ab", buffering=0)
    line = b"say " + " ".join(map(str, words)).encode() + b"\n"
    os.write(1, line)
    side.write(line)

attempt = int(os.environ["FLEET_ATTEMPT"])
directory = os.environ["FLEET_CHECKPOINT_DIR"]
"""

# The custom loop of TensorFlow's tutorial on multi-worker training, with its way to save: each task saves to a
# separate directory, and only the directory of the chief is kept. An epoch has 10 steps; every fifth step is saved.
#
# With hold=STEP, the second task waits after that step until the file "go" exists in its log directory.
#
#     task.py EPOCHS [pause=SECONDS] [raise=STEP] [hold=STEP] [directory=PATH] [big]
LOOP = (
    _SAY
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

# model.fit with BackupAndRestore. After each backup, the chief also writes large weights to one file, in place, by
# Keras and HDF5; the next attempt reads it. `model.weights.h5` has the number of the epoch as its value.
#
#     task.py EPOCHS
FIT = (
    _SAY
    + r"""
rank = int(os.environ["FLEET_RANK"])
path = os.path.join(directory, "model.weights.h5")
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile("sgd", "mse")
layer = tf.keras.layers.Dense(4000, input_shape=(2000,), use_bias=False, kernel_initializer="zeros")
large = tf.keras.Sequential([layer])
done = 0
if os.path.exists(path):
    large.load_weights(path)
    done = int(large.get_weights()[0][0, 0])
    assert int(large.get_weights()[0][-1, -1]) == done
say("kept", done)

class Report(tf.keras.callbacks.Callback):
    begun = False
    def on_epoch_begin(self, epoch, logs=None):
        if not self.begun:
            say("begin", epoch)
        self.begun = True
    def on_epoch_end(self, epoch, logs=None):
        say("step", epoch + 1)
        if rank == 0:
            large.set_weights([tf.fill([2000, 4000], float(epoch + 1)).numpy()])
            say("saving", epoch + 1)
            large.save_weights(path)
            say("saved", epoch + 1)
            time.sleep(1.5 if attempt == 1 else 0.0)

x = tf.random.normal([32, 4], seed=1)
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1))).batch(8)
data = data.with_options(tf.data.Options())
model.fit(data, epochs=int(sys.argv[1]), verbose=0, callbacks=[
    tf.keras.callbacks.BackupAndRestore(os.path.join(directory, "backup")), Report(),
])
say("end", sys.argv[1])
"""
)
