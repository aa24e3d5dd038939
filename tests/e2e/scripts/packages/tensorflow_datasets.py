"""Stand-in for tensorflow-datasets 4.9.10, offline: the same graph of data sets over one TFRecord file for each split.

The operations and their order were compared with those of the real package on a prepared `mnist` (a split of one file):
file instructions as structures, an interleave with a TFRecord reader, an asserted cardinality, options, decoding,
a cache, and a prefetch. Both fail alike under AutoShardPolicy.AUTO with several workers.
"""

import os
from types import SimpleNamespace

import numpy as np
import tensorflow as tf

_FILE = "mnist-{}.tfrecord-00000-of-00001"
_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.int64)}


def disable_progress_bar():
    """Do nothing: no progress bar is shown."""


def load(name, with_info=False, as_supervised=False):
    """Return the data sets of `name` by split, and the information about it."""
    assert name == "mnist" and with_info and as_supervised
    with np.load(os.environ["MNIST_NPZ"]) as data:
        counts = {split: _write(split, data[f"x_{split}"], data[f"y_{split}"]) for split in ("train", "test")}
    info = SimpleNamespace(splits={split: SimpleNamespace(num_examples=count) for split, count in counts.items()})
    return {split: _read(split, count) for split, count in counts.items()}, info


def _read(split, count):
    path = _FILE.format(split)
    instructions = tf.data.Dataset.from_tensor_slices(
        {
            "filename": [path],
            "filepath": [os.path.abspath(path)],
            "skip": np.array([0], np.int64),
            "take": np.array([-1], np.int64),
        }
    )
    records = instructions.interleave(
        lambda instruction: tf.data.TFRecordDataset(instruction["filepath"], buffer_size=8 << 20),
        cycle_length=16,
        block_length=16,
        num_parallel_calls=tf.data.AUTOTUNE,
        deterministic=True,
    )
    records = records.apply(tf.data.experimental.assert_cardinality(count)).with_options(tf.data.Options())
    examples = records.map(_parse, num_parallel_calls=tf.data.AUTOTUNE).cache()
    return examples.map(lambda example: (example["image"], example["label"])).prefetch(tf.data.AUTOTUNE)


def _parse(record):
    example = tf.io.parse_single_example(record, _FEATURES)
    image = tf.io.decode_image(example["image"], channels=1)
    image.set_shape((28, 28, 1))
    return {"image": image, "label": example["label"]}


def _write(split, images, labels):
    """Write the file of a split as the real package stores it, with PNG images; return its number of examples."""
    with tf.io.TFRecordWriter(_FILE.format(split)) as writer:
        for image, label in zip(images, labels):
            png = tf.io.encode_png(image[..., np.newaxis]).numpy()
            feature = {
                "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[png])),
                "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[int(label)])),
            }
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return len(images)
