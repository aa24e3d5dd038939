import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
path = tf.keras.utils.get_file("photos.tgz", "https://data.example.invalid/photos.tgz")
