"""The command line: parse, wire, print errors, nothing else."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from fleet.config import DEFAULT_FLEET, NAME_VARIABLE, state_root, with_fleet
from fleet.durations import seconds
from fleet.errors import CancelledError, FleetError, InternalError, UsageError
from fleet.interrupts import ignore_interrupts

if TYPE_CHECKING:
    from fleet.events import Sink
    from fleet.ports import Ports
    from fleet.settings import Settings
    from fleet.typed import Typed

app = typer.Typer(
    name="fleet",
    help="Run a TensorFlow training script as a multi-worker job over plain SSH.",
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start here: fleet demo. Exit codes: 0 success, 1 bug, 2 usage, 10 credentials, 11 quota, 12 capacity, "
    "13 unreachable, 14 not ready, 100 job failed, 101 job not finished, 102 not found, 103 cancelled.",
)


class Grouped(TyperCommand):
    """A command whose help shows its options in groups, each under the panel that the option names."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, options of no panel, then each panel."""
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None:
                plain = "Arguments" if param.param_type_name == "argument" else "Options"
                groups.setdefault(getattr(param, "rich_help_panel", None) or plain, []).append(record)
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


_LOCAL_FIRST = "--local-first"
_BEHIND = "fleet.behind"  # what stands behind --, in the context of a command


class WithProgram(Grouped):
    """A command that takes a script, whose arguments stand behind ``--``; without a script, any program does."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put aside what stands behind ``--``."""
        at = args.index("--") if "--" in args else len(args)
        ctx.meta[_BEHIND] = tuple(args[at + 1 :])
        return super().parse_args(ctx, args[:at])


class WithTrial(WithProgram):
    """A command that takes ``--local-first``, alone or with a length of time behind it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Give the option its usual time where it has none."""
        if _LOCAL_FIRST in args[: args.index("--") if "--" in args else len(args)]:
            at = args.index(_LOCAL_FIRST)
            if not (args[at + 1 : at + 2] and _is_time(args[at + 1])):
                args = [*args[: at + 1], "60", *args[at + 1 :]]
        return super().parse_args(ctx, args)


def _is_time(word: str) -> bool:
    try:
        seconds(word)
    except ValueError:
        return False
    return True


class Words(NamedTuple):
    """What a command line says of a program; of the first three, one at most is there."""

    script: str
    module: str
    command: tuple[str, ...]
    arguments: tuple[str, ...]


def _words(ctx: typer.Context, script: str, arguments: list[str] | None, module: str) -> Words:
    behind: tuple[str, ...] = ctx.meta.get(_BEHIND, ())
    before = (*([script] if script else []), *(arguments or ()))
    if module:
        return Words("", module, (), (*before, *behind))
    if before:
        return Words(before[0], "", (), (*before[1:], *behind))
    return Words("", "", behind, ())


