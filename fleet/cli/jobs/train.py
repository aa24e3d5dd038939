"""The command `fleet train`: its options, and the request that they make."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from fleet.cli.options import (
    CHECKPOINTS,
    FAILURES,
    TASKS,
    TIMEOUTS,
    CheckpointDir,
    Duration,
    Fleet,
    Grace,
    HangTimeout,
    Output,
    OutputOption,
    Restarts,
    RestartsAfter,
    Timeout,
    parse_duration,
)
from fleet.cli.program import (
    Arguments,
    Data,
    Module,
    NoAdapt,
    NoRequirements,
    RequirementsFile,
    Script,
    Secrets,
    VariableFiles,
    Variables,
    Workdir,
    program_fields,
)
from fleet.cli.runtime import make_ports, resolve_fleet, run_command
from fleet.jobs.policy import SPOT_HOST_TIMEOUT_S
from train.agent.protocol.records import GRACE_S, LINK_TIMEOUT_S, OnHang, Policy, Replication, RestartPolicy

_DEFAULTS = Policy()


def train(
    ctx: typer.Context,
    script: Script = "",
    arguments: Arguments = None,
    module: Module = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the job is running.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the TF_CONFIG and the command of each task; start nothing.")
    ] = False,
    workdir: Workdir = "",
    data: Data = None,
    requirements: RequirementsFile = None,
    no_requirements: NoRequirements = False,
    no_adapt: NoAdapt = False,
    env: Variables = None,
    env_file: VariableFiles = None,
    secret: Secrets = None,
    grace: Grace = Duration(GRACE_S),
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    chief: Annotated[bool, typer.Option("--chief", help="Use a chief task.", rich_help_panel=TASKS)] = False,
    ps: Annotated[
        int,
        typer.Option(
            "--ps",
            metavar="N",
            min=0,
            help="Number of parameter servers.",
            rich_help_panel=TASKS,
        ),
    ] = 0,
    evaluator: Annotated[
        bool,
        typer.Option("--evaluator", help="Add an evaluator task.", rich_help_panel=TASKS),
    ] = False,
    tasks_per_host: Annotated[
        int,
        typer.Option(
            "--tasks-per-host",
            metavar="K",
            min=1,
            help="Tasks per host; GPUs are divided among them.",
            rich_help_panel=TASKS,
        ),
    ] = 1,
    restarts: Restarts = 0,
    restart_policy: RestartsAfter = _DEFAULTS.restart.value,
    backoff: Annotated[
        float,
        typer.Option(
            "--backoff",
            metavar="TIME",
            parser=parse_duration,
            help="Delay before the first restart; doubled each time.",
            rich_help_panel=FAILURES,
        ),
    ] = Duration(_DEFAULTS.backoff_s),
    success_policy: Annotated[
        Literal["all-workers", "chief"] | None,
        typer.Option(
            "--success-policy",
            help="Tasks that must succeed.  [default: all-workers; with --ps chief]",
            rich_help_panel=FAILURES,
        ),
    ] = None,
    spares: Annotated[
        int,
        typer.Option(
            "--spares",
            metavar="N",
            min=0,
            help="Keep N slots as spares.",
            rich_help_panel=FAILURES,
        ),
    ] = 0,
    min_workers: Annotated[
        int | None,
        typer.Option(
            "--min-workers",
            metavar="M",
            min=1,
            help="Continue with as few as M workers if hosts are lost.  [default: all]",
            show_default=False,
            rich_help_panel=FAILURES,
        ),
    ] = None,
    preemptions: Annotated[
        int | None,
        typer.Option(
            "--preemptions",
            metavar="N",
            min=0,
            help="Survive up to N lost hosts without using --restarts.  [default: 0; unlimited on Spot VMs]",
            show_default=False,
            rich_help_panel=FAILURES,
        ),
    ] = None,
    host_timeout: Annotated[
        float | None,
        typer.Option(
            "--host-timeout",
            metavar="TIME",
            parser=parse_duration,
            show_default=False,
            help="How long to wait for a lost host.  "
            f"[default: {Duration(_DEFAULTS.host_timeout_s)}; {Duration(SPOT_HOST_TIMEOUT_S)} on Spot VMs]",
            rich_help_panel=FAILURES,
        ),
    ] = None,
    timeout: Timeout = 0.0,
    start_timeout: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            metavar="TIME",
            parser=parse_duration,
            help="Time until the first training step of an attempt; 0 disables it.",
            rich_help_panel=TIMEOUTS,
        ),
    ] = Duration(_DEFAULTS.start_timeout_s),
    hang_timeout: HangTimeout = 0.0,
    on_hang: Annotated[
        Literal["report", "restart"],
        typer.Option(
            "--on-hang",
            help="What to do if the job hangs: report stacks only, or restart as well.",
            rich_help_panel=TIMEOUTS,
        ),
    ] = _DEFAULTS.on_hang.value,
    link_timeout: Annotated[
        float,
        typer.Option(
            "--link-timeout",
            metavar="TIME",
            parser=parse_duration,
            help="Declare a host lost after this time without a message.",
            rich_help_panel=TIMEOUTS,
        ),
    ] = Duration(LINK_TIMEOUT_S),
    checkpoint_dir: CheckpointDir = "",
    checkpoint_bandwidth: Annotated[
        float,
        typer.Option(
            "--checkpoint-bandwidth",
            metavar="MIB_S",
            min=0,
            help="Replication bandwidth per host in MiB/s; 0 disables replication.",
            rich_help_panel=CHECKPOINTS,
        ),
    ] = Replication().mib_s,
) -> None:
    """Run a training script on all workers.

    Uploads the script's directory, starts every worker with its TF_CONFIG, and streams the logs. Ctrl-C detaches; the
    job keeps running. Use -m MODULE for a module, or give any command after --.
    """
    from fleet.commands.jobs import train as verb
    from fleet.jobs.policy import replication
    from fleet.jobs.tasks import TaskTypes, success

    def request() -> verb.TrainRequest:
        return verb.TrainRequest(
            **program_fields(ctx),
            detach=detach,
            dry_run=dry_run,
            grace_s=grace,
            spares=spares,
            link_timeout_s=link_timeout,
            task_types=TaskTypes(chief, ps, evaluator, tasks_per_host),
            replication=replication(checkpoint_dir, checkpoint_bandwidth),
            preemptions=preemptions,
            host_timeout_s=host_timeout,
            policy=Policy(
                restart=RestartPolicy(restart_policy),
                restarts=restarts,
                success=success(success_policy, ps),
                min_workers=min_workers or 0,
                backoff_s=backoff,
                timeout_s=timeout,
                start_timeout_s=start_timeout,
                hang_timeout_s=hang_timeout,
                on_hang=OnHang(on_hang),
            ),
        )

    run_command(resolve_fleet(fleet), output, lambda sink: verb.run(request(), make_ports(sink), sink))
