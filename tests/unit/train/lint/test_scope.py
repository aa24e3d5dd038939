from __future__ import annotations

import pytest

from tests.unit.train.lint.programs import BACKUP, DATA, FIT, GANG, LOOP, MODEL, READY_LOOP, RESOLVER, check, findings

OUTSIDE = 'model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\nmodel.compile("sgd", "mse")\n'
STEPS = "for batch in shared:\n    step(batch)\n"
MODERN = {"tensorflow": "2.21.0", "keras": "3.15.1", "tf_keras": "2.21.0"}


def rules(source: str) -> list[str]:
    return [item.rule for item in check(source)]


# --- MW201: the model ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "model",
    [
        OUTSIDE,
        "def build():\n    m = tf.keras.Sequential()\n    m.compile('sgd')\n    return m\nmodel = build()\n",
        "class Net(tf.keras.Model):\n    pass\nmodel = Net()\nmodel.compile('sgd')\n",
        "i = tf.keras.Input((2,))\no = tf.keras.layers.Dense(1)(i)\nmodel = tf.keras.Model(i, o)\n",
        "model = tf.keras.applications.MobileNetV2(weights=None)\nmodel.compile('sgd')\n",
        "model = tf.keras.models.load_model('x')\n",
        "model = tf.keras.Sequential()\nwith strategy.scope():\n    model.compile('sgd')\n",
        "with strategy.scope():\n    data = 1\nmodel = tf.keras.Sequential()\nmodel.compile('sgd')\n",
    ],
)
def test_a_model_outside_of_the_scope_is_reported(model: str) -> None:
    result = [item for item in check(GANG + DATA + model + BACKUP + FIT) if item.rule == "MW201"]
    assert len(result) == 1
    assert result[0].severity.value == "error"
    assert "tf.keras" in (GANG + DATA + model).splitlines()[result[0].line - 1] or "Net()" in model


@pytest.mark.parametrize(
    "model",
    [
        MODEL,
        "with strategy.scope():\n    model = build_from_elsewhere()\n",
        "def build():\n    m = tf.keras.Sequential()\n    m.compile('sgd')\n    return m\n"
        "with strategy.scope():\n    model = build()\n",
        # compile may be outside: it enters the model's scope
        "with strategy.scope():\n    model = tf.keras.Sequential()\nmodel.compile('sgd', metrics=['accuracy'])\n",
        # scopes in an unusual form
        "scope = strategy.scope()\nwith scope:\n    model = tf.keras.Sequential()\n",
        "strategy.scope().__enter__()\nmodel = tf.keras.Sequential()\n",
        "import contextlib\nstack = contextlib.ExitStack()\nstack.enter_context(strategy.scope())\n"
        "model = tf.keras.Sequential()\n",
        "import contextlib\n@contextlib.contextmanager\ndef entered():\n    with strategy.scope():\n        yield\n"
        "with entered():\n    model = tf.keras.Sequential()\n",
        "with tf.device('/cpu:0'), strategy.scope():\n    model = tf.keras.Sequential()\n",
        "tf.distribute.experimental_set_strategy(strategy)\nmodel = tf.keras.Sequential()\n",
        "with strategy.scope(), open('log') as log:\n    if small:\n        model = tf.keras.Sequential()\n"
        "    else:\n        model = tf.keras.models.load_model('x')\n",
        "model = build_from_elsewhere()\n",
        "class Work:\n    def __init__(self, s):\n        self.s = s\n"
        "    def make(self):\n        with self.s.scope():\n            self.model = tf.keras.Sequential()\n"
        "work = Work(strategy)\nwork.make()\nmodel = work.model\n",
    ],
)
def test_a_model_inside_or_of_unknown_place_gives_no_finding(model: str) -> None:
    assert "MW201" not in rules(GANG + DATA + model + BACKUP + FIT)


def test_a_model_that_is_not_trained_together_gives_no_finding() -> None:
    source = GANG + DATA + MODEL + BACKUP + FIT + "other = tf.keras.models.load_model('x')\nother.predict(x)\n"
    assert findings(source) == []
    branches = "if many:\n    " + GANG.splitlines()[-1] + "\nelse:\n    " + OUTSIDE.replace("\n", "\n    ")
    assert "MW201" not in rules(GANG.rpartition("strategy")[0] + branches + "\n    model.fit(x)\n")


