import numpy as np
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
model = tf.keras.Sequential([tf.keras.layers.Input((4,)), tf.keras.layers.Dense(1)])
loss_fn = tf.keras.losses.MeanSquaredError(reduction="none")
with strategy.scope():
    optimizer = tf.keras.optimizers.Adam()


@tf.function
def step(x, y):
    def learn(x, y):
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_fn(y, model(x)), global_batch_size=16)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    return strategy.run(learn, args=(x, y))


step(np.zeros((8, 4), "f4"), np.zeros((8, 1), "f4"))
