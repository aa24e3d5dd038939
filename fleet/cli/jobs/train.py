"""The command `fleet train`: its options, and the request that they make."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fleet.cli import options, policy_options
from fleet.cli.again import REPEATED, Repeated, find_remembered, remembered, run_again, run_capsule
from fleet.cli.completion import complete_job
from fleet.cli.options import (
    CHECKPOINTS,
    FAILURES,
    TASKS,
    TIMEOUTS,
    Duration,
    Output,
    duration,
    option,
    select_fields,
)
from fleet.cli.program import TYPED, add_program_options, read_program_fields
from fleet.cli.runtime import make_services, resolve_fleet, run_command
from fleet.jobs.policy import SPOT_HOST_TIMEOUT_S
from train.agent.protocol.records import GRACE_S, LINK_TIMEOUT_S, OnHang, Policy, Replication, SuccessPolicy

if TYPE_CHECKING:
    from fleet.events import Sink

_DEFAULTS = Policy()


@add_program_options
def train(
    ctx: typer.Context,
    name: Annotated[
        str,
        option("--name", "Name of the job, for commands that take a job.", "NAME", default="none"),
    ] = "",
    detach: Annotated[
        bool, option("--detach", "Return as soon as the job is running, or queued.", short="-d")
    ] = False,
    after: Annotated[
        str | None,
        option(
            "--after",
            "Queue the job on the hosts: it starts when JOB, the last job by default, has ended.",
            "[JOB]",
            default="start now",
            autocompletion=complete_job,
        ),
    ] = None,
    pull: Annotated[
        str, option("--pull", "Copy the results to DIR when the job has ended.", "DIR", default="not copied")
    ] = "",
    warm: Annotated[
        bool,
        option(
            "--warm/--cold", "Fork tasks from a process that has imported TensorFlow; see docs/scripts.md.", rare=True
        ),
    ] = True,
    verbose: Annotated[
        bool, option("--verbose", "Report for each task if it was forked, and if not, why.", short="-v", rare=True)
    ] = False,
    grace_s: options.Grace = Duration(GRACE_S),
    from_capsule: Annotated[
        str,
        option(
            "--from-capsule",
            "Repeat the job of a capsule that fleet report wrote.",
            "FILE",
            default="none",
            rare=True,
        ),
    ] = "",
    dry_run: Annotated[
        bool, option("--dry-run", "Show the TF_CONFIG and the command of each task; start nothing.")
    ] = False,
    raw: options.Raw = False,
    output: options.OutputOption = Output.AUTO,
    chief: Annotated[bool, option("--chief", "Use a chief task.", panel=TASKS)] = False,
    ps: Annotated[int, option("--ps", "Number of parameter servers.", "N", min=0, panel=TASKS)] = 0,
    evaluator: Annotated[bool, option("--evaluator", "Add an evaluator task.", panel=TASKS, rare=True)] = False,
    tasks_per_host: Annotated[
        int,
        option(
            "--tasks-per-host", "Tasks per host; GPUs are divided among them.", "K", min=1, panel=TASKS, rare=True
        ),
    ] = 1,
    restarts: policy_options.Restarts = 0,
    restart: policy_options.RestartsAfter = _DEFAULTS.restart,
    backoff_s: Annotated[
        float, duration("--backoff", "Delay before the first restart; doubled each time.", panel=FAILURES, rare=True)
    ] = Duration(_DEFAULTS.backoff_s),
    success_policy: Annotated[
        SuccessPolicy | None,
        option(
            "--success-policy",
            "Tasks that must succeed.",
            "<chief|all-workers>",
            default="all-workers; with --ps chief",
            panel=FAILURES,
            rare=True,
        ),
    ] = None,
    spares: Annotated[int, option("--spares", "Keep N slots as spares.", "N", min=0, panel=FAILURES)] = 0,
    min_workers: Annotated[
        int | None,
        option(
            "--min-workers",
            "Continue with as few as M workers if hosts are lost.",
            "M",
            min=1,
            default="all",
            panel=FAILURES,
        ),
    ] = None,
    max_workers: Annotated[
        int | None,
        option(
            "--max-workers",
            "Take in new hosts of the fleet at a checkpoint, up to N workers.",
            "N",
            min=1,
            default="no new hosts",
            panel=FAILURES,
        ),
    ] = None,
    preemptions: Annotated[
        int | None,
        option(
            "--preemptions",
            "Survive up to N lost hosts without using --restarts.",
            "N",
            min=0,
            default="0; unlimited on Spot VMs",
            panel=FAILURES,
            rare=True,
        ),
    ] = None,
    host_timeout_s: Annotated[
        float | None,
        duration(
            "--host-timeout",
            "How long to wait for a lost host.",
            default=f"{Duration(_DEFAULTS.host_timeout_s)}; {Duration(SPOT_HOST_TIMEOUT_S)} on Spot VMs",
            panel=FAILURES,
            rare=True,
        ),
    ] = None,
    timeout_s: policy_options.Timeout = 0.0,
    start_timeout_s: Annotated[
        float,
        duration(
            "--start-timeout",
            "Time until the first training step of an attempt; 0 disables it.",
            panel=TIMEOUTS,
            rare=True,
        ),
    ] = Duration(_DEFAULTS.start_timeout_s),
    hang_timeout_s: policy_options.HangTimeout = 0.0,
    on_hang: Annotated[
        OnHang,
        option(
            "--on-hang",
            "What to do if the job hangs: report stacks only, or restart as well.",
            "<report|restart>",
            panel=TIMEOUTS,
            rare=True,
        ),
    ] = _DEFAULTS.on_hang,
    link_timeout_s: Annotated[
        float,
        duration(
            "--link-timeout", "Declare a host lost after this time without a message.", panel=TIMEOUTS, rare=True
        ),
    ] = Duration(LINK_TIMEOUT_S),
    resume: Annotated[
        str | None,
        option(
            "--resume",
            "Start from the newest checkpoint of JOB, the latest job by default; without SCRIPT, repeat its command.",
            "[JOB]",
            default="none",
            panel=CHECKPOINTS,
        ),
    ] = None,
    checkpoint_dir: policy_options.CheckpointDir = "",
    checkpoint_bandwidth: Annotated[
        float,
        option(
            "--checkpoint-bandwidth",
            "Replication bandwidth per host in MiB/s; 0 disables replication.",
            "MIB_S",
            min=0,
            panel=CHECKPOINTS,
            rare=True,
        ),
    ] = Replication().mib_s,
    **program: Any,
) -> None:
    """Run a training script on all workers.

    Uploads the script's directory, starts every worker with its TF_CONFIG, and streams the logs. Ctrl-C detaches; the
    job keeps running. Use -m MODULE for a module, or give any command after --.

    Examples:
      fleet train task.py -- --epochs 5
      fleet train -m trainer.task --restarts 3
      fleet train --after --detach -- ./run.sh --fast
    """
    from fleet.commands.jobs import train as verb
    from fleet.console.starts import StartSink
    from fleet.jobs.policy import replication
    from fleet.jobs.reporting.repetition import confirm_capsule
    from fleet.jobs.tasks import TaskTypes, success

    typed = ctx.meta[TYPED]
    fleet = resolve_fleet(program["fleet"])
    if resume and not (typed.program or program["module"] or any(word.is_operand for word in typed.words)):
        job, command = find_remembered(resume, fleet)
        options = [part for word in typed.changed({"--resume": job}).words for part in word.text]
        run_again(command, fleet, options)
        return

    if from_capsule:
        run_capsule(typed, from_capsule, fleet)
        return
    repeated: Repeated | None = ctx.meta.get(REPEATED)

    def request() -> verb.TrainRequest:
        given = ctx.params
        return verb.TrainRequest(
            **{**select_fields(verb.TrainRequest, given), **read_program_fields(ctx, **program)},
            command_line=replace(repeated.command, name=name) if repeated else remembered(typed, name),
            repeated_versions=dict(repeated.versions) if repeated else {},
            task_types=TaskTypes(**select_fields(TaskTypes, given)),
            replication=replication(checkpoint_dir, checkpoint_bandwidth),
            policy=Policy(**select_fields(Policy, given))._replace(success=success(success_policy, ps)),
        )

    def run(sink: Sink) -> None:
        made, services = request(), make_services(sink)
        if repeated:
            command = (*filter(None, (Path(made.script).name, made.module)), *made.command, *made.arguments)
            confirm_capsule(repeated.capsule, command, services, sink, dry_run=dry_run)
        verb.run(made, services, StartSink(sink) if verbose else sink)

    run_command(fleet, output, run, raw=raw)