def test_a_model_outside_with_a_custom_loop_is_reported() -> None:
    source = READY_LOOP.replace("with strategy.scope():\n    model =", "model =")
    source = source.replace("\n    optimizer =", "\nwith strategy.scope():\n    optimizer =")
    assert "MW201" in rules(source + STEPS)
    assert "MW201" not in rules(READY_LOOP + STEPS)


# --- MW202: optimizer and metrics ---------------------------------------------------------------------------------


def test_an_optimizer_outside_of_the_scope_is_reported() -> None:
    optimizer = "optimizer = tf.keras.optimizers.Adam()\n"
    source = GANG + DATA + optimizer + LOOP.replace("    " + optimizer, "") + STEPS
    assert findings(source) == ["MW202 warning 6"]
    assert [f"{i.rule} {i.severity.value}" for i in check(source, versions=MODERN)] == ["MW202 error"]
    assert check(source, versions={"tensorflow": "2.15.1", "keras": "2.15.0"}) == []
    assert findings(READY_LOOP + STEPS) == []


@pytest.mark.parametrize(
    ("compiled", "expected"),
    [
        ("metrics=[tf.keras.metrics.SparseCategoricalAccuracy()]", ["MW202 error 9"]),
        ("metrics=['accuracy', tf.keras.metrics.Mean()]", ["MW202 error 9"]),
        ("metrics=['accuracy']", []),
        ("metrics=mine", []),
    ],
)
def test_metrics_outside_of_the_scope_are_reported(compiled: str, expected: list[str]) -> None:
    model = "with strategy.scope():\n    model = tf.keras.Sequential()\n"
    outside = model + f"model.compile('sgd', 'mse',\n    {compiled})\n"
    assert findings(GANG + DATA + outside + BACKUP + FIT) == expected
    inside = model + f"    model.compile('sgd', 'mse',\n    {compiled})\n"
    assert findings(GANG + DATA + inside + BACKUP + FIT) == []


# --- MW203: variables ---------------------------------------------------------------------------------------------

OWN = """
{place}
@tf.function
def step(batch):
    def learn(batch):
        with tf.GradientTape() as tape:
            loss = w * batch
        gradients = tape.gradient(loss, [w])
        w.assign_sub(gradients[0])
    strategy.run(learn, args=(batch,))
for batch in strategy.experimental_distribute_dataset(data):
    step(batch)
"""


def test_a_trained_variable_outside_of_the_scope_is_reported() -> None:
    assert rules(GANG + DATA + OWN.format(place="w = tf.Variable(1.0)")) == ["MW203"]
    assert rules(GANG + DATA + OWN.format(place="with strategy.scope():\n    w = tf.Variable(1.0)")) == []
    assert rules(GANG + DATA + OWN.format(place="w = somewhere.w\nepoch = tf.Variable(0)")) == []


# --- MW204: gradients ---------------------------------------------------------------------------------------------


def test_gradients_outside_of_replicas_are_reported() -> None:
    direct = READY_LOOP + "for batch in data:\n    learn(batch)\n"
    assert "MW204" in rules(direct)
    assert "MW204" not in rules(READY_LOOP + STEPS)
    assert "MW204" not in rules(READY_LOOP)  # never called
    other = (
        "class Net(tf.keras.Model):\n    def train_step(self, data):\n        self.optimizer.apply_gradients([])\n"
    )
    model = MODEL.replace("tf.keras.Sequential([tf.keras.layers.Dense(10)])", "Net()")
    assert findings(GANG + DATA + other + model + BACKUP + FIT) == []


# --- MW205: the mean of a loss ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reduction", "expected"),
    [
        ("", ["MW205"]),
        ("reduction='sum_over_batch_size'", ["MW205"]),
        ("reduction=tf.keras.losses.Reduction.AUTO", ["MW205"]),
        ("reduction='none'", []),
        ("reduction=tf.keras.losses.Reduction.SUM", []),
        ("reduction=which", []),
        ("**options", []),
    ],
)
def test_the_mean_of_a_loss_is_reported(reduction: str, expected: list[str]) -> None:
    assert rules(READY_LOOP.replace('reduction="none"', reduction) + STEPS) == expected


def test_the_mean_of_a_loss_in_compile_gives_no_finding() -> None:
    model = MODEL.replace('loss="mse"', "loss=tf.keras.losses.MeanSquaredError()")
    assert findings(GANG + RESOLVER + DATA + model + BACKUP + FIT) == []