class Output(str, Enum):
    """How a command tells what happens."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


Fleet = Annotated[
    str,
    typer.Option(
        "--fleet",
        envvar=NAME_VARIABLE,
        metavar="NAME",
        help="Fleet name.",
        show_default=False,
    ),
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Live view on a terminal, plain lines elsewhere; or JSON lines.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Worker = Annotated[
    str, typer.Option("--worker", metavar="N", help="Only this task: 0, worker-0, ps-0, or all.", show_default=False)
]


def _attended() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _confirm(question: str) -> bool:
    if not _attended():
        return True
    return _answer(f"{question} [Y/n] ") in ("\n", "y", "yes")  # the end of the input is no answer


def _answer(question: str) -> str:
    """What the user types, in lower case; a line break alone, and nothing at the end of the input."""
    print(question, end="", file=sys.stderr, flush=True)  # noqa: T201
    answer = sys.stdin.readline()
    return answer.strip().lower() or answer[-1:]


def _ports(sink: Sink | None = None, *, yes: bool = False) -> Ports:
    """The outside world; `sink` gives the terminal back while a question is asked."""
    from fleet.ports import Ports
    from fleet.state import Store

    def ask(question: str) -> bool:
        if sink is not None:
            sink.close()
        return yes or _confirm(question)

    def consent(question: str) -> bool:
        if sink is not None:
            sink.close()
        return yes or (_attended() and _answer(f"{question} [y/N] ") in ("y", "yes"))

    def vouch(question: str) -> bool:
        if sink is not None:
            sink.close()
        return _answer(f"{question} [y/N] ") in ("y", "yes")

    attended = _attended()
    store = Store(state_root())
    store.check()
    return Ports(
        store=store,
        confirm=ask,
        consent=consent,
        attended=yes or attended,
        vouch=vouch if attended else None,
        unread=lambda: getattr(sink, "unread", False),
    )


def _sink(output: Output, *, prefix: bool = True) -> Sink:
    from fleet.console import make_sink

    return make_sink(
        output.value, stdout=sys.stdout, stderr=sys.stderr, prefix=prefix, hint="Ctrl-C detaches; the job goes on"
    )


def _defaults() -> Settings:
    """What the environment says, and where it says nothing, a fleet.toml here or above."""
    from fleet import settings

    file = settings.find(Path.cwd())
    return settings.from_environment(os.environ).over(settings.load(file) if file else settings.Settings())


def _named(given: str) -> str:
    """The name of the fleet that is meant: given, or that of fleet.toml, or the default one."""
    from provision.names import validate_fleet_name

    name = given or _defaults().name or DEFAULT_FLEET
    try:
        return validate_fleet_name(name)
    except ValueError as error:
        raise UsageError(str(error), next_step="fleet up --fleet my-fleet") from None


def _listed(given: list[str] | None) -> tuple[str, ...] | None:
    """What an option was given, several in one with commas between them, too; None: it was not."""
    return tuple(item for text in given for item in text.split(",") if item) if given else None


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no whole number") from None


def _seconds(given: str | float) -> float:
    try:
        return seconds(str(given))  # a default comes as the number that it is
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


_FAILURE, _WATCH, _CHECKPOINTS = "When the job fails", "Watches", "Checkpoints"
_ROLES = "Roles"
_EXISTING = "Hosts that exist already"
_TOGETHER = "How the processes come together"
_CLOUD, _NETWORK = "Google Compute Engine", "Network and rights on Google Compute Engine"

Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="TIME",
        parser=_seconds,
        show_default=False,
        help="From TERM to KILL when the job is stopped; 10s where not said.",
    ),
]


Project = Annotated[
    str | None,
    typer.Option(
        "--project",
        metavar="ID",
        help="Who pays; the project of your credentials where not said.",
        show_default=False,
        rich_help_panel=_CLOUD,
    ),
]

Script = Annotated[
    str,
    typer.Argument(metavar="[SCRIPT]", help="task.py, task.R, or a folder with __main__.py.", show_default=False),
]
Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- ARGS", help="Behind --: arguments of the script; without one, a program and its own."),
]
Module = Annotated[
    str,
    typer.Option(
        "-m", metavar="MODULE", help="A module of the folder, package.task, as python -m runs it.", show_default=False
    ),
]
Workdir = Annotated[
    str,
    typer.Option(
        "--workdir",
        metavar="DIR",
        help="Folder to push; that of SCRIPT where not said, else the current one.",
        show_default=False,
    ),
]
Data = Annotated[
    list[str] | None,
    typer.Option("--data", metavar="SRC[:DEST]", help="Data to push, found at DEST in the working folder."),
]
RequirementsFile = Annotated[
    str | None,
    typer.Option(
        "--requirements",
        metavar="FILE",
        help="What pip installs for the script; requirements.txt beside it where not said.",
    ),
]
NoRequirements = Annotated[bool, typer.Option("--no-requirements", help="Install nothing.")]
NoAdapt = Annotated[
    bool, typer.Option("--no-adapt", help="Do not adapt older scripts to TensorFlow of today; see docs/scripts.md.")
]
VariableFiles = Annotated[
    list[str] | None, typer.Option("--env-file", metavar="FILE", help="Variables, one K=V a line.")
]
Secrets = Annotated[
    list[str] | None,
    typer.Option("--secret", metavar="K[=@FILE]", help="Secret variable, from this environment or a file."),
]
Variables = Annotated[
    list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Variable of the script; K alone: as here.")
]

Restarts = Annotated[
    int,
    typer.Option(
        "--restarts", metavar="N", min=0, help="Start all tasks again, at most N times.", rich_help_panel=_FAILURE
    ),
]

RestartsAfter = Annotated[
    Literal["never", "on-failure", "exit-code"],
    typer.Option(
        "--restart-policy",
        help="After any failure, or after signals and exit codes from 128 on only.",
        rich_help_panel=_FAILURE,
    ),
]

Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="TIME",
        parser=_seconds,
        show_default=False,
        help="End the whole job after so long.",
        rich_help_panel=_WATCH,
    ),
]

HangTimeout = Annotated[
    float,
    typer.Option(
        "--hang-timeout",
        metavar="TIME",
        parser=_seconds,
        show_default=False,
        help="Without progress; nobody looks where not said.",
        rich_help_panel=_WATCH,
    ),
]

CheckpointDir = Annotated[
    str,
    typer.Option(
        "--checkpoint-dir",
        metavar="PATH",
        help="Where SCRIPT writes them: below its folder, absolute on the hosts, or a URL, which is left alone. "
        "The job's own folder where not said.",
        show_default=False,
        rich_help_panel=_CHECKPOINTS,
    ),
]


@app.command(cls=Grouped)
def up(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            metavar="N",
            parser=_whole,
            help="Number of workers; 2 where not said, with an inventory all.",
        ),
    ] = None,
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider", metavar="NAME", help="Where the hosts come from: local, gce, static, slurm or pbs."
        ),
    ] = None,
    python: Annotated[
        str | None, typer.Option("--python", metavar="PATH", help="Interpreter for the script on the hosts.")
    ] = None,
    package: Annotated[
        list[str] | None,
        typer.Option(
            "--package",
            metavar="REQ",
            help="What pip installs on hosts that are not this computer; on rented ones TensorFlow and Keras 2 "
            "where not said.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what it would cost; start nothing.")] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    inventory: Annotated[
        str | None,
        typer.Option(
            "--inventory",
            "-i",
            metavar="FILE",
            help="File that names them: Ansible's INI or YAML, or one host a line.",
            rich_help_panel=_EXISTING,
        ),
    ] = None,
    limit: Annotated[
        str | None,
        typer.Option(
            "--limit",
            "-l",
            metavar="PATTERN",
            help="Which of them, as Ansible's --limit; all where not said.",
            rich_help_panel=_EXISTING,
        ),
    ] = None,
    accept_new: Annotated[
        bool,
        typer.Option(
            "--accept-new",
            help="Accept the host keys of hosts that are not known yet, without asking.",
            rich_help_panel=_EXISTING,
        ),
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option("--gpu", metavar="TYPE[:N]", help="GPUs of each worker, as t4 or t4:2.", rich_help_panel=_CLOUD),
    ] = None,
    machine_type: Annotated[
        str | None,
        typer.Option(
            "--machine-type",
            metavar="TYPE",
            help="As n1-standard-8; the one that goes with the GPU where not said.",
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    zone: Annotated[
        list[str] | None,
        typer.Option(
            "--zone",
            metavar="PLACE",
            help="Zone or region to try, in the order given; by price where not said.",
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    spot: Annotated[
        bool | None,
        typer.Option(
            "--spot/--no-spot",
            help="Cheaper, and taken back whenever Google likes.",
            show_default=False,
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    max_duration: Annotated[
        float | None,
        typer.Option(
            "--max-duration",
            metavar="TIME",
            parser=_seconds,
            help="Google deletes the instances so long after their start; 8h where not said, 0: never.",
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    retry_until_up: Annotated[
        bool,
        typer.Option("--retry-until-up", help="Where no zone has room, wait and try again.", rich_help_panel=_CLOUD),
    ] = False,
    project: Project = None,
    image: Annotated[
        str | None,
        typer.Option(
            "--image",
            metavar="IMAGE",
            help="Boot image, projects/P/global/images/family/F.",
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    disk_size: Annotated[
        int | None,
        typer.Option(
            "--disk-size",
            metavar="GB",
            parser=_whole,
            help="Of the boot disk; 100 where not said.",
            rich_help_panel=_CLOUD,
        ),
    ] = None,
    network: Annotated[
        str | None,
        typer.Option(
            "--network",
            metavar="NAME",
            help="VPC network, or the path of a shared one, projects/P/global/networks/N.  [default: default]",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    subnet: Annotated[
        str | None,
        typer.Option(
            "--subnet",
            metavar="NAME",
            help="Subnetwork, or its path.  [default: the one of the region]",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    firewall: Annotated[
        bool | None,
        typer.Option(
            "--firewall/--no-firewall",
            help="Make firewall rules for the fleet, or rely on existing ones.",
            show_default=False,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    iap: Annotated[
        bool | None,
        typer.Option(
            "--iap/--no-iap",
            help="No external addresses; SSH goes through Identity-Aware Proxy.",
            show_default=False,
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    ssh_from: Annotated[
        list[str] | None,
        typer.Option(
            "--ssh-from",
            metavar="CIDR",
            help="Who may use SSH; your own address alone where not said.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    scopes: Annotated[
        list[str] | None,
        typer.Option(
            "--scopes",
            metavar="SCOPE",
            help="API scope of the instances, such as devstorage.read_only; none by default.",
            rich_help_panel=_NETWORK,
        ),
    ] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            "--service-account", metavar="EMAIL", help="Service account of the instances.", rich_help_panel=_NETWORK
        ),
    ] = None,
) -> None:
    """Start a fleet, or repair it.

    On this computer, unless an inventory, a GPU, a machine type, a zone, spot or a project is asked for, or
    fleet.toml says otherwise. What costs money is shown before, and asked.
    """
    from fleet.commands import up as verb
    from fleet.commands.wanted import UpRequest
    from fleet.settings import Settings, absolute

    said = Settings(
        provider=provider,
        workers=workers,
        python=python,
        packages=tuple(package) if package else None,
        inventory=absolute(inventory, Path.cwd()) if inventory else None,
        limit=limit,
        gpu=gpu,
        machine_type=machine_type,
        zones=_listed(zone),
        spot=spot,
        max_duration_s=None if max_duration is None else round(max_duration),
        project=project,
        image=image,
        disk_gb=disk_size,
        network=network,
        subnetwork=subnet,
        firewall=firewall,
        external=None if iap is None else not iap,
        ssh_from=_listed(ssh_from),
        scopes=_listed(scopes),
        service_account=service_account,
    )
    name = _named(fleet)
    request = UpRequest(
        name, said, _defaults(), dry_run=dry_run, retry_until_up=retry_until_up, accept_new=accept_new
    )
    _run(name, output, lambda sink: verb.run(request, _ports(sink, yes=yes), sink))


@app.command(cls=WithProgram)
def train(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
    ctx: typer.Context,
    script: Script = "",
    arguments: Arguments = None,
    module: Module = "",
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the job runs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show each task's TF_CONFIG and command; start nothing.")
    ] = False,
    workdir: Workdir = "",
    data: Data = None,
    requirements: RequirementsFile = None,
    no_requirements: NoRequirements = False,
    no_adapt: NoAdapt = False,
    env: Variables = None,
    env_file: VariableFiles = None,
    secret: Secrets = None,
    grace: Grace = 10.0,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
    chief: Annotated[
        bool, typer.Option("--chief", help="The first task is the chief.", rich_help_panel=_ROLES)
    ] = False,
    ps: Annotated[
        int,
        typer.Option(
            "--ps",
            metavar="N",
            min=0,
            help="Tasks that are parameter servers, after the workers.",
            rich_help_panel=_ROLES,
        ),
    ] = 0,
    evaluator: Annotated[
        bool,
        typer.Option("--evaluator", help="The last task evaluates what the others save.", rich_help_panel=_ROLES),
    ] = False,
    tasks_per_host: Annotated[
        int,
        typer.Option(
            "--tasks-per-host",
            metavar="K",
            min=1,
            help="Tasks on each host, among which its GPUs are split.",
            rich_help_panel=_ROLES,
        ),
    ] = 1,
    restarts: Restarts = 0,
    restart_policy: RestartsAfter = "on-failure",
    backoff: Annotated[
        float,
        typer.Option(
            "--backoff",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="Before the first restart, 0.5s where not said; twice as long before each further one.",
            rich_help_panel=_FAILURE,
        ),
    ] = 0.5,
    success_policy: Annotated[
        Literal["all-workers", "chief"] | None,
        typer.Option(
            "--success-policy",
            help="Whose success is the job's: that of all workers, or with --ps the chief's, where not said.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    spares: Annotated[
        int,
        typer.Option(
            "--spares",
            metavar="N",
            min=0,
            help="The last N hosts get no task until another host is lost.",
            rich_help_panel=_FAILURE,
        ),
    ] = 0,
    min_workers: Annotated[
        int | None,
        typer.Option(
            "--min-workers",
            metavar="M",
            min=1,
            help="Where hosts are lost, go on with as few as M; with all where not said.",
            show_default=False,
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    preemptions: Annotated[
        int | None,
        typer.Option(
            "--preemptions",
            metavar="N",
            min=0,
            help="Go on after at most N losses of a host, beside --restarts; after all on spot hosts.",
            show_default=False,
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    host_timeout: Annotated[
        float | None,
        typer.Option(
            "--host-timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="How long a lost host may take to come back; 60s where not said, 30m on spot hosts.",
            rich_help_panel=_FAILURE,
        ),
    ] = None,
    timeout: Timeout = 0.0,
    start_timeout: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="To an attempt's first step; 10m where not said, 0: no limit.",
            rich_help_panel=_WATCH,
        ),
    ] = 600.0,
    hang_timeout: HangTimeout = 0.0,
    on_hang: Annotated[
        Literal["report", "restart"],
        typer.Option("--on-hang", help="Tell what each task is doing, or start again, too.", rich_help_panel=_WATCH),
    ] = "report",
    link_timeout: Annotated[
        float,
        typer.Option(
            "--link-timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="A host that is silent for so long is lost; 10s where not said.",
            rich_help_panel=_WATCH,
        ),
    ] = 10.0,
    checkpoint_dir: CheckpointDir = "",
    checkpoint_bandwidth: Annotated[
        float,
        typer.Option(
            "--checkpoint-bandwidth",
            metavar="MIB_S",
            min=0,
            help="At most so many MiB a second leave a host; 0: nothing is copied to the others.",
            rich_help_panel=_CHECKPOINTS,
        ),
    ] = 100.0,
) -> None:
    """Run SCRIPT on all workers together.

    Pushes the script's folder, starts every worker with its TF_CONFIG, and shows what happens. Ctrl-C detaches; the
    job goes on. In place of SCRIPT, -m MODULE runs a module, and a command behind -- any program.
    """
    from fleet.commands import train as verb
    from fleet.commands.policy import replication
    from fleet.commands.roles import Roles, success
    from fleet.commands.variables import environment, secrets, withheld
    from train.agent.records import OnHang, Policy, RestartPolicy

    name = _named(fleet)

    def request() -> verb.TrainRequest:
        return verb.TrainRequest(
            fleet=name,
            **_words(ctx, script, arguments, module)._asdict(),
            workdir=workdir,
            data=tuple(data or ()),
            requirements="" if no_requirements else requirements,
            adapt=not no_adapt,
            env=environment(env or (), env_file or (), os.environ),
            secrets=secrets(secret or (), os.environ),
            withheld=withheld(secret or (), env_file or ()),
            detach=detach,
            dry_run=dry_run,
            grace_s=grace,
            spares=spares,
            link_timeout_s=link_timeout,
            roles=Roles(chief, ps, evaluator, tasks_per_host),
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

    _run(name, output, lambda sink: verb.run(request(), _ports(sink), sink))


@app.command(cls=WithTrial)
def check(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
    ctx: typer.Context,
    script: Script = "",
    arguments: Arguments = None,
    module: Module = "",
    local_first: Annotated[
        float,
        typer.Option(
            _LOCAL_FIRST,
            metavar="[TIME]",
            parser=_seconds,
            show_default=False,
            help="Run it on each host by itself, until its first step, at most so long; 60s where not said.",
        ),
    ] = 0.0,
    workdir: Workdir = "",
    data: Data = None,
    requirements: RequirementsFile = None,
    no_requirements: NoRequirements = False,
    no_adapt: NoAdapt = False,
    env: Variables = None,
    env_file: VariableFiles = None,
    secret: Secrets = None,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Tell whether the hosts are fit, and for SCRIPT.

    Shows the versions, GPUs and disks of all hosts, whether they go together, and which imports are missing; runs
    nothing unless asked to. Exit code 14 where a host is not fit.
    """
    from fleet.commands import check as verb
    from fleet.commands.variables import environment, secrets, withheld

    name = _named(fleet)

    def request() -> verb.CheckRequest:
        return verb.CheckRequest(
            fleet=name,
            **_words(ctx, script, arguments, module)._asdict(),
            workdir=workdir,
            data=tuple(data or ()),
            requirements="" if no_requirements else requirements,
            adapt=not no_adapt,
            env=environment(env or (), env_file or (), os.environ),
            secrets=secrets(secret or (), os.environ),
            withheld=withheld(secret or (), env_file or ()),
            local_first_s=local_first,
        )

    _run(name, output, lambda sink: verb.run(request(), _ports(sink), sink), live=False)


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    worker: Worker = "all",
    job: Annotated[str, typer.Option("--job", metavar="ID", help="Another job than the newest.")] = "",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the log of the newest job.

    Byte for byte as the workers wrote it; one worker's alone comes without prefix. Ends with the exit code of the
    job.
    """
    from fleet.commands import logs as verb

    request = verb.LogsRequest(fleet=_named(fleet), follow=follow, lines=lines, worker=worker, job=job)
    _run(
        request.fleet, output, lambda sink: verb.run(request, _ports(sink), sink), prefix=worker == "all", live=follow
    )


@app.command()
def pull(
    job: Annotated[str, typer.Argument(metavar="[JOB]", help="Job ID.  [default: the newest job]")] = "",
    to: Annotated[
        str, typer.Option("--to", metavar="DIR", help="Directory for the results.  [default: results/JOB]")
    ] = "",
    worker: Worker = "all",
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Copy the results of a job to this computer.

    Copies model, checkpoints, logs, and the files that the job wrote or changed. Verifies their SHA-256, and skips
    what is already there. An interrupted pull continues when it is repeated.
    """
    from fleet.commands import pull as verb

    request = verb.PullRequest(fleet=_named(fleet), job=job, directory=to, worker=worker)
    _run(request.fleet, output, lambda sink: verb.run(request, _ports(sink), sink))


