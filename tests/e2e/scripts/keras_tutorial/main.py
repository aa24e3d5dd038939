import json
import os

import tensorflow as tf

import mnist_setup

per_worker_batch_size = 64
cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
global_batch_size = per_worker_batch_size * len(cluster["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
train_data = mnist_setup.mnist_dataset(global_batch_size)

with strategy.scope():
    model = mnist_setup.build_and_compile_cnn_model()

model.fit(train_data, epochs=3, steps_per_epoch=10)
