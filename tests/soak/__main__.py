"""`./scripts/soak NAME`: campaigns that run longer than the test command."""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import hypothesis
import pytest

from tests.cloud import spending
from tests.cloud.histories import play_histories
from tests.emulator import Emulator
from tests.program import set_default_signals
from tests.soak import cases, fuzz, histories, hour, results, tensorflow
from tests.soak.cases import Case, run_cases

Options = argparse.Namespace
_LANES = {"--lanes": (2, "cases that run side by side")}


def _faults(options: Options) -> int:
    hit = Counter[str]()
    seeds = range(options.seed, options.seed + options.histories)
    short: list[Case] = [(f"seed {seed}", partial(histories.play, seed, hit)) for seed in seeds]
    long = [("the long job", partial(hour.play, options.seed, options.minutes, hit))] if options.minutes else []
    return _with_figures([*long, *short], options.lanes + len(long), hit)


def _results(options: Options) -> int:
    hit = Counter[str]()
    seeds = range(options.seed, options.seed + options.histories)
    return _with_figures([(f"seed {seed}", partial(results.play, seed, hit)) for seed in seeds], options.lanes, hit)


def _with_figures(played: list[Case], lanes: int, hit: Counter[str]) -> int:
    violations = run_cases(played, lanes)
    print(
        f"{hit.total()} faults and events:",
        *(f"  {count:5}  {name}" for name, count in sorted(hit.items())),
        sep="\n",
    )
    return violations


def _emulated(play: Callable[..., None], options: Options) -> int:
    with Emulator(operation_s=0.003) as emulator:
        seeds = range(options.seed, options.seed + options.histories)
        return run_cases((f"seed {seed}", partial(play, [seed], emulator)) for seed in seeds)


def _rounds(make: Callable[[random.Random], Iterator[Case]], options: Options) -> int:
    chance = random.Random(options.seed)
    return run_cases(case for _ in range(options.rounds) for case in make(chance))


def _properties(options: Options) -> int:
    checks = [*hypothesis.HealthCheck]
    hypothesis.settings.register_profile(
        "soak", max_examples=options.examples, deadline=None, suppress_health_check=checks
    )
    profile = ["--hypothesis-profile=soak", f"--hypothesis-seed={options.seed}", "--timeout=0"]
    words = ["-m", "hypothesis", *profile, "-Wignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*words, "tests/unit", "tests/process"]))


class Campaign(NamedTuple):
    """A campaign.

    Attributes:
        run: Plays it; returns the number of violations.
        summary: One line of help.
        amounts: Its options, each with its default and its help.
    """

    run: Callable[[Options], int]
    summary: str
    amounts: dict[str, tuple[Any, str]]


def _histories(count: int) -> dict[str, tuple[Any, str]]:
    return {"--histories": (count, "number of histories")}


_ROUNDS = {"--rounds": (1, "number of rounds, each of all cases in a random order")}
CAMPAIGNS = {
    "faults": Campaign(
        _faults,
        "kills and stops of clients, servers, agents, and tasks at random moments, and one long job with faults",
        {**_histories(1000), "--minutes": (60.0, "length of the long job; 0: none"), **_LANES},
    ),
    "fuzz": Campaign(
        lambda options: run_cases(fuzz.passes(options.seed, options.minutes)),
        "arbitrary and damaged bytes for everything that reads from a network or a host",
        {"--minutes": (30.0, "length")},
    ),
    "cloud": Campaign(
        partial(_emulated, play_histories),
        "random histories of faults on a fleet on the emulator of Compute Engine: nothing is left",
        _histories(1000),
    ),
    "costs": Campaign(
        partial(_emulated, spending.play),
        "random histories of a fleet with --max-cost on the emulator: none costs more than its limit",
        _histories(300),
    ),
    "results": Campaign(
        _results,
        "kills of the client, a link, or a host during fleet pull, train --pull, and fleet down: no file is lost",
        {**_histories(200), **_LANES},
    ),
    "properties": Campaign(
        _properties,
        "the tests that use Hypothesis with more examples than the test command",
        {"--examples": (2000, "number of examples of each test")},
    ),
    "standins": Campaign(
        partial(_rounds, cases.standins),
        "every kind of fault on a fleet of three, with stand-in tasks, warm and cold, and simulated histories",
        _ROUNDS,
    ),
    "interrupts": Campaign(
        partial(_rounds, cases.interrupts),
        "Ctrl-C and SIGKILL in every state of fleet train and fleet down",
        _ROUNDS,
    ),
    "tensorflow": Campaign(
        partial(_rounds, tensorflow.cases), "all tutorials, and further jobs with TensorFlow", _ROUNDS
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Run a long campaign of tests.")
    commands = parser.add_subparsers(dest="campaign", required=True, metavar="NAME")
    seed = random.SystemRandom().randrange(10**6)
    for name, campaign in CAMPAIGNS.items():
        command = commands.add_parser(name, help=campaign.summary, description=campaign.summary)
        command.add_argument("--seed", type=int, default=seed, help="seed of the first case [default: random]")
        for option, (default, text) in campaign.amounts.items():
            command.add_argument(option, type=type(default), default=default, help=f"{text} [default: %(default)s]")
    options = parser.parse_args()
    set_default_signals()
    print(f"seed {options.seed}", flush=True)
    return 1 if CAMPAIGNS[options.campaign].run(options) else 0


if __name__ == "__main__":
    sys.exit(main())
