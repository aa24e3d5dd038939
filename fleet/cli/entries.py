"""The commands of the program, without importing them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_PROVIDERS = "fleet.cli.provider_options:WithProviders"
_SCOPES = "fleet.cli.provider_options:WithScopes"
_JOBS = "fleet.cli.application:WithJobs"


class Entry(NamedTuple):
    """A command of the program before it is imported.

    Attributes:
        panel: Its group in the help.
        function: Its function, ``module:name``; lines after ``Examples:`` of the docstring are not wrapped.
        summary: The first line of the docstring.
        kind: Its class, ``module:name``; empty: Typer's own.
    """

    panel: str
    function: str
    summary: str
    kind: str = ""


ENTRIES: Mapping[str, Entry] = {
    "demo": Entry("Start", "fleet.cli.demo:demo", "Run a complete example on this computer."),
    "doctor": Entry(
        "Start", "fleet.cli.fleets.doctor:doctor", "Diagnose missing prerequisites and how to fix them.", _PROVIDERS
    ),
    "up": Entry(
        "Fleets",
        "fleet.cli.fleets.up:up",
        "Create, repair, or resize a fleet.",
        _PROVIDERS,
    ),
    "bake": Entry("Fleets", "fleet.cli.fleets.bake:bake", "Create an image of a prepared host.", _PROVIDERS),
    "status": Entry("Fleets", "fleet.cli.fleets.status:status", "Show fleets, hosts, and running jobs."),
    "extend": Entry("Fleets", "fleet.cli.fleets.extend:extend", "Change the lifetime of a cloud fleet."),
    "down": Entry("Fleets", "fleet.cli.fleets.down:down", "Delete the fleet and all its files."),
    "gc": Entry("Fleets", "fleet.cli.fleets.gc:gc", "Find and delete orphaned resources.", _SCOPES),
    "ssh": Entry(
        "Hosts",
        "fleet.cli.fleets.ssh:ssh",
        "Open a shell on a host, or run one command.",
        "fleet.cli.fleets.ssh:WithJob",
    ),
    "exec": Entry(
        "Hosts",
        "fleet.cli.fleets.exec:exec_",
        "Run a command on all hosts at the same time.",
        "fleet.cli.program:WithProgram",
    ),
    "push": Entry("Hosts", "fleet.cli.fleets.push:push", "Copy files from this computer to the hosts."),
    "ssh-config": Entry(
        "Hosts",
        "fleet.cli.fleets.ssh_config:ssh_config",
        "Let ssh and editors reach hosts by name: ssh NAME-worker-1.",
    ),
    "inventory": Entry(
        "Hosts", "fleet.cli.fleets.inventory:inventory", "Export the hosts of a fleet for other programs."
    ),
    "lint": Entry("Jobs", "fleet.cli.jobs.lint:lint", "Find distributed-training bugs in SCRIPT without running it."),
    "check": Entry(
        "Jobs", "fleet.cli.jobs.check:check", "Check that the hosts can run SCRIPT.", "fleet.cli.program:WithTrial"
    ),
    "train": Entry(
        "Jobs", "fleet.cli.jobs.train:train", "Run a training script on all workers.", "fleet.cli.program:WithResume"
    ),
    "logs": Entry("Jobs", "fleet.cli.jobs.logs:logs", "Show the logs of a job.", _JOBS),
    "stop": Entry("Jobs", "fleet.cli.jobs.stop:stop", "Stop the running job; keep the fleet.", _JOBS),
    "rerun": Entry(
        "Jobs", "fleet.cli.jobs.rerun:rerun", "Run a job again with the current files of its directory.", _JOBS
    ),
    "agent": Entry(
        "Jobs",
        "fleet.cli.jobs.agent:agent",
        "Run SCRIPT on the nodes of an allocation without SSH.",
        "fleet.cli.application:Grouped",
    ),
    "jobs": Entry(
        "Results", "fleet.cli.jobs.jobs:jobs", "List the jobs that the hosts store, or delete them.", _JOBS
    ),
    "pull": Entry("Results", "fleet.cli.jobs.pull:pull", "Copy the results of a job to this computer.", _JOBS),
    "tensorboard": Entry(
        "Results", "fleet.cli.jobs.tensorboard:tensorboard", "Show the curves of a job in TensorBoard.", _JOBS
    ),
    "report": Entry(
        "Results", "fleet.cli.jobs.report:report", "Write a page about a job, and a capsule that repeats it.", _JOBS
    ),
    "compare": Entry(
        "Results", "fleet.cli.jobs.compare:compare", "Compare two jobs: arguments, code, versions, metrics.", _JOBS
    ),
}
"""The commands by group in the order of use."""
