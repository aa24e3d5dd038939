"""Scripts without TensorFlow that several tests run as tasks."""

# Counts to a number; the chief stores the count in the checkpoint directory.
COUNT = """
import json, os, sys, time
path = os.path.join(os.environ["FLEET_CHECKPOINT_DIR"], "count.json")
count = json.load(open(path)) if os.path.exists(path) else 0
print(f"begin {count} {os.environ['FLEET_ATTEMPT']}", flush=True)
while count < int(sys.argv[1]):
    time.sleep(0.1)
    count += 1
    if os.environ["FLEET_RANK"] == "0" and count % 5 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(count, file)
        os.replace(path + ".tmp", path)
    print(f"step {count}", flush=True)
"""
