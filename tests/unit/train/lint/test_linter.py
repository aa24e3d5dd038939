from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.train.lint.cases import Case, check, read_cases, script, sources_of
from train.lint.finding import Severity
from train.lint.linter import UNREADABLE, lint
from train.lint.script import RULES
from train.script.source import imports, source_of

ROOT = Path(__file__).parents[4]
LATE = "x = tf.constant(1)\nstrategy = tf.distribute.MultiWorkerMirroredStrategy()"


@pytest.mark.parametrize("case", read_cases(), ids=lambda case: case.name)
def test_each_script_has_its_findings(case: Case) -> None:
    result = lint(sources_of(case.sources), **{"workers": 2, **case.options})
    assert sorted(f"{item.location} {item.rule} {item.severity.value}" for item in result) == sorted(case.expected)
    for text in case.texts:
        assert any(text in (item.message, item.reason, item.fix) for item in result), text


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("train/examples/keras_fit.py", []),
        ("train/examples/custom_loop.py", []),
        ("train/examples/generator.py", []),
        ("tests/e2e/scripts/keras_tutorial/main.py", ["main.py:18 MW405 hint", "mnist_setup.py:24 MW308 hint"]),
        (
            "tests/e2e/scripts/loop_tutorial/main.py",
            [
                "main.py:67 MW406 warning",
                "main.py:69 MW403 warning",
                "main.py:88 MW407 warning",
                "mnist.py:15 MW309 warning",
            ],
        ),
    ],
)
def test_examples_and_tutorials(path: str, expected: list[str]) -> None:
    file = ROOT / path
    result = lint(imports(file, file.parent), workers=5)
    assert [f"{item.location} {item.rule} {item.severity.value}" for item in result] == expected


def test_a_finding_has_a_message_a_reason_and_a_fix() -> None:
    (result,) = check("@TF", LATE)
    assert (result.rule, result.file, result.line, result.column) == ("MW101", "task.py", 4, 12)
    assert (result.location, result.severity) == ("task.py:4", Severity.ERROR)
    message = "MultiWorkerMirroredStrategy is created after tf.constant (line 3) has started TensorFlow's runtime"
    assert result.message == message
    assert result.reason
    assert result.fix
    (result,) = check("é = 'ü'; x = input('é')")
    assert result.column == 14  # in characters


def test_findings_are_ordered_by_file_and_line() -> None:
    result = check("import z\nimport a\ninput()\n--- a.py\ninput()\n--- z.py\ninput()\ninput()")
    assert [item.location for item in result] == ["task.py:3", "a.py:1", "z.py:1", "z.py:2"]


def test_modules_are_found_next_to_the_script_in_a_directory() -> None:
    sources = {"src/task.py": "import lib.data\n" + script("@GANG"), "src/lib/data.py": script("@TF", "tf.zeros(1)")}
    assert [(item.rule, item.file) for item in lint(sources_of(sources), workers=2)] == [("MW101", "src/task.py")]


# --- suppression and files that do not compile ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("comment", "silent"),
    [
        ("  # fleet: ignore[MW101]", True),
        ("  # fleet: ignore", True),
        ("  #fleet:ignore[MW999, MW101]", True),
        ("  # Fleet: ignore[mw101]", True),
        ("  # fleet: ignore[MW102]", False),
        ("  # fleet: ignore[]", False),
        ("  # ignore[MW101]", False),
        ("\n# fleet: ignore[MW101]", False),
        ("; s = '# fleet: ignore[MW101]'", False),
    ],
)
def test_a_comment_suppresses_rules_in_its_statement(comment: str, silent: bool) -> None:
    assert (check("@TF", LATE + comment) == []) is silent


def test_a_comment_on_any_line_of_a_statement_counts() -> None:
    fit = "model.fit(\n    data,\n    epochs=3,  # fleet: ignore[MW405]\n)"
    assert check("@READY", fit) == []
    assert [item.line for item in check("@READY", fit.replace("MW405", "MW404"))] == [12]
    assert [item.line for item in check("@READY", "if True:  # fleet: ignore\n    model.fit(data, epochs=3)")] == [13]


@pytest.mark.parametrize("source", ["x = 1\nx =", "return 1", "\tx\n  y", "x = '", "# coding: nothing", "\0"])
def test_a_script_that_does_not_compile_is_an_error(source: str) -> None:
    (result,) = check(source)
    assert (result.rule, result.severity, result.file) == (UNREADABLE, Severity.ERROR, "task.py")
    assert result.line in (1, 2)


def test_a_module_that_does_not_compile_is_a_warning() -> None:
    result = check("import a", "@TF", LATE, "--- a.py", "x =")
    assert [(item.rule, item.severity.value, item.file) for item in result] == [
        ("MW101", "error", "task.py"),
        ("MW001", "warning", "a.py"),
    ]
    assert lint([], workers=2) == []


# --- any script ---------------------------------------------------------------------------------------------------

