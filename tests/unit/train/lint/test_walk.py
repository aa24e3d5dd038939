from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import BACKUP, DATA, FIT, GANG, MODEL, READY, TF, check, findings

EARLY = "import tensorflow as tf\nx = tf.constant(1)\n"


def places(source: str, modules: dict[str, str], entry: str = "task.py") -> list[str]:
    from train.lint.linter import lint

    result = lint({entry: source, **modules}, entry, workers=2)
    return [f"{item.rule} {item.location}" for item in result]


@pytest.mark.parametrize(
    ("line", "modules"),
    [
        ("import data", {"data.py": EARLY}),
        ("import data as d", {"data.py": EARLY}),
        ("from data import x", {"data.py": EARLY}),
        ("from data import *", {"data.py": EARLY}),
        ("import lib.data", {"lib/__init__.py": "", "lib/data.py": EARLY}),
        ("from lib import data", {"lib/__init__.py": "", "lib/data.py": EARLY}),
        ("from lib.data import x", {"lib/data.py": EARLY}),
        ("import lib", {"lib/__init__.py": "from . import data", "lib/data.py": EARLY}),
        ("import lib", {"lib/__init__.py": "from .data import x", "lib/data.py": EARLY}),
        ("import lib.a", {"lib/a.py": "from . import b", "lib/b.py": EARLY}),
        ("import lib.a.c", {"lib/a/__init__.py": "", "lib/a/c.py": "from .. import b", "lib/b.py": EARLY}),
        ("import a", {"a.py": "import b", "b.py": "import a\n" + EARLY}),
        ("def setup():\n    import data\nsetup()", {"data.py": EARLY}),
        ("from data import make\nmake()", {"data.py": "import tensorflow as tf\ndef make():\n    tf.constant(1)\n"}),
        ("import data\ndata.make()", {"data.py": "import tensorflow as tf\ndef make():\n    tf.constant(1)\n"}),
        ("import lib.data\nlib.data.f()", {"lib/data.py": "import tensorflow as tf\nf = lambda: tf.constant(1)\n"}),
    ],
)
def test_modules_are_executed_where_they_are_imported(line: str, modules: dict[str, str]) -> None:
    make = "import tensorflow as tf\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    result = places(line + "\n" + make, modules)
    assert result == [f"MW101 task.py:{line.count(chr(10)) + 3}"]
    assert places(make + line + "\n", modules) == []
    below = {f"src/{name}": text for name, text in modules.items()}
    assert places(line + "\n" + make, below, "src/task.py") == [result[0].replace("task", "src/task")]


def test_a_missing_module_gives_no_finding() -> None:
    for line in ("from .data import x", "from ... import x", "import data.more", "from nowhere import *"):
        assert places(line + "\n" + GANG, {}) == []


def test_findings_have_the_place_of_the_code() -> None:
    modules = {"net.py": "import tensorflow as tf\n\n\ndef build():\n    return tf.keras.models.Sequential()\n"}
    source = "import net\n" + GANG + DATA + "model = net.build()\nmodel.compile('sgd')\n" + BACKUP + FIT
    assert places(source, modules) == ["MW201 net.py:5"]
    inside = source.replace("model = net", "with strategy.scope():\n    model = net")
    assert places(inside, modules) == []


WAYS_TO_MAIN = [
    "if __name__ == '__main__':\n    main()\n",
    "main()\n",
    "from absl import app\nif __name__ == '__main__':\n    app.run(main)\n",
    "tf.compat.v1.app.run()\n",
    "tf.compat.v1.app.run(main=main)\n".replace("main=", ""),
    "import fire\nfire.Fire(main)\n",
    "import sys\nsys.exit(main())\n",
    "class App:\n    def run(self):\n        main()\nApp().run()\n",
    "class App:\n    def __init__(self):\n        main()\nApp()\n",
    "class App:\n    def __call__(self):\n        main()\napp = App()\napp()\n",
    "class A:\n    def run(self):\n        main()\n"
    "class B(A):\n    def run(self):\n        super().run()\nB().run()\n",
    "class App:\n    @staticmethod\n    def run():\n        main()\nApp.run()\n",
    "class App:\n    @property\n    def run(self):\n        return main()\nApp().run\n",
    "call = main\ncall()\n",
    "(lambda: main())()\n",
    "calls = {'main': main}\ncalls['main']()\n",
    "calls = [main]\ncalls[0]()\n",
    "try:\n    main()\nexcept Exception as e:\n    print(e)\n    raise\n",
    "try:\n    pass\nfinally:\n    main()\n",
    "with open('x') as f:\n    main()\n",
    "while True:\n    main()\n    break\n",
    "for i in range(3):\n    main()\n",
    "x = [main() for i in range(3)]\n",
    "if (x := main()):\n    pass\n",
    "def outer():\n    def inner():\n        main()\n    inner()\nouter()\n",
]


