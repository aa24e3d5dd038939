"""The command `fleet agent`: its options, and the request that they make."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from fleet.cli.options import (
    RENDEZVOUS,
    CheckpointDir,
    Duration,
    Grace,
    HangTimeout,
    Output,
    Restarts,
    RestartsAfter,
    Timeout,
    parse_count,
    parse_duration,
)
from fleet.cli.program import NoAdapt, Variables
from fleet.cli.runtime import run_command
from fleet.config import DEFAULT_FLEET
from train.agent.protocol.records import GRACE_S, Policy, RestartPolicy
from train.rendezvous.contract import WAIT_S


def agent(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="Training script, e.g. task.py.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments passed to SCRIPT.")
    ] = None,
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Directory to run in.  [default: the current one]")
    ] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Interpreter for SCRIPT.  [default: detected]")
    ] = "",
    env: Variables = None,
    no_adapt: NoAdapt = False,
    grace: Grace = Duration(GRACE_S),
    rendezvous: Annotated[
        str,
        typer.Option(
            "--rendezvous",
            metavar="DIR|tcp://HOST:PORT",
            help="Rendezvous: a directory that all nodes share, or the address of rank 0.  [default: a "
            "directory of the job "
            "in the working directory]",
            show_default=False,
            rich_help_panel=RENDEZVOUS,
        ),
    ] = "",
    secret_file: Annotated[
        str,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="File with the secret for tcp://HOST:PORT.  [default: the variable FLEET_RENDEZVOUS_SECRET]",
            show_default=False,
            rich_help_panel=RENDEZVOUS,
        ),
    ] = "",
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="TIME",
            parser=parse_duration,
            help="How long to wait for the other processes.",
            rich_help_panel=RENDEZVOUS,
        ),
    ] = Duration(WAIT_S),
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="Address of this node for the other nodes.  [default: detected]",
            show_default=False,
            rich_help_panel=RENDEZVOUS,
        ),
    ] = "",
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank",
            metavar="N",
            parser=parse_count,
            help="Rank of this process, from 0.  [default: from the batch system]",
            rich_help_panel=RENDEZVOUS,
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option(
            "--size",
            metavar="N",
            parser=parse_count,
            help="Number of processes.  [default: from the batch system]",
            rich_help_panel=RENDEZVOUS,
        ),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="LIST",
            help="Node list, e.g. node[1-4] or a,b.  [default: from the batch system]",
            show_default=False,
            rich_help_panel=RENDEZVOUS,
        ),
    ] = "",
    restarts: Restarts = 0,
    restart_policy: RestartsAfter = Policy().restart.value,
    timeout: Timeout = 0.0,
    hang_timeout: HangTimeout = 0.0,
    checkpoint_dir: CheckpointDir = "",
) -> None:
    """Run SCRIPT on the nodes of an allocation without SSH.

    Start it once per node with srun, pbsdsh, or mpiexec, e.g. srun fleet agent task.py. The processes find each other
    and run SCRIPT together, in its directory. Rank 0 reports the result.
    """
    from fleet.commands.jobs import agent as verb
    from fleet.jobs.variables import environment
    from provision.allocation.ranks import Given

    def request() -> verb.AgentRequest:
        return verb.AgentRequest(
            script=script,
            arguments=tuple(arguments or ()),
            workdir=workdir,
            python=python,
            env=environment(env or (), (), os.environ),
            adapt=not no_adapt,
            grace_s=grace,
            policy=Policy(
                restart=RestartPolicy(restart_policy),
                restarts=restarts,
                timeout_s=timeout,
                hang_timeout_s=hang_timeout,
            ),
            checkpoint_dir=checkpoint_dir,
            rendezvous=rendezvous,
            secret_file=secret_file,
            address=address,
            wait_s=wait,
            given=Given(rank, size, nodes),
        )

    codes: list[int] = []
    run_command(
        DEFAULT_FLEET,
        Output.LINES,
        lambda sink: codes.append(verb.run(request(), os.environ, sink)),
        prefix=False,
    )
    raise typer.Exit(codes[0])
