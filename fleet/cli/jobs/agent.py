"""The command `fleet agent`: its options, and the request that they make."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fleet.cli import options, policy_options
from fleet.cli.options import RENDEZVOUS, Duration, Output, argument, duration, option, parse_count, select_fields
from fleet.cli.program import NoAdapt, Variables
from fleet.cli.runtime import run_command
from fleet.config import DEFAULT_FLEET
from train.agent.protocol.records import GRACE_S, Policy
from train.rendezvous.contract import WAIT_S

_BATCH = "from the batch system"


def agent(
    ctx: typer.Context,
    script: Annotated[str, argument("SCRIPT", "Training script, e.g. task.py.")],
    arguments: Annotated[list[str] | None, argument("-- ARGS", "Arguments passed to SCRIPT.")] = None,
    workdir: Annotated[str, option("--workdir", "Directory to run in.", "DIR", default="the current one")] = "",
    python: Annotated[str, option("--python", "Interpreter for SCRIPT.", "PATH", default="detected")] = "",
    env: Variables = None,
    no_adapt: NoAdapt = False,
    grace_s: options.Grace = Duration(GRACE_S),
    rendezvous: Annotated[
        str,
        option(
            "--rendezvous",
            "Rendezvous: a directory that all nodes share, or the address of rank 0.",
            "DIR|tcp://HOST:PORT",
            default="a directory of the job in the working directory",
            panel=RENDEZVOUS,
        ),
    ] = "",
    secret_file: Annotated[
        str,
        option(
            "--secret-file",
            "File with the secret for tcp://HOST:PORT.",
            "FILE",
            default="the variable FLEET_RENDEZVOUS_SECRET",
            panel=RENDEZVOUS,
        ),
    ] = "",
    wait_s: Annotated[
        float, duration("--wait", "How long to wait for the other processes.", panel=RENDEZVOUS)
    ] = Duration(WAIT_S),
    address: Annotated[
        str,
        option(
            "--address", "Address of this node for the other nodes.", "ADDRESS", default="detected", panel=RENDEZVOUS
        ),
    ] = "",
    rank: Annotated[
        int | None,
        option("--rank", "Rank of this process, from 0.", "N", parser=parse_count, default=_BATCH, panel=RENDEZVOUS),
    ] = None,
    size: Annotated[
        int | None,
        option("--size", "Number of processes.", "N", parser=parse_count, default=_BATCH, panel=RENDEZVOUS),
    ] = None,
    nodes: Annotated[
        str, option("--nodes", "Node list, e.g. node[1-4] or a,b.", "LIST", default=_BATCH, panel=RENDEZVOUS)
    ] = "",
    restarts: policy_options.Restarts = 0,
    restart: policy_options.RestartsAfter = Policy().restart,
    timeout_s: policy_options.Timeout = 0.0,
    hang_timeout_s: policy_options.HangTimeout = 0.0,
    checkpoint_dir: policy_options.CheckpointDir = "",
) -> None:
    """Run SCRIPT on the nodes of an allocation without SSH.

    Start it once per node with srun, pbsdsh, or mpiexec, e.g. srun fleet agent task.py. The processes find each other
    and run SCRIPT together, in its directory. Rank 0 reports the result.

    Examples:
      srun fleet agent task.py
      mpiexec -n 4 fleet agent task.py -- --epochs 5
    """
    from fleet.commands.jobs import agent as verb
    from fleet.jobs.environment import environment
    from provision.allocation.ranks import Given

    def request() -> verb.AgentRequest:
        changed = {
            "arguments": tuple(arguments or ()),
            "env": environment(env or (), (), os.environ),
            "adapt": not no_adapt,
            "policy": Policy(**select_fields(Policy, ctx.params)),
            "given": Given(rank, size, nodes),
        }
        return verb.AgentRequest(**{**select_fields(verb.AgentRequest, ctx.params), **changed})

    codes: list[int] = []
    run_command(
        DEFAULT_FLEET, Output.LINES, lambda sink: codes.append(verb.run(request(), os.environ, sink)), prefix=False
    )
    raise typer.Exit(codes[0])
