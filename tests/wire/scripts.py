"""Scripts without TensorFlow that several tests run as tasks."""

# Counts to a number; the chief stores the count in the checkpoint directory.
COUNT = """
import json, os, sys, time
directory = os.environ["FLEET_CHECKPOINT_DIR"]  # of a checkpoint in TensorFlow's layout
path = os.path.join(directory, "count.data-00000-of-00001")
count = json.load(open(path)) if os.path.exists(path) else 0
print(f"begin {count} {os.environ['FLEET_ATTEMPT']}", flush=True)
while count < int(sys.argv[1]):
    time.sleep(0.1)
    count += 1
    if os.environ["FLEET_RANK"] == "0" and count % 5 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(count, file)
        os.replace(path + ".tmp", path)
        for name, text in (("count.index", ""), ("checkpoint", 'model_checkpoint_path: "count"')):
            if not os.path.exists(os.path.join(directory, name)):
                with open(os.path.join(directory, name), "w") as file:
                    file.write(text)
    print(f"step {count}", flush=True)
"""
