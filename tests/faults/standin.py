"""The script of a stand-in task, which fails and hangs with its peers as TensorFlow does."""

from __future__ import annotations

from pathlib import Path

IMPORT = "import tensorflow\n"
"""A first line for the script: its later attempts are forked from warm processes; see `make_import`."""

# Counts steps in lockstep with its peers, each of which sends to the next. A peer that dies ends all of them; a peer
# that is stopped or cut off stops all of them. The first by rank saves every fifth step; all begin at the saved step.
#
#     task.py STEPS [in-place] [long] [raise]
SCRIPT = r"""
import json, os, socket, sys, threading, time
rank, count, attempt = (int(os.environ["FLEET_" + name]) for name in ("RANK", "NUM_TASKS", "ATTEMPT"))
directory = os.environ["FLEET_CHECKPOINT_DIR"]
last = int(sys.argv[1])
# A checkpoint with a fixed name in TensorFlow's layout is complete as soon as its data was renamed into place.
path = os.path.join(directory, "count.json" if "in-place" in sys.argv else "count.data-00000-of-00001")
os.makedirs(os.environ["FLEET_LOG_DIR"], exist_ok=True)
side = open(os.path.join(os.environ["FLEET_LOG_DIR"], "said-%d" % attempt), "ab", buffering=0)

def say(*words):
    line = b"say " + " ".join(map(str, words)).encode() + b"\n"
    os.write(1, line)
    side.write(line)

def die(words):
    print(words, file=sys.stderr, flush=True)
    os._exit(1)

class UnavailableError(Exception):
    pass

def begin():
    if not os.path.exists(path):
        return 0
    text = open(path).read()
    if not text.endswith("whole"):
        die("the checkpoint is not whole")
    return int(text.split()[0])

def save(step):
    os.makedirs(directory, exist_ok=True)
    if "in-place" in sys.argv:
        with open(path, "w") as file:
            file.write("%d " % step)
            file.flush()
            say("saving", step)
            time.sleep(1.5)  # in which the fault comes, however slow the computer is
            file.write("whole")
    else:
        with open(path + ".tmp", "w") as file:
            file.write("%d whole" % step)
        os.replace(path + ".tmp", path)
        for name, text in (("count.index", ""), ("checkpoint", 'model_checkpoint_path: "count"')):
            if not os.path.exists(os.path.join(directory, name)):
                with open(os.path.join(directory, name), "w") as file:
                    file.write(text)
    say("saved", step)
    if "in-place" in sys.argv and step == 10:
        time.sleep(4)  # until the directory has been at rest for long enough

def greet(server, before):
    before.append(server.accept()[0])
    try:
        before[0].sendall(b"!")
    except OSError:
        pass  # `together` reports it

# Until its task listens, the agent of the next one may accept and end connections: these are repeated, as by gRPC.
def meet():
    places = os.environ["FLEET_ADDRESSES"].split(",")
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("", int(places[rank].rpartition(":")[2])))
    server.listen(8)
    before = []
    greeter = threading.Thread(target=greet, args=(server, before), daemon=True)
    greeter.start()
    host, _, port = places[(rank + 1) % count].rpartition(":")
    end = time.monotonic() + 90
    while True:
        try:
            after = socket.create_connection((host, int(port)), timeout=5)
            after.settimeout(None)
            if after.recv(1) == b"!":
                break
            raise OSError("another program answers")
        except OSError as error:
            if time.monotonic() > end:
                die("the next never came: %s" % error)
            time.sleep(0.02)
    greeter.join()
    return before[0], after

def together(before, after):
    for _ in range(count - 1):
        try:
            after.sendall(b".")
            gone = "" if before.recv(1) else "Socket closed"
        except OSError as error:
            gone = error.strerror
        if gone:
            raise UnavailableError("Collective ops is aborted by: " + gone)

start = begin()
say("begin", start)
print("TF_CONFIG=" + os.environ["TF_CONFIG"], flush=True)
if count > 1:
    line = meet()
pause = 0.05 if "in-place" not in sys.argv else 0.2
last = last if attempt == 1 else start + (60 if "long" in sys.argv else 10)
for step in range(start + 1, last + 1):
    time.sleep(pause)
    if count > 1:
        together(*line)
    say("step", step)
    if "raise" in sys.argv and step == 7 and rank == 1:
        raise RuntimeError("no such thing")
    if rank == 0 and step % 5 == 0:
        save(step)
say("end", last)
"""


def make_import(directory: Path) -> str:
    """Write an empty stand-in for the module of `IMPORT`; return the PYTHONPATH to find it."""
    directory.mkdir()
    (directory / "tensorflow.py").touch()
    return str(directory)
