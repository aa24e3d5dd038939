"""Scripts with real TensorFlow, small enough for a suite of faults."""

from __future__ import annotations

SAY = r"""
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

# model.fit with BackupAndRestore. After each backup, the chief also writes large weights to one file, in place, by
# Keras and HDF5; the next attempt reads it. `model.weights.h5` has the number of the epoch as its value. In the first
# attempt, the chief waits after the second epoch until the file "go" exists in its log directory, and must be killed
# when it saves the third one.
#
#     task.py EPOCHS
FIT = (
    SAY
    + r"""
rank = int(os.environ["FLEET_RANK"])
path = os.path.join(directory, "model.weights.h5")
go = os.path.join(os.environ["FLEET_LOG_DIR"], "go")
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
            while attempt == 1 and epoch == 1 and not os.path.exists(go):
                time.sleep(0.2)
            while attempt == 1 and epoch == 2:  # if the signal comes after the write
                time.sleep(0.2)

x = tf.random.normal([32, 4], seed=1)
data = tf.data.Dataset.from_tensor_slices((x, tf.reduce_sum(x, 1))).batch(8)
data = data.with_options(tf.data.Options())
model.fit(data, epochs=int(sys.argv[1]), verbose=0, callbacks=[
    tf.keras.callbacks.BackupAndRestore(os.path.join(directory, "backup")), Report(),
])
say("end", sys.argv[1])
"""
)

# A loop of steps under TensorFlow's handler of preemptions, which saves after SIGTERM and exits with 42.
# After step 12, the second task waits until the file "go" exists in its log directory.
HANDLED = (
    SAY
    + r"""
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    total = tf.Variable(0.0)

@tf.function
def step():
    strategy.run(lambda: total.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", 0.5)))

handler = tf.distribute.experimental.PreemptionCheckpointHandler(
    strategy.cluster_resolver, tf.train.Checkpoint(total=total), os.path.join(directory, "own"))
for number in range(1, 10**9):
    handler.run(step)
    say("step", number)
    if number == 12 and os.environ["FLEET_RANK"] == "1":
        while not os.path.exists(os.path.join(os.environ["FLEET_LOG_DIR"], "go")):
            time.sleep(0.2)
    time.sleep(0.05)
"""
)
