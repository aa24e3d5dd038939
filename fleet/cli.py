"""The command line: parse, wire, print errors, nothing else."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer
from typer.core import TyperCommand
from typer.exceptions import TyperException

from fleet.config import DEFAULT_FLEET, NAME_VARIABLE, for_fleet, state_root
from fleet.durations import seconds
from fleet.errors import CancelledError, FleetError, UsageError

if TYPE_CHECKING:
    from fleet.events import Sink
    from fleet.ports import Ports

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


class Output(str, Enum):
    """How a command tells what happens."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


Fleet = Annotated[
    str, typer.Option("--fleet", envvar=NAME_VARIABLE, metavar="NAME", help="Which fleet, where there are several.")
]
OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Live view on a terminal, plain lines elsewhere; or JSON lines.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Worker = Annotated[
    str, typer.Option("--worker", metavar="N", help="Only this worker: 0, worker-0, or all.", show_default=False)
]


def _confirm(question: str) -> bool:
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    print(f"{question} [Y/n] ", end="", file=sys.stderr, flush=True)  # noqa: T201
    return sys.stdin.readline().strip().lower() in ("", "y", "yes")


def _ports(yes: bool = False) -> Ports:
    from fleet.ports import Ports
    from fleet.state import Store

    return Ports(store=Store(state_root()), confirm=(lambda _: True) if yes else _confirm)


def _sink(output: Output, *, prefix: bool = True) -> Sink:
    from fleet.console import make_sink

    return make_sink(
        output.value, stdout=sys.stdout, stderr=sys.stderr, prefix=prefix, hint="Ctrl-C detaches; the job goes on"
    )


def _checked(name: str) -> str:
    from provision.names import validate_fleet_name

    try:
        return validate_fleet_name(name)
    except ValueError as error:
        raise UsageError(str(error), next_step="fleet up --fleet my-fleet") from None


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


@app.command()
def up(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", metavar="N", parser=_whole, help="Number of workers; 2 where not said."),
    ] = None,
    gpu: Annotated[str, typer.Option("--gpu", metavar="TYPE[:N]", help="GPUs of each worker, as t4 or t4:2.")] = "",
    provider: Annotated[str, typer.Option("--provider", metavar="NAME", help="Where the hosts come from.")] = "",
    python: Annotated[
        str, typer.Option("--python", metavar="PATH", help="Interpreter for the script on the hosts.")
    ] = "",
    fleet: Fleet = DEFAULT_FLEET,
    output: OutputOption = Output.AUTO,
) -> None:
    """Start a fleet, or repair it.

    On this computer, unless a GPU or another provider is asked for.
    """
    from fleet.commands import up as verb

    request = verb.UpRequest(fleet=_checked(fleet), workers=workers, provider=provider, gpu=gpu, python=python)
    _run(fleet, output, lambda sink: verb.run(request, _ports(), sink))


