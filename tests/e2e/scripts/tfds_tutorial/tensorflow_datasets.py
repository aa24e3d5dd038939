"""The part of tensorflow_datasets that the script uses, over one file of TFRecords: read as that package reads.

See `tensorflow_datasets/core/reader.py`: the files of a split are interleaved, whatever their number.
"""

import os

import numpy as np
import tensorflow as tf

_FILE = "mnist-train.tfrecord-00000-of-00001"
_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def disable_progress_bar():
    """Nothing is shown anyway."""


def load(name, with_info=False, as_supervised=False):
    """The splits of a data set, and what is known of it."""
    assert name == "mnist" and with_info and as_supervised
    _prepare()
    files = tf.data.Dataset.from_tensor_slices([_FILE])
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=16, num_parallel_calls=tf.data.AUTOTUNE)
    return {"train": records.map(_parse, num_parallel_calls=tf.data.AUTOTUNE)}, None


def _parse(record):
    found = tf.io.parse_single_example(record, _FEATURES)
    return tf.reshape(tf.io.decode_raw(found["image"], tf.uint8), (28, 28, 1)), found["label"]


def _prepare():
    """Write the file, as if it had been downloaded."""
    with np.load(os.environ["MNIST_NPZ"]) as data:
        images, labels = data["x_train"], data["y_train"]
    with tf.io.TFRecordWriter(_FILE) as writer:
        for image, label in zip(images, labels):
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[image.tobytes()])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