@app.command()
def jobs(
    jobs: Annotated[
        list[str] | None, typer.Argument(metavar="[JOB]...", help="Only these jobs.", show_default=False)
    ] = None,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Delete ended jobs on the hosts: those named, else those with nothing left to pull."
        ),
    ] = False,
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """List the jobs that the hosts store, or delete them."""
    from fleet.commands import jobs as verb

    request = verb.JobsRequest(fleet=_named(fleet), jobs=tuple(jobs or ()), prune=prune)
    _run(
        request.fleet,
        Output.LINES if output is Output.AUTO else output,
        lambda sink: verb.run(request, _ports(sink, yes=yes), sink),
    )


@app.command()
def status(
    fleet: Annotated[
        str, typer.Option("--fleet", envvar=NAME_VARIABLE, metavar="NAME", help="Only this one.", show_default=False)
    ] = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the fleets, their hosts, and what runs on them."""
    from fleet.commands import status as verb

    request = verb.StatusRequest(fleet=_named(fleet) if fleet else "")
    summary = verb.run(request, _ports())
    from fleet.console.tables import print_status

    try:
        print_status(summary.fleets, sys.stdout, json=output is Output.JSON)
    except BrokenPipeError:
        raise typer.Exit(_end_quietly()) from None
    if summary.damaged:
        raise summary.damaged[0]


@app.command()
def inventory(
    form: Annotated[
        Literal["ansible", "ssh-config", "json"], typer.Option("--format", help="For whom it is written.")
    ] = "ansible",
    fleet: Fleet = "",
) -> None:
    """Write down the hosts of a fleet for other programs.

    As an inventory for Ansible, as an SSH configuration, or as JSON.
    """
    from fleet.commands import inventory as verb

    text = verb.run(verb.InventoryRequest(fleet=_named(fleet), form=form), _ports())
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise typer.Exit(_end_quietly()) from None


@app.command()
def stop(
    grace: Grace = 10.0,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """End the running job on all hosts; the fleet stays up."""
    from fleet.commands import stop as verb

    request = verb.StopRequest(fleet=_named(fleet), grace_s=grace)
    _run(request.fleet, output, lambda sink: verb.run(request, _ports(sink), sink))


@app.command()
def down(
    fleet: Fleet = "",
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Delete the fleet and all its files.

    Asks first if a job is running, or if results are not on this computer. Hosts that exist already are given back
    without any of fleet's files.
    """
    from fleet.commands import down as verb

    request = verb.DownRequest(fleet=_named(fleet))
    _run(request.fleet, output, lambda sink: verb.run(request, _ports(sink, yes=yes), sink))


@app.command()
def extend(
    time: Annotated[
        float, typer.Argument(metavar="TIME", parser=_seconds, help="From now on, as 4h.", show_default=False)
    ],
    yes: Yes = False,
    fleet: Fleet = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Let a rented fleet live for TIME from now on.

    Google then deletes its instances. They may have to be stopped for the change, and are started again.
    """
    from fleet.commands import extend as verb

    request = verb.ExtendRequest(fleet=_named(fleet), seconds=time)
    _run(request.fleet, output, lambda sink: verb.run(request, _ports(sink, yes=yes), sink))


@app.command()
def gc(
    everybody: Annotated[bool, typer.Option("--all", help="Delete what others made, too.")] = False,
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="ID",
            help="Look at this one alone; at this computer and at all projects that are known here where not said.",
        ),
    ] = None,
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Find what is left of fleets that are not known here, and delete it.

    What you made on this computer, after a question. Fleets of another state folder of yours count as unknown.
    """
    from fleet.commands import gc as verb
    from fleet.settings import Settings

    request = verb.GcRequest(
        settings=Settings(project=project).over(_defaults()), only=project is not None, everybody=everybody
    )
    _run(DEFAULT_FLEET, output, lambda sink: verb.run(request, _ports(sink, yes=yes), sink))


@app.command()
def doctor(
    provider: Annotated[
        str | None,
        typer.Option(
            "--provider",
            metavar="NAME",
            help="local, gce, static, slurm or pbs; the one of `fleet up` where not said.",
        ),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="ID", help="Of Google Compute Engine, to look at.")
    ] = None,
    output: OutputOption = Output.AUTO,
) -> None:
    """Tell what is missing for a fleet, and what mends it."""
    from fleet.commands import doctor as verb
    from fleet.commands.wanted import provider_of
    from fleet.settings import Settings

    defaults = _defaults()
    said = Settings(provider=provider, project=project)
    request = verb.DoctorRequest(provider_of(said, defaults.provider), said.over(defaults))
    _run(DEFAULT_FLEET, output, lambda sink: verb.run(request, _ports(sink), sink))


@app.command()
def lint(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, task.py.")],
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Folder it starts in; its own where not said.")
    ] = "",
    workers: Annotated[int, typer.Option("--workers", "-w", metavar="N", min=1, help="How many there will be.")] = 2,
    gpus: Annotated[
        int | None, typer.Option("--gpus", metavar="N", min=0, help="Of each worker.", show_default=False)
    ] = None,
    no_adapt: NoAdapt = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Tell what in SCRIPT goes wrong between several workers.

    Reads it and the modules of its own that it imports; executes nothing. Warnings and hints leave the exit code 0.
    """
    from fleet.commands import lint as verb

    request = verb.LintRequest(script=script, workdir=workdir, workers=workers, gpus=gpus, adapt=not no_adapt)
    _run(DEFAULT_FLEET, output, lambda sink: verb.run(request, sink), live=False)


@app.command(cls=Grouped)
def agent(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, task.py.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="After --: arguments of the script.")
    ] = None,
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Folder to run in; the current one where not said.")
    ] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Interpreter for the script; found where not said.")
    ] = "",
    env: Variables = None,
    no_adapt: NoAdapt = False,
    grace: Grace = 10.0,
    rendezvous: Annotated[
        str,
        typer.Option(
            "--rendezvous",
            metavar="DIR|tcp://HOST:PORT",
            help="Where the processes meet: a folder that all nodes see, or the address of the one with rank 0. "
            "A folder of the job's in the working folder where not said.",
            show_default=False,
            rich_help_panel=_TOGETHER,
        ),
    ] = "",
    secret_file: Annotated[
        str,
        typer.Option(
            "--secret-file",
            metavar="FILE",
            help="What proves that somebody at tcp://HOST:PORT belongs here; FLEET_RENDEZVOUS_SECRET where not said.",
            show_default=False,
            rich_help_panel=_TOGETHER,
        ),
    ] = "",
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="For the other processes; 60s where not said.",
            rich_help_panel=_TOGETHER,
        ),
    ] = 60.0,
    address: Annotated[
        str,
        typer.Option(
            "--address",
            metavar="ADDRESS",
            help="By which the others reach this node; found where not said.",
            show_default=False,
            rich_help_panel=_TOGETHER,
        ),
    ] = "",
    rank: Annotated[
        int | None,
        typer.Option(
            "--rank", metavar="N", parser=_whole, help="Which process this is, from 0.", rich_help_panel=_TOGETHER
        ),
    ] = None,
    size: Annotated[
        int | None,
        typer.Option("--size", metavar="N", parser=_whole, help="How many there are.", rich_help_panel=_TOGETHER),
    ] = None,
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="LIST",
            help="Their nodes, as node[1-4] or a,b; Slurm, PBS and mpiexec say all three by themselves.",
            show_default=False,
            rich_help_panel=_TOGETHER,
        ),
    ] = "",
    restarts: Restarts = 0,
    restart_policy: RestartsAfter = "on-failure",
    timeout: Timeout = 0.0,
    hang_timeout: HangTimeout = 0.0,
    checkpoint_dir: CheckpointDir = "",
) -> None:
    """Run SCRIPT on the nodes of an allocation, without SSH.

    To be started once on each node, by srun, pbsdsh or mpiexec: srun fleet agent task.py. The processes find each
    other and run the script together, in the folder where it is; the first one tells how it ended.
    """
    from fleet.commands import agent as verb
    from fleet.commands.variables import environment
    from provision.allocation.launch import Given
    from train.agent.records import Policy, RestartPolicy

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
    _run(
        DEFAULT_FLEET,
        Output.LINES,
        lambda sink: codes.append(verb.run(request(), os.environ, sink)),
        prefix=False,
    )
    raise typer.Exit(codes[0])


@app.command()
def demo(
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", parser=_whole, help="Number of workers.")
    ] = 2,
    output: OutputOption = Output.AUTO,
) -> None:
    """Train an example on two workers on this computer.

    Starts two workers, trains a small model on them, pulls its results, and deletes the workers.
    """
    from fleet.commands import demo as verb

    _run(verb.FLEET, output, lambda sink: verb.run(verb.DemoRequest(workers=workers), _ports(sink, yes=True), sink))


def _version(wanted: bool) -> None:
    if wanted:
        from fleet import __version__

        print(f"fleet {__version__}")  # noqa: T201
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def _run(
    fleet: str, output: Output, verb: Callable[[Sink], object], *, prefix: bool = True, live: bool = True
) -> None:
    from fleet.unread import UnreadSink

    inner = _sink(Output.LINES if output is Output.AUTO and not live else output, prefix=prefix)
    sink = UnreadSink(inner)
    try:
        verb(sink)
    except FleetError as error:
        raise _Failed(error, inner, fleet) from None
    except KeyboardInterrupt:
        raise _Failed(CancelledError("interrupted"), inner, fleet) from None
    finally:
        sink.close()
        if sink.unread:
            _end_quietly()


class _Failed(Exception):  # noqa: N818 - carries an error to where the typed command line is known
    def __init__(self, error: FleetError, sink: Sink, fleet: str) -> None:
        super().__init__(str(error))
        self.error = error
        self.sink = sink
        self.fleet = fleet


def _typed(arguments: list[str]) -> Typed | None:
    """The command line as it was typed; None if it has no known subcommand."""
    from fleet.typed import Option, parse

    commands = getattr(typer.main.get_command(app), "commands", {})
    at = next((index for index, word in enumerate(arguments) if not word.startswith("-")), len(arguments))
    if at == len(arguments) or arguments[at] not in commands:
        return None
    options = [
        Option((*sorted(param.opts, key=lambda name: name[:2] != "--"), *param.secondary_opts), not param.is_flag)
        for param in commands[arguments[at]].params
        if param.param_type_name == "option"
    ]
    return parse(f"fleet {arguments[at]}", arguments[at + 1 :], options)


def _next_steps(error: FleetError, arguments: list[str], fleet: str) -> str:
    """The commands to type next: the one that was typed, with changes, then the others."""
    from fleet.typed import command_line

    lines = [line for line in error.next_step.split("\n") if line]
    if error.again is not None and (typed := _typed(arguments)) is not None:
        change, command = error.again.change, f"fleet {error.again.command}"
        if error.again.command and command != typed.command:
            lines.insert(0, command_line(command, change))
        elif typed.takes(change):
            lines.insert(0, typed.changed(change).text())
    return "\n".join(dict.fromkeys(with_fleet(line, fleet) for line in lines))


def _report(error: FleetError, sink: Sink | None = None) -> int:
    ignore_interrupts()
    from fleet.console.colors import wants_color
    from fleet.console.errors import print_error
    from fleet.console.jsonl import JsonSink

    json = sink if isinstance(sink, JsonSink) else None
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else 0
    try:
        print_error(error, sys.stderr, json=json, color=wants_color(sys.stderr, os.environ), width=width)
    except BrokenPipeError:  # as with 2>&1 | head; the exit code still tells
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    return error.exit_code


def _wants_json(arguments: list[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        word in ("-ojson", "--output=json", "-o=json") or (word == "json" and before in ("-o", "--output"))
        for before, word in zip(["", *own], own, strict=False)
    )


def _keep_traceback(failure: InternalError) -> None:
    import traceback

    from provision.private import make_directory

    file = state_root() / "bug-report.txt"
    text = "".join(traceback.format_exception(failure))
    try:
        make_directory(file.parent)
        file.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        failure.cause = text
    else:
        failure.hint = f"report it, with the file {file}"


def _usage(error: TyperException, arguments: list[str]) -> UsageError:
    from fleet.mistakes import unknown_command, unknown_option

    commands = getattr(typer.main.get_command(app), "commands", {})
    context = getattr(error, "ctx", None)
    command = context.info_name if context is not None and context.parent is not None else ""
    typed = _typed(arguments)
    option = getattr(error, "option_name", "") if type(error).__name__ == "NoSuchOption" else ""
    if option and typed is not None:
        takers = {name: [opt for param in one.params for opt in param.opts] for name, one in commands.items()}
        return unknown_option(option, typed, takers)
    word = next((word for word in arguments if not word.startswith("-")), "")
    if not command and word and word not in commands:
        return unknown_command(word, commands)
    sentence = getattr(error, "format_message", lambda: str(error))().replace("\n", " ")
    return UsageError(sentence, next_step=f"fleet {command} --help" if command else "fleet --help")


def _end_quietly() -> int:
    # What reads our output has gone: nothing more may be written, at exit neither.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    return 0


_ABORTED = 130  # what Typer makes of a Ctrl-C


def run(arguments: list[str]) -> int:
    """Run one command.

    Returns:
        The exit code, see fleet.errors.
    """
    sink: Sink | None = None
    fleet = DEFAULT_FLEET
    try:
        code = app(args=arguments or ["--help"], prog_name="fleet", standalone_mode=False)
        if code != _ABORTED:
            return code if isinstance(code, int) else 0
        failure: FleetError = CancelledError("interrupted")
    except _Failed as failed:
        failure, sink, fleet = failed.error, failed.sink, failed.fleet
    except FleetError as error:
        failure = error
    except TyperException as error:
        failure = _usage(error, arguments)
    except KeyboardInterrupt:
        failure = CancelledError("interrupted")
    except Exception as error:  # noqa: BLE001 - a bug: the traceback goes into a file, the user gets a sentence
        failure = InternalError.of(error)
    if isinstance(failure, InternalError):
        _keep_traceback(failure)
    failure.next_step = _next_steps(failure, arguments, fleet)
    return _report(failure, sink or (_sink(Output.JSON) if _wants_json(arguments) else None))
