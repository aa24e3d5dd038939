import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
(x, y), _ = tf.keras.datasets.cifar10.load_data()