@app.command(cls=Grouped)
def train(  # noqa: PLR0913, PLR0917 - one parameter an option, as Typer wants it
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="The training script, task.py.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="After --: arguments of the script.")
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return as soon as the job runs.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show each task's TF_CONFIG and command; start nothing.")
    ] = False,
    workdir: Annotated[
        str, typer.Option("--workdir", metavar="DIR", help="Folder to push; the script's own where not said.")
    ] = "",
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="SRC[:DEST]", help="Data to push, found at DEST in the working folder."),
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option("--env", "-e", metavar="K=V", help="Variable of the script; K alone: as here.")
    ] = None,
    env_file: Annotated[
        list[str] | None, typer.Option("--env-file", metavar="FILE", help="Variables, one K=V a line.")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option("--secret", metavar="K[=@FILE]", help="Secret variable, from this environment or a file."),
    ] = None,
    grace: Grace = 10.0,
    fleet: Fleet = DEFAULT_FLEET,
    output: OutputOption = Output.AUTO,
    restarts: Annotated[
        int,
        typer.Option(
            "--restarts", metavar="N", min=0, help="Start all tasks again, at most N times.", rich_help_panel=_FAILURE
        ),
    ] = 0,
    restart_policy: Annotated[
        Literal["never", "on-failure", "exit-code"],
        typer.Option(
            "--restart-policy",
            help="After any failure, or after signals and exit codes from 128 on only.",
            rich_help_panel=_FAILURE,
        ),
    ] = "on-failure",
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
        Literal["all-workers", "chief"],
        typer.Option("--success-policy", help="Whose success is the job's.", rich_help_panel=_FAILURE),
    ] = "all-workers",
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
    host_timeout: Annotated[
        float,
        typer.Option(
            "--host-timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="How long a lost host may take to come back; 60s where not said.",
            rich_help_panel=_FAILURE,
        ),
    ] = 60.0,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="End the whole job after so long.",
            rich_help_panel=_WATCH,
        ),
    ] = 0.0,
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
    hang_timeout: Annotated[
        float,
        typer.Option(
            "--hang-timeout",
            metavar="TIME",
            parser=_seconds,
            show_default=False,
            help="Without progress; nobody looks where not said.",
            rich_help_panel=_WATCH,
        ),
    ] = 0.0,
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
    checkpoint_dir: Annotated[
        str,
        typer.Option(
            "--checkpoint-dir",
            metavar="PATH",
            help="Where SCRIPT writes them: below its folder, absolute on the hosts, or a URL, which is left alone. "
            "The job's own folder where not said.",
            show_default=False,
            rich_help_panel=_CHECKPOINTS,
        ),
    ] = "",
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
    job goes on.
    """
    from fleet.commands import train as verb
    from fleet.commands.policy import replication
    from fleet.commands.variables import environment, secrets
    from train.agent.records import OnHang, Policy, RestartPolicy, SuccessPolicy

    def request() -> verb.TrainRequest:
        return verb.TrainRequest(
            fleet=_checked(fleet),
            script=script,
            arguments=tuple(arguments or ()),
            workdir=workdir,
            data=tuple(data or ()),
            env=environment(env or (), env_file or (), os.environ),
            secrets=secrets(secret or (), os.environ),
            detach=detach,
            dry_run=dry_run,
            grace_s=grace,
            spares=spares,
            link_timeout_s=link_timeout,
            replication=replication(checkpoint_dir, checkpoint_bandwidth),
            policy=Policy(
                restart=RestartPolicy(restart_policy),
                restarts=restarts,
                success=SuccessPolicy(success_policy),
                min_workers=min_workers or 0,
                backoff_s=backoff,
                host_timeout_s=host_timeout,
                timeout_s=timeout,
                start_timeout_s=start_timeout,
                hang_timeout_s=hang_timeout,
                on_hang=OnHang(on_hang),
            ),
        )

    _run(fleet, output, lambda sink: verb.run(request(), _ports(), sink))


@app.command()
def logs(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", metavar="N", min=0, help="Only the last N lines.")
    ] = None,
    worker: Worker = "all",
    job: Annotated[str, typer.Option("--job", metavar="ID", help="Another job than the newest.")] = "",
    fleet: Fleet = DEFAULT_FLEET,
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the log of the newest job.

    Byte for byte as the workers wrote it; one worker's alone comes without prefix. Ends with the exit code of the
    job.
    """
    from fleet.commands import logs as verb

    request = verb.LogsRequest(fleet=_checked(fleet), follow=follow, lines=lines, worker=worker, job=job)
    _run(fleet, output, lambda sink: verb.run(request, _ports(), sink), prefix=worker == "all", live=follow)


