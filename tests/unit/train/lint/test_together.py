from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import FIT, READY, READY_LOOP, check, findings

CHIEF = "is_chief = task_id == 0\n"
IMPORTS = "import random, socket, sys, threading, time\nimport numpy as np\nfrom datetime import datetime\n"


def rules(source: str) -> list[str]:
    return [item.rule for item in check(source)]


# --- MW501: collective operations on some workers -----------------------------------------------------------------


@pytest.mark.parametrize(
    "piece",
    [
        "if is_chief:\n    model.evaluate(data)\n",
        "if is_chief:\n    model.predict(data)\n",
        "if not is_chief:\n    sys.exit(0)\nmodel.evaluate(data)\n",
        "if task_id == 0:\n    model.fit(data, epochs=1)\n",
        "for n in range(task_id):\n    model.evaluate(data)\n",
        "result = model.evaluate(data) if is_chief else None\n",
        "while task_id == 0:\n    model.evaluate(data)\n    break\n",
        "if is_chief:\n    model.evaluate(data)\nelse:\n    print('waiting')\n",
        "if is_chief:\n    model.fit(data, epochs=1)\nelse:\n    model.evaluate(data)\n",
    ],
)
def test_collective_operations_on_some_workers_are_reported(piece: str) -> None:
    result = check(READY + FIT + IMPORTS + CHIEF + piece)
    assert {item.rule for item in result} == {"MW501"}
    assert {item.severity.value for item in result} == {"error"}


@pytest.mark.parametrize(
    "piece",
    [
        "model.evaluate(data)\nif is_chief:\n    print('done')\n",
        "if is_chief:\n    model.evaluate(data)\nelse:\n    model.evaluate(data, verbose=0)\n",
        "verbose = 2 if is_chief else 0\nmodel.evaluate(data, verbose=verbose)\n",
        "if task_type == 'evaluator':\n    model.evaluate(data)\n",
        "if args.evaluate:\n    model.evaluate(data)\n",
        "if is_chief:\n    other = tf.keras.models.load_model('m')\n    other.predict(x)\n",
        "if is_chief:\n    from sklearn.svm import SVC\n    SVC().fit(x, y)\n",
        "if not is_chief:\n    sys.exit(0)\nprint('done')\n",
        "np.save(f'part-{task_id}.npy', model.predict(data))\n",
        "for n in range(3):\n    model.evaluate(data)\n    if is_chief:\n        print(n)\n",
    ],
)
def test_collective_operations_on_all_workers_give_no_finding(piece: str) -> None:
    assert rules(READY + FIT + IMPORTS + CHIEF + piece) == []


STEP = "for epoch in range(3):\n    for batch in shared:\n        loss = step(batch)\n"


@pytest.mark.parametrize(
    ("piece", "expected"),
    [
        ("        if task_id == 0:\n            break\n", ["MW501"]),
        ("        if is_chief and epoch == 2:\n            break\n", ["MW501"]),
        ("        if is_chief:\n            sys.exit(0)\n", ["MW501"]),
        ("        if is_chief:\n            print(loss)\n", []),
        ("        if is_chief:\n            continue\n", []),
        ("        if epoch == 2:\n            break\n", []),
        ("    if loss < 0.1:\n        break\n", []),
    ],
)
def test_leaving_a_loop_on_some_workers_is_reported(piece: str, expected: list[str]) -> None:
    assert sorted(set(rules(READY_LOOP + IMPORTS + CHIEF + STEP + piece))) == expected


def test_an_early_return_leaves_only_the_loops_of_its_function() -> None:
    function = "def chief():\n    if task_type == 'chief':\n        return True\n    return task_id == 0\n"
    assert rules(READY_LOOP + function + STEP + "        if chief():\n            print(loss)\n") == []
    loop = (
        "def train():\n    "
        + STEP.replace("\n", "\n    ")
        + "        if task_id == 0:\n                return\ntrain()\n"
    )
    assert set(rules(READY_LOOP + loop)) == {"MW501"}


# --- MW502: decisions that differ ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "piece",
    [
        "while time.time() - start < 60:\n    for batch in shared:\n        step(batch)\n",
        "for batch in shared:\n    step(batch)\n    if time.monotonic() > limit:\n        break\n",
        "for batch in shared:\n    step(batch)\n    if datetime.now() > limit:\n        break\n",
        "for batch in shared:\n    if random.random() < 0.5:\n        step(batch)\n",
        "for batch in shared:\n    if np.random.rand() < 0.5:\n        step(batch)\n",
        "if socket.gethostname() == 'a':\n    for batch in shared:\n        step(batch)\n",
        "for batch in shared:\n    mine = strategy.run(learn, args=(batch,))\n    if mine < 0.1:\n        break\n",
        "for batch in shared:\n    all = strategy.run(learn, args=(batch,))\n"
        "    mine = strategy.experimental_local_results(all)[0]\n    if float(mine) < 0.1:\n        break\n",
    ],
)
def test_different_decisions_are_reported(piece: str) -> None:
    result = check(READY_LOOP + IMPORTS + "start = time.time()\nlimit = start\n" + piece)
    assert [(item.rule, item.severity.value) for item in result] == [("MW502", "warning")]


@pytest.mark.parametrize(
    "piece",
    [
        "for batch in shared:\n    loss = step(batch)\n    if loss < 0.1:\n        break\n",
        "for n, batch in enumerate(shared):\n    if n % 10 == 0:\n        step(batch)\n",
        "begun = time.time()\nfor batch in shared:\n    step(batch)\nprint(time.time() - begun)\n",
        "for batch in shared:\n    step(batch)\n    if time.time() - start > 10:\n        print('slow')\n",
        "random.seed(1)\nfor batch in shared:\n    if random.random() < 0.5:\n        step(batch)\n",
        "np.random.seed(1)\nfor batch in shared:\n    if np.random.rand() < 0.5:\n        step(batch)\n",
        "directory = datetime.now().isoformat()\nif os.path.exists(directory):\n    print('again')\n",
    ],
)
def test_equal_decisions_give_no_finding(piece: str) -> None:
    assert rules(READY_LOOP + IMPORTS + "start = time.time()\nlimit = start\n" + piece) == []


def test_a_checkpoint_that_depends_on_the_clock_is_reported() -> None:
    held = "checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)\n"
    held += "manager = tf.train.CheckpointManager(checkpoint, f'{d}/{task_id}', 1)\n"
    loop = "for batch in shared:\n    step(batch)\n    if time.time() > last:\n        manager.save()\n"
    assert rules(READY_LOOP + IMPORTS + held + "last = 0\n" + loop) == ["MW502"]


# --- MW503: threads -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("thread", "expected"),
    [
        ("t = threading.Thread(target=watch)\nt.start()\n", ["MW503"]),
        ("threading.Thread(target=watch).start()\n", ["MW503"]),
        ("t = threading.Timer(9, watch)\nt.start()\n", ["MW503"]),
        ("t = threading.Thread(target=watch, daemon=True)\nt.start()\n", []),
        ("t = threading.Thread(target=watch)\nt.daemon = True\nt.start()\n", []),
        ("t = threading.Thread(target=watch, daemon=quiet)\nt.start()\n", []),
        ("t = threading.Thread(target=watch)\n", []),
    ],
)
def test_non_daemon_threads_are_reported(thread: str, expected: list[str]) -> None:
    assert rules(READY + IMPORTS + thread + FIT) == expected
    assert rules(READY + FIT + IMPORTS + thread) == []  # no worker waits afterwards
    assert findings(READY + IMPORTS + thread + FIT, workers=1) == []
