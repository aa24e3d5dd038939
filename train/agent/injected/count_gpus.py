"""Print the number of GPUs that TensorFlow lists, after `MARK`."""

MARK = "fleet-gpus "

if __name__ == "__main__":
    import tensorflow

    print("\n" + MARK + "%d" % len(tensorflow.config.list_physical_devices("GPU")), flush=True)
