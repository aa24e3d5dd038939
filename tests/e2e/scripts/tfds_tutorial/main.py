import json
import os

import tensorflow as tf
import tensorflow_datasets as tfds

tfds.disable_progress_bar()

os.environ.pop('TF_CONFIG', None)
os.environ['TF_CONFIG'] = json.dumps({
    'cluster': {
        'worker': ["localhost:12345", "localhost:23456"]
    },
    'task': {'type': 'worker', 'index': 0}
})

NUM_WORKERS = 2
BUFFER_SIZE = 10000
BATCH_SIZE = 64 * NUM_WORKERS

strategy = tf.distribute.MultiWorkerMirroredStrategy()

datasets, info = tfds.load(name="mnist", with_info=True, as_supervised=True)
num_train_examples = info.splits["train"].num_examples
print("training examples:", num_train_examples)


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255
    return image, label


train_dataset = datasets["train"].map(scale).cache().shuffle(BUFFER_SIZE).repeat().batch(BATCH_SIZE)
eval_dataset = datasets["test"].map(scale).batch(BATCH_SIZE)

with strategy.scope():
    model = tf.keras.Sequential([
        tf.keras.layers.Conv2D(8, 3, activation="relu", input_shape=(28, 28, 1)),
        tf.keras.layers.MaxPooling2D(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(16, activation="relu"),
        tf.keras.layers.Dense(10, activation="softmax"),
    ])
    model.compile(loss="sparse_categorical_crossentropy", optimizer="adam", metrics=["accuracy"])


def decay(epoch):
    return 1e-3 if epoch < 3 else 1e-4


checkpoint_prefix = os.path.join("./training_checkpoints", "ckpt_{epoch}")
callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir="./logs"),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
]

model.fit(train_dataset, epochs=2, steps_per_epoch=num_train_examples // BATCH_SIZE, callbacks=callbacks)
eval_loss, eval_acc = model.evaluate(eval_dataset)
print("Eval loss: {}, Eval accuracy: {}".format(eval_loss, eval_acc))