@pytest.mark.parametrize("way", WAYS_TO_MAIN)
def test_functions_are_followed_where_they_are_called(way: str) -> None:
    body = "    x = tf.constant(1)\n    strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    source = TF + "def main(argv=None):\n" + body + way
    assert findings(source) == ["MW101 error 5"]
    assert [item.split()[0] for item in findings(source.replace(way, ""))] == ["MW706"]


@pytest.mark.parametrize(
    "way",
    [
        "import threading\nthreading.Thread(target=main, daemon=True).start()\n",
        "if debug:\n    main()\n",
        "pool.map(main, things)\n",
        "match debug:\n    case 1:\n        main()\n",
    ],
)
def test_functions_that_may_be_called_give_warnings(way: str) -> None:
    body = "    strategy = tf.distribute.MultiWorkerMirroredStrategy()\n"
    early = "def main():\n    x = tf.constant(1)\n" + body
    assert findings(TF + early + way) in (["MW101 warning 5"], [])
    assert "error" not in " ".join(findings(TF + early + way))


@pytest.mark.parametrize(
    "way",
    [
        "DEBUG = False\nif DEBUG:\n    early()\n",
        "if False:\n    early()\n",
        "while False:\n    early()\n",
        "def unused():\n    early()\n",
        "import atexit\natexit.register(early)\n",
        "x = early\n",
        "x = 1 if True else early()\n",
        "False and early()\n",
        "def stop():\n    return 1\n    early()\nstop()\n",
        "for x in []:\n    early()\n",
        "import multiprocessing\np = multiprocessing.Process(target=early)\n",
    ],
)
def test_unreachable_code_gives_no_finding(way: str) -> None:
    early = "def early():\n    return tf.constant(1)\n"
    assert findings(TF + early + way + READY.removeprefix(TF) + FIT) == []


def test_code_after_the_end_of_the_program_is_not_reached() -> None:
    assert findings("import sys\n" + TF + "sys.exit(0)\nx = tf.constant(1)\n" + READY.removeprefix(TF)) == []
    raised = "def no():\n    raise ValueError\nno()\n"
    assert findings(raised + TF + "x = tf.constant(1)\n" + READY.removeprefix(TF)) == []


def test_code_after_an_early_exit_is_unconditional() -> None:
    usage = "import sys\nif len(sys.argv) < 2:\n    sys.exit('usage')\n"
    late = TF + "x = tf.constant(1)\n" + GANG.removeprefix(TF)
    assert findings(usage + late) == ["MW101 error 7"]
    checked = "def check():\n    if not sys.argv:\n        raise SystemExit(2)\ncheck()\n"
    assert findings(usage + checked + late) == ["MW101 error 11"]
    either = "if sys.argv:\n    x = tf.constant(1)\n    sys.exit(0)\n"
    assert findings("import sys\n" + TF + either + GANG.removeprefix(TF)) == []


def test_instances_keep_their_attributes() -> None:
    work = """
class Work:
    def __init__(self, strategy, size=64):
        self.strategy = strategy
        self.size = size * self.strategy.num_replicas_in_sync
        with self.strategy.scope():
            self.model = self.build()
            self.model.compile("sgd", "mse")

    def build(self):
        return tf.keras.Sequential([tf.keras.layers.Dense(1)])

    def data(self):
        return tf.data.Dataset.from_tensor_slices(x).batch(self.size)

    def train(self):
        self.model.fit(self.data(), epochs=3, callbacks=keep)

    def export(self):
        {export}


work = Work(strategy)
work.train()
work.export()
"""
    right = "self.model.save(f'm{self.strategy.cluster_resolver.task_id}')"
    wrong = "if self.strategy.cluster_resolver.task_id == 0:\n            self.model.save('m')"
    assert findings(GANG + BACKUP + work.format(export=right)) == []
    assert [item.split()[0] for item in findings(GANG + BACKUP + work.format(export=wrong))] == ["MW401"]
    late = work.format(export=right).replace("work = Work(strategy)", "x = tf.zeros(1)\nwork = Work(strategy)")
    assert findings(GANG + BACKUP + late) == []


def test_a_script_that_is_too_large_is_given_up() -> None:
    calls = "\n".join(f"def f{n}(x):\n    f{n + 1}(x)\n    f{n + 1}(x)\n    f{n + 1}(x)" for n in range(20))
    source = TF + calls + "\ndef f20(x):\n    pass\nf0(1)\n" + MODEL.replace("with strategy.scope():\n", "if 1:\n")
    assert findings(source + "model.fit(x)\n") == []  # unknown code may have created a strategy
    assert check("def f(x):\n    return f(x + 1)\nf(1)\n") == []
    assert check("f = lambda f: f(f)\nf(f)\n") == []
    assert check("a = 1" + " + 1" * 900 + "\n") == []
    assert check("x = " + "[" * 90 + "]" * 90 + "\n") == []
