"""`./scripts/soak NAME`: campaigns that run longer than the test command."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

import hypothesis
import pytest

from tests.cloud import spending
from tests.cloud.histories import play_histories
from tests.program import set_default_signals
from tests.soak import cloud, faults, fuzz, interrupts, results, standins, tensorflow

_EMULATED = {
    "cloud": cloud.Campaign(
        play_histories,
        "random histories of faults on a fleet on the emulator of Compute Engine",
        "Create and delete fleets under faults, kills, and interruptions; check that nothing is left.",
        1000,
    ),
    "costs": cloud.Campaign(
        spending.play,
        "random histories of a fleet with --max-cost on the emulator of Compute Engine",
        "Create, change, and abandon fleets; check that none costs more than its limit.",
        300,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak", description="Run a long campaign of tests.")
    campaigns = parser.add_subparsers(dest="campaign", required=True, metavar="NAME")
    histories_parser = campaigns.add_parser(
        "faults",
        help="random histories of faults on a fleet of three, and one long job with faults",
        description="Kill and freeze clients, servers, agents, and tasks at random moments; check what is left.",
    )
    histories_parser.add_argument(
        "--seed", type=int, default=None, help="seed of the first history [default: random]"
    )
    histories_parser.add_argument("--histories", type=int, default=1000, help="number of histories [default: 1000]")
    histories_parser.add_argument(
        "--minutes", type=float, default=60.0, help="length of the long job; 0: none [default: 60]"
    )
    histories_parser.add_argument("--lanes", type=int, default=2, help="histories that run side by side [default: 2]")
    histories_parser.add_argument("--keep", type=Path, default=None, help="directory for the output of violations")
    other = campaigns.add_parser(
        "fuzz",
        help="arbitrary and damaged bytes for everything that reads from a network or a host",
        description="Send damaged input to every parser and listener; check that true peers are served afterwards.",
    )
    other.add_argument("--seed", type=int, default=None, help="seed of the first pass [default: random]")
    other.add_argument("--minutes", type=float, default=30.0, help="length [default: 30]")
    for name, emulated in _EMULATED.items():
        cloud.add_parser(campaigns, name, emulated)
    copied = campaigns.add_parser(
        "results",
        help="kills of the client, a link, or a host during fleet pull, train --pull, and fleet down",
        description="Interrupt pulls and deletions; check that no file of a finished job is lost without consent.",
    )
    copied.add_argument("--seed", type=int, default=None, help="seed of the first history [default: random]")
    copied.add_argument("--histories", type=int, default=200, help="number of histories [default: 200]")
    copied.add_argument("--lanes", type=int, default=3, help="histories that run side by side [default: 3]")
    properties = campaigns.add_parser(
        "properties",
        help="random examples for all tests of properties",
        description="Run the tests that use Hypothesis with more examples than the test command.",
    )
    properties.add_argument("--seed", type=int, default=None, help="seed of the examples [default: random]")
    properties.add_argument(
        "--examples", type=int, default=2000, help="number of examples of each test [default: 2000]"
    )
    rounds = {
        "standins": ("every kind of fault on a fleet of three, with stand-in tasks, warm and cold", standins.run),
        "interrupts": ("Ctrl-C and SIGKILL in every state of fleet train and fleet down", interrupts.run),
        "tensorflow": ("all tutorials, and further jobs with TensorFlow", tensorflow.run),
    }
    for name, (help_text, _) in rounds.items():
        repeated = campaigns.add_parser(name, help=help_text, description="Play all cases in random orders.")
        repeated.add_argument("--seed", type=int, default=None, help="seed of the orders [default: random]")
        repeated.add_argument("--rounds", type=int, default=1, help="number of rounds [default: 1]")
    options = parser.parse_args()
    set_default_signals()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    if options.campaign == "fuzz":
        passes = fuzz.run(seed, options.minutes, lambda line: print(line, flush=True))
        print(f"{passes} passes from seed {seed}: nothing found")
        return 0
    if options.campaign == "properties":
        hypothesis.settings.register_profile(
            "soak", max_examples=options.examples, deadline=None, suppress_health_check=[*hypothesis.HealthCheck]
        )
        profile = [
            "--hypothesis-profile=soak",
            f"--hypothesis-seed={seed}",
            "--timeout=0",
            "-Wignore::pytest.PytestAssertRewriteWarning",
        ]
        return pytest.main(["-m", "hypothesis", *profile, "tests/unit", "tests/process"])
    if options.campaign in _EMULATED:
        play = _EMULATED[options.campaign].play
        violations = cloud.run(play, seed, options.histories, lambda line: print(line, flush=True))
        print(f"{options.histories} histories from seed {seed}: {len(violations)} violations {violations or ''}")
        return 1 if violations else 0
    if options.campaign == "results":
        lost = results.run(seed, options.histories, lambda line: print(line, flush=True), options.lanes)
        print(f"{options.histories} histories from seed {seed}: {lost} violations")
        return 1 if lost else 0
    if options.campaign in rounds:
        _, run = rounds[options.campaign]
        violations_found = run(seed, options.rounds, lambda line: print(line, flush=True))
        print(f"{options.rounds} rounds from seed {seed}: {violations_found} violations")
        return 1 if violations_found else 0
    keep = options.keep or Path(tempfile.mkdtemp(prefix="fleet-soak-"))
    campaign = faults.Campaign(seed, options.histories, options.minutes, options.lanes, keep)
    return 1 if campaign.run() else 0


if __name__ == "__main__":
    sys.exit(main())