@app.command()
def status(
    fleet: Annotated[
        str, typer.Option("--fleet", envvar=NAME_VARIABLE, metavar="NAME", help="Only this one.", show_default=False)
    ] = "",
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the fleets, their hosts, and what runs on them."""
    from fleet.commands import status as verb

    request = verb.StatusRequest(fleet=_checked(fleet) if fleet else "")
    statuses = verb.run(request, _ports())
    from fleet.console.tables import print_status

    try:
        print_status(statuses, sys.stdout, json=output is Output.JSON)
    except BrokenPipeError:
        raise typer.Exit(_end_quietly()) from None


@app.command()
def stop(
    grace: Grace = 10.0,
    fleet: Fleet = DEFAULT_FLEET,
    output: OutputOption = Output.AUTO,
) -> None:
    """End the running job on all hosts; the fleet stays up."""
    from fleet.commands import stop as verb

    request = verb.StopRequest(fleet=_checked(fleet), grace_s=grace)
    _run(fleet, output, lambda sink: verb.run(request, _ports(), sink))


@app.command()
def down(
    fleet: Fleet = DEFAULT_FLEET,
    yes: Yes = False,
    output: OutputOption = Output.AUTO,
) -> None:
    """Delete the fleet and all its files, and prove it."""
    from fleet.commands import down as verb

    request = verb.DownRequest(fleet=_checked(fleet))
    _run(fleet, output, lambda sink: verb.run(request, _ports(yes), sink))


@app.command()
def demo(
    workers: Annotated[
        int, typer.Option("--workers", "-w", metavar="N", parser=_whole, help="Number of workers.")
    ] = 2,
    output: OutputOption = Output.AUTO,
) -> None:
    """Show the whole way on this computer.

    Starts two workers, trains a small model on them, and takes everything down again.
    """
    from fleet.commands import demo as verb

    _run(verb.FLEET, output, lambda sink: verb.run(verb.DemoRequest(workers=workers), _ports(yes=True), sink))


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
    sink = _sink(Output.LINES if output is Output.AUTO and not live else output, prefix=prefix)
    try:
        verb(sink)
    except FleetError as error:
        sink.close()
        error.next_step = for_fleet(error.next_step, fleet)
        raise typer.Exit(_report(error, sink)) from None
    except KeyboardInterrupt:
        sink.close()
        raise typer.Exit(_report(CancelledError("interrupted"), sink)) from None
    except BrokenPipeError:
        raise typer.Exit(_end_quietly()) from None
    finally:
        sink.close()


def _report(error: FleetError, sink: Sink | None = None) -> int:
    from fleet.console.colors import wants_color
    from fleet.console.errors import print_error
    from fleet.console.jsonl import JsonSink

    json = sink if isinstance(sink, JsonSink) else None
    print_error(error, sys.stderr, json=json, color=wants_color(sys.stderr, os.environ))
    return error.exit_code


def _wants_json(arguments: list[str]) -> bool:
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return any(
        word in ("-ojson", "--output=json", "-o=json") or (word == "json" and before in ("-o", "--output"))
        for before, word in zip(["", *own], own, strict=False)
    )


def _bug(error: Exception) -> FleetError:
    import traceback

    file = state_root() / "bug-report.txt"
    sentence = f"a bug of fleet: {type(error).__name__}: {error}"
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return FleetError(sentence, cause="".join(traceback.format_exception(error)))
    return FleetError(sentence, next_step=f"please report it, with {file}")


def _usage(error: TyperException) -> UsageError:
    sentence = getattr(error, "format_message", lambda: str(error))()
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "fleet"
    return UsageError(sentence.replace("\n", " "), next_step=f"{command} --help")


def _end_quietly() -> int:
    # What reads our output has gone: nothing more may be written, at exit neither.
    sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    return 0


_ABORTED = 130  # what Typer makes of a Ctrl-C


def _interrupted(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def run(arguments: list[str]) -> int:
    """Run one command.

    Returns:
        The exit code, see fleet.errors.
    """
    signal.signal(signal.SIGTERM, _interrupted)
    try:
        code = app(args=arguments or ["--help"], prog_name="fleet", standalone_mode=False)
        if code != _ABORTED:
            return code if isinstance(code, int) else 0
        failure: FleetError = CancelledError("interrupted")
    except FleetError as error:
        failure = error
    except TyperException as error:
        failure = _usage(error)
    except KeyboardInterrupt:
        failure = CancelledError("interrupted")
    except Exception as error:  # noqa: BLE001 - a bug: the traceback goes into a file, the user gets a sentence
        failure = _bug(error)
    return _report(failure, _sink(Output.JSON) if _wants_json(arguments) else None)