SIMPLE = [
    *[line for line in script("@READY", "@FIT").splitlines() if line[:1] not in (" ", "w")],
    "checkpoint = tf.train.Checkpoint(model=model); checkpoint.save(x); x.assign_add(1)",
    "break", "return x", "yield x", "await x", "pass", "x = y = z", "del x, y[0], z.a", "global x", "nonlocal x",
    "import a.b as c, d", "from . import x", "from a import *", "assert x, y", "raise A from b", "a[1:2] = *b, c",
    "a.b.c += d @ e", "(a, *b), c = d", "x: int = 3", "f(*a, **b)(c)[d].e", "f'{a!r:>{b}}'", "{**a, 'b': c, **d}",
    "[a for b in c if d for e in f]", "{a: b for a, b in c}", "a if b else c", "not a and b or c", "-a < b < c",
    "(a := b)", "os.environ['TF_CONFIG'] = '{}'", "sys.exit(0)", "x = x(x)", "step(next(iter(shared)))", "data.a = 1",
    "model.save('m')", "strategy.run(main, args=(x,))", "callbacks=[]; callbacks.append(A())", "x = [x, *x]; x[0]()",
    "model.fit(data, callbacks=[A()])", "options = tf.data.Options(); options.a.auto_shard_policy = x", "A().f()",
]  # fmt: skip
COMPOUND = [
    "for x in shared:\n{}else:\n{}", "while x:\n{}", "while True:\n{}", "if task_id == 0:\n{}", "if x:\n{}else:\n{}",
    "try:\n{}except (A, b.C) as e:\n{}else:\n{}finally:\n{}", "try:\n{}except:\n{}", "def f(*a, b=1, **k):\n{}",
    "class A(tf.keras.Model, *b, metaclass=M):\n{}", "class A(A):\n    def on_epoch_end(self):\n        self.f()\n{}",
    "with strategy.scope() as s, c:\n{}", "async def f(x):\n{}", "match x:\n    case [A(b=1), *c] if d:\n    {}",
    "@tf.function\ndef main(x):\n{}", "with x:\n{}",
]  # fmt: skip


def compound(blocks: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    bodies = st.lists(blocks, min_size=1, max_size=3).map("".join)
    return st.builds(
        lambda head, *inside: head.format(*(indent(body, "    ") for body in inside)),
        st.sampled_from(COMPOUND),
        *[bodies] * 4,
    )


BLOCKS = st.recursive(st.sampled_from(SIMPLE).map("{}\n".format), compound, max_leaves=12)


@given(st.lists(BLOCKS, max_size=8).map("".join), st.booleans())
def test_no_script_makes_the_linter_raise(source: str, inside: bool) -> None:
    if inside:
        source = f"def main(x):\n    x\n{indent(source, '    ')}\nmain(1)\n"
    for workers in (1, 3):
        sources = {"task.py": script("@READY") + source, "a/b.py": source}
        for item in lint(sources_of(sources), workers=workers, gpus=0):
            assert item.rule in (UNREADABLE, *RULES)
            assert min(item.line, item.column) >= 1


@given(st.text(max_size=60))
def test_no_text_makes_it_raise(source: str) -> None:
    lint(sources_of({"task.py": source}), workers=2)


def test_a_script_that_is_too_large_is_given_up() -> None:
    calls = "\n".join(f"def f{n}(x):\n    f{n + 1}(x)\n    f{n + 1}(x)\n    f{n + 1}(x)" for n in range(20))
    end = "def f20(x):\n    pass\nf0(1)\nmodel = tf.keras.Sequential()\nmodel.fit(x)"
    assert check("@TF", calls, end) == []  # the code that is not followed may have created a strategy
    for source in ("def f(x):\n    return f(x + 1)\nf(1)", "f = lambda f: f(f)\nf(f)", "x = " + "[" * 90 + "]" * 90):
        assert check(source) == []
    assert check("a = 1" + " + 1" * 900) == []


@pytest.mark.parametrize("directory", ["train", "provision"])
def test_programs_that_do_not_train_give_no_finding(directory: str) -> None:
    for path in sorted((ROOT / directory).rglob("*.py"))[::9]:
        if "examples" not in path.parts:
            # The main function of a module is called by another module (MW706).
            result = lint([source_of("task.py", path.read_bytes())], workers=2)
            assert [item for item in result if item.rule != "MW706"] == [], path


# --- documents ----------------------------------------------------------------------------------------------------


def test_every_rule_is_described() -> None:
    page = (ROOT / "docs" / "lint.md").read_text()
    assert re.findall(r"^\| (MW\d{3}) ", page, re.MULTILINE) == sorted([UNREADABLE, *RULES])


def test_the_correct_script_of_the_documents_gives_no_finding() -> None:
    page = (ROOT / "docs" / "lint.md").read_text()
    scripts = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert scripts
    for source in scripts:
        assert check(source) == []
