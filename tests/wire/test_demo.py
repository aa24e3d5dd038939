"""`fleet demo` with a stand-in for its example; `./scripts/soak tensorflow` runs the example."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from pathlib import Path

import pytest

from fleet.cli import demo
from fleet.cli.runtime import make_services
from fleet.errors import CancelledError, NotReadyError
from fleet.events import Event, JobStarted, Note, ResultsFound
from tests.next_steps import next_lines
from tests.program import Program

pytestmark = pytest.mark.wire

EXAMPLE = """
import os, sys
with open(os.path.join(os.environ["FLEET_MODEL_DIR"], "arguments"), "w") as file:
    file.write(" ".join(sys.argv[1:]))
"""


class _Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass


def test_without_tensorflow_the_demo_names_what_to_install_where(
    program: Program, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(NotReadyError, match="requires TensorFlow") as raised:
        demo.run(2, make_services(yes=True), _Recorder())
    python, *words = shlex.split(next_lines(raised.value))
    assert python == sys.executable
    assert words[:3] == ["-m", "pip", "install"]
    assert [word.split("~=")[0] for word in words[3:]] == ["tensorflow", "tf-keras", "tensorboard", "scipy"]


def test_the_demo_trains_pulls_and_deletes_its_fleet(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = program.script("examples/keras_fit.py", EXAMPLE).parent
    monkeypatch.setattr(demo, "examples", lambda: examples)
    monkeypatch.setenv("FLEET_STATE_DIR", str(program.state))
    monkeypatch.chdir(program.directory)
    sink = _Recorder()
    job = demo.run(2, make_services(yes=True), sink)
    commands = [event.text for event in sink.events if isinstance(event, Note) and event.text.startswith("$ fleet")]
    assert [command.split()[2] for command in commands] == ["up", "train", "pull", "down"]
    assert not any(isinstance(event, ResultsFound) for event in sink.events)  # no advice to do what follows
    assert not any(isinstance(event, Note) and event.text.startswith("next:") for event in sink.events[:-1])
    results = Path("results").absolute() / job
    # after the end of the fleet: where the results are, and what to type
    assert sink.events[-2:] == [Note(f"results: {results}"), Note("next: fleet up --workers 2")]
    model = results / "model" / "arguments"
    assert model.read_text() == "--epochs 3"
    assert not program.processes()
    assert not list((program.state / "local").glob("*"))


def test_an_interrupted_demo_deletes_its_fleet(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = program.script("examples/keras_fit.py", EXAMPLE).parent
    monkeypatch.setattr(demo, "examples", lambda: examples)
    monkeypatch.setenv("FLEET_STATE_DIR", str(program.state))
    monkeypatch.chdir(program.directory)

    class Interrupting(_Recorder):
        def emit(self, event: Event) -> None:
            super().emit(event)
            if isinstance(event, JobStarted):
                raise KeyboardInterrupt

    with pytest.raises(CancelledError, match="the demo was interrupted; its fleet was deleted"):
        demo.run(2, make_services(yes=True), Interrupting())
    assert not program.processes()
    assert not list((program.state / "local").glob("*"))
