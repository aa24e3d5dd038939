import numpy as np
import tensorflow as tf


def mnist_dataset(batch_size):
    (images, labels), _ = tf.keras.datasets.mnist.load_data()
    images = images / np.float32(255)  # from 0-255 to 0-1
    labels = labels.astype(np.int64)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    return dataset.shuffle(60000).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    layers = tf.keras.layers
    model = tf.keras.Sequential([
        tf.keras.Input(shape=(28, 28)),
        layers.Reshape(target_shape=(28, 28, 1)),
        layers.Conv2D(32, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(128, activation="relu"),
        layers.Dense(10),
    ])
    model.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model
