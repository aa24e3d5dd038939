"""Find the program of a job, its files, and its variables on this computer, and check them before the job starts."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from fleet.errors import FleetError, UsageError, fold, translate_errors
from fleet.events import Level, Note, Sink
from fleet.fleets.connect import install, job_packages
from fleet.remote.client import AgentClient
from fleet.remote.upload import Bundle, DataSource, parse_data, scan
from fleet.services import Services
from fleet.state import TrainCommand
from fleet.steps import Again, NextStep, Shell, Step
from provision.model import FleetSpec, Host
from train.agent.protocol.records import Prepare, Prepared
from train.agent.protocol.wording import join_names
from train.diagnosis.texts import ARGUMENTS_HINT, HOSTED_HINT, LAUNCHER_HINT, PLACEHOLDERS_HINT
from train.diagnosis.verdict import Cause, Verdict
from train.errors import ScriptError
from train.lint.finding import Finding, Severity
from train.lint.linter import job_tf_config, lint
from train.script import keras
from train.script.arguments import assignments, complete, find_defaulted, find_missing, is_foreign, value_of, words
from train.script.entry import EntryPoint, Kind, find_entry
from train.script.imports import CALLS, Imports, advice, needed
from train.script.notebook import read_notebook
from train.script.requirements import LOCK, PROJECT, REQUIREMENTS, Requirements, read_requirements

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def _check_name(name: str, source: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is not a name of a variable ({source})", hint="write it as NAME=VALUE")
    if name == "TF_CONFIG":
        raise UsageError(
            "TF_CONFIG is set by fleet, for each worker differently",
            hint="leave it out; --dry-run shows what each worker gets",
        )
    return name


def _read(path: Path, option: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"cannot read {option} {path}", cause=reason or "", hint="check the path") from error


def _file_variables(path: Path) -> dict[str, str]:
    variables = {}
    for number, line in enumerate(_read(path, "--env-file").splitlines(), start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, separator, value = text.removeprefix("export ").partition("=")
        if not separator:
            raise UsageError(f"{path}, line {number}: no NAME=VALUE", hint="write one variable a line")
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        variables[_check_name(name.strip(), f"{path}, line {number}")] = value
    return variables


def environment(given: Sequence[str], files: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the script's variables: those of the files, overridden by those in `given`.

    Args:
        given: ``K=V``, or ``K`` alone for its value in `here`.
        files: Files with one ``K=V`` per line; empty lines and lines that begin with # are skipped.
        here: The environment of this program.

    Raises:
        UsageError: a name is malformed or not set here, or a file cannot be read.
    """
    variables: dict[str, str] = {}
    for file in files:
        variables.update(_file_variables(Path(file).expanduser()))
    for item in given:
        name, separator, value = item.partition("=")
        _check_name(name, "--env")
        if not separator and name not in here:
            raise UsageError(
                f"--env {name}: the variable is not set here",
                hint=f"give its value, --env {name}=VALUE, or set it here first: export {name}=VALUE",
            )
        variables[name] = value if separator else here[name]
    return variables


def withheld(given: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Return the files that hold secrets, from --secret K=@FILE and --env-file: they must not be uploaded.

    Args:
        given: Values of --secret.
        files: Values of --env-file.
    """
    sources = [source[1:] for _, _, source in (item.partition("=") for item in given) if source.startswith("@")]
    return tuple(str(Path(path).expanduser()) for path in (*sources, *files))


def secrets(given: Sequence[str], here: Mapping[str, str]) -> dict[str, str]:
    """Return the script's secret variables; their values never appear on a command line.

    Args:
        given: ``K`` for its value in `here`, or ``K=@FILE`` for the content of a file.
        here: The environment of this program.

    Raises:
        UsageError: a value is on the command line, a variable is not set here, or its file cannot be read.
    """
    variables = {}
    for item in given:
        name, separator, source = item.partition("=")
        _check_name(name, "--secret")
        if separator and not source.startswith("@"):
            raise UsageError(
                f"--secret {name} has its value on the command line, where every user of this computer can read it",
                hint=f"set the variable here and give --secret {name}, or keep it in a file: --secret {name}=@FILE",
            )
        if separator:
            variables[name] = _read(Path(source[1:]).expanduser(), f"--secret {name}").rstrip("\n")
        elif name in here:
            variables[name] = here[name]
        else:
            raise UsageError(
                f"--secret {name}: the variable is not set here",
                hint=f"set it first, export {name}=…, or keep it in a file: --secret {name}=@FILE",
            )
    return variables


_KERAS_RULE = "MW601"  # `choose_keras` decides this with the versions on all hosts
_LAUNCHERS_RULE = "MW110"
_SERVERS_RULE = "MW108"
_RESUME_RULES = ("MW403", "MW404", "MW405")  # hints that matter if a job is restarted
_FEWEST_WITH_SERVERS = 3  # a chief, a worker, a parameter server
_MOST_FINDINGS = 4  # shown before a job
# Directories of Colab and Kaggle.
_HOSTED = re.compile(
    r"[\s'\"](/content/(?:g?drive/My ?Drive/)?|/kaggle/(?:input|working)/)([\w-][\w.-]*(?:/[\w-][\w.-]*)*)"
)


@dataclass(frozen=True)
class ProgramRequest:
    """A program to run on a fleet: a script, a module, or a command.

    Attributes:
        fleet: Name of the fleet.
        script: A script, or a directory with ``__main__.py``; empty: none.
        module: A module below the working directory; empty: none.
        command: Another program with its arguments; empty: none.
        arguments: Arguments of the script or module.
        workdir: Directory to upload; empty: that of the script, else the current one.
        data: Additional data to upload, ``SRC[:DEST]``.
        requirements: A requirements file; None: the file next to the script, if it exists; empty: do not install any.
        adapt: Whether to adapt interpreters to scripts for older TensorFlow.
        env: Environment variables.
        secrets: Secret environment variables, never written to a file.
        withheld: Files with secrets, never uploaded.
    """

    fleet: str
    script: str = ""
    module: str = ""
    command: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    workdir: str = ""
    data: tuple[str, ...] = ()
    requirements: str | None = None
    adapt: bool = True
    env: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inputs:
    """The parts of a program that were found on this computer.

    Attributes:
        entry: The entry point to start.
        requirements: Requirements to install; None: nothing is installed.
        data: Additional data to upload.
        withheld: Files with secrets, which are never uploaded.
        arguments: Arguments of the script: those given, else those of the notebook that runs it.
    """

    entry: EntryPoint
    requirements: Requirements | None
    data: tuple[DataSource, ...]
    withheld: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """A program that a job runs, with all files that it needs.

    Attributes:
        entry: The entry point to start.
        bundle: The files to upload.
        requirements: Requirements to install; None: nothing is installed.
        python_path: PYTHONPATH of the job.
    """

    entry: EntryPoint
    bundle: Bundle
    requirements: Requirements | None = None

    python_path: str = ""

    @cached_property
    def imports(self) -> Imports:
        """Return the modules that the program imports as soon as it runs."""
        return needed(self.entry, [item.path for item in self.bundle.entries], self.python_path)


def find(request: ProgramRequest) -> Inputs:
    """Return the entry point of a program, its requirements, and its data.

    Raises:
        UsageError: a file does not exist, cannot be started, or refers to something only on this computer.
    """
    arguments = request.arguments
    with translate_errors():
        if Path(request.script).suffix == ".ipynb" and Path(request.script).expanduser().is_file():
            notebook = Path(request.script).expanduser()
            entry, arguments = _notebook_entry(notebook, request.workdir, arguments)
        else:
            entry = find_entry(request.script, request.module, request.command, request.workdir)
        requirements = _requirements(entry, request.requirements)
    if requirements is not None:
        entry = replace(entry, note="; ".join(filter(None, (entry.note, requirements.note))))
        requirements = requirements if requirements.text.strip() else None
    data = tuple(parse_data(item) for item in request.data)
    withheld = tuple(Path(path).resolve() for path in request.withheld)
    return Inputs(entry, requirements, data, withheld, arguments)


def _notebook_entry(notebook: Path, workdir: str, given: tuple[str, ...]) -> tuple[EntryPoint, tuple[str, ...]]:
    """Write the files of a notebook into a temporary directory; return the script that trains, and its arguments.

    Modules and requirements next to the notebook belong to the job as well.
    """
    files, main, arguments = read_notebook(notebook)
    if workdir:
        message = "--workdir does not apply to a notebook, whose files are written into a directory of their own"
        raise ScriptError(message, again={"--workdir": None})
    directory = Path(tempfile.mkdtemp(prefix="fleet-notebook-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    near = (*notebook.parent.glob("*.py"), *(notebook.with_name(name) for name in (REQUIREMENTS, PROJECT, LOCK)))
    for path in filter(Path.is_file, near):
        shutil.copy(path, directory)
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text, encoding="utf-8")
    module = (
        main.removesuffix(".py").replace("/", ".") if (directory / main).with_name("__init__.py").is_file() else ""
    )
    entry = find_entry("" if module else str(directory / main), module, (), str(directory))
    names = ", ".join(files)
    running = shlex.join([main, *(given or arguments)])
    note = f"{notebook.name} writes {names}: running {running} in a directory of its own"
    return replace(entry, note=note), given or arguments


def collect(inputs: Inputs, services: Services, python_path: str = "") -> Program:
    """Return the program with all files to upload.

    Raises:
        UsageError: a file cannot be read, or the files exceed a limit.
    """
    entry = inputs.entry
    bundle = scan(
        entry.workdir,
        entry.file,
        data=inputs.data,
        cache=services.store.hashes,
        state=services.store.root,
        withheld=inputs.withheld,
    )
    return Program(entry, bundle, inputs.requirements, python_path)


def _requirements(entry: EntryPoint, given: str | None) -> Requirements | None:
    """Return what the given file requires, or the nearest one of the script's directory and those above it.

    In a directory, the dependencies of pyproject.toml take precedence over requirements.txt. The current directory is
    the last one if the script is below it.
    """
    if given is not None:
        return read_requirements(Path(given).expanduser()) if given else None
    directories = [path for path in entry.file.parents if path.is_relative_to(entry.workdir)] if entry.file else []
    directories = directories[::-1] if entry.kind is Kind.MODULE else directories
    current = Path.cwd()
    directories += [entry.workdir, *([current] if entry.workdir.is_relative_to(current) else [])]
    note: Requirements | None = None
    for file in (directory / name for directory in directories for name in (PROJECT, REQUIREMENTS)):
        read = read_requirements(file) if file.is_file() else None
        if read is not None and (read.text or file.name == REQUIREMENTS):
            return read
        note = note or read
    return note


def install_for(program: Program, spec: FleetSpec, clients: Sequence[AgentClient], sink: Sink) -> dict[str, str]:
    """Install missing packages; return the interpreter of each host for the job, by host.

    Args:
        program: The program.
        spec: Index and proxy of the fleet.
        clients: The agents.
        sink: Takes BootstrapProgress.

    Raises:
        FleetError: a host cannot be prepared; the error names all of these hosts.
    """
    requirements = program.requirements
    if requirements is None:
        return {client.host.name: client.host.python for client in clients}
    answers = install(clients, job_packages(requirements.text, requirements.constraints, spec), sink)
    return {client.host.name: answer.python for client, answer in zip(clients, answers, strict=True)}


def preparation(program: Program | None, fleet: str, host: Host, job: str, python: str, *, dry_run: bool) -> Prepare:
    """Return the request to prepare a slot for a job.

    Args:
        program: The program to run; None: only the properties of the host are requested.
        fleet: Name of the fleet.
        host: The slot.
        job: The identifier of the job.
        python: The interpreter of the job on this host.
        dry_run: Reserve and keep nothing.
    """
    return Prepare(
        job=job,
        fleet=fleet,
        slot=host.name,
        entries=program.bundle.entries if program else [],
        address=host.private_address,
        python=python,
        dry_run=dry_run,
        program=program.entry.program if program else "",
        imports=sorted(program.imports.locations) if program else [],
        import_directories=list(program.imports.directories) if program else [],
    )


# --- requirements on the hosts --------------------------------------------------------------------------------------


def keras_need(entry: EntryPoint) -> keras.Need:
    """Return what a job requires of Keras."""
    if entry.kind is Kind.R and entry.file is not None:
        return keras.needs_of_r(entry.file.read_bytes().decode("utf-8", "replace"), entry.name)
    need = keras.need_of(entry.sources)
    return need if need.backends else replace(need, backends=tuple(entry.settings_of(keras.BACKEND)))


def choose_keras(
    entry: EntryPoint, request: ProgramRequest, workers: Sequence[Prepared], spares: Sequence[Prepared] = ()
) -> keras.Choice:
    """Return the Keras of a job, which any spare must be able to use as well, and its adaptations.

    Args:
        entry: The entry point of the job.
        request: The variables that the user sets, and whether interpreters can be adapted to older TensorFlow.
        workers: The slots that get a task at the start.
        spares: The other slots.

    Raises:
        NotReadyError: the hosts lack something that the job requires, or have different versions.
    """
    need, adapt = keras_need(entry), request.adapt
    env = {**request.env, **request.secrets}
    versions = {item.member.slot: keras.versions_of(item) for item in workers}
    with translate_errors():
        choice = keras.choose(need, versions, env, adapt=adapt)
        if spares and (choice.env or len(versions) > 1):
            keras.choose(
                need, versions | {item.member.slot: keras.versions_of(item) for item in spares}, env, adapt=adapt
            )
    return keras.with_adaptations(choice, need, len(versions), adapt=adapt, tf_config=_job_tf_config(entry))


def _job_tf_config(entry: EntryPoint) -> str:
    """Return the name of the adaptation to a script that sets TF_CONFIG; empty: it does not."""
    if entry.kind is Kind.R and entry.file is not None:
        return keras.tf_config_of_r(entry.file.read_bytes().decode("utf-8", "replace"), entry.name)
    return job_tf_config(entry.sources)


@dataclass(frozen=True)
class Terms:
    """The properties of a job on which warnings about its script depend.

    Attributes:
        adapt: Whether interpreters are adapted to scripts for older TensorFlow.
        servers: Whether the job has a chief and parameter servers; None: unknown.
        chief: Whether the job has a task of this type; None: unknown.
        variables: Names of the variables that the user sets.
        restarts: Whether the job is restarted after a failure.
        keeps: Whether `fleet` keeps the script's checkpoint directory the same on all hosts.
    """

    adapt: bool = True
    servers: bool | None = None
    chief: bool | None = None
    variables: frozenset[str] = frozenset()
    restarts: bool = False
    keeps: bool = False


_TERMS = Terms()


def warnings(program: Program, prepared: Sequence[Prepared], terms: Terms) -> Iterator[Note]:
    """Yield warnings about likely problems of a job on these hosts, before it starts."""
    findings = script_findings(program.entry, prepared, terms)
    for finding in findings[:_MOST_FINDINGS]:
        is_short = finding.rule != _LAUNCHERS_RULE or program.entry.workdir != Path.cwd()
        shown_one = finding if is_short else replace(finding, reason=f"{finding.reason}; {finding.fix}")
        yield Note(described(shown_one), Level.WARNING)
    if len(findings) > _MOST_FINDINGS:
        yield Note(f"{len(findings) - _MOST_FINDINGS} more: fleet lint {shown(program.entry)}", Level.WARNING)
    missing = {item.member.slot: item.missing for item in prepared}
    for text in missing_imports(program.imports.locations, missing, program.entry):
        yield Note(text, Level.WARNING)
    for text in filter(None, (program.entry.note, program.imports.note)):
        yield Note(text)


def script_findings(
    entry: EntryPoint, prepared: Sequence[Prepared], terms: Terms = _TERMS, *, has_final_versions: bool = True
) -> list[Finding]:
    """Return the errors and warnings that `fleet lint` reports for a job's sources on these hosts.

    Hints are omitted, except for those on checkpoints if the job is restarted after failures.

    Args:
        entry: The entry point of the job.
        prepared: The hosts of the job, one for each worker.
        terms: How the job is run.
        has_final_versions: Whether TensorFlow keeps its version, because the job does not install another one first.
    """
    if not entry.sources:
        return []
    findings = lint(
        entry.sources,
        workers=len(prepared),
        gpus=max(len(item.gpus) for item in prepared),
        versions=prepared[0].versions if has_final_versions else None,
        adapt=terms.adapt,
        servers=terms.servers,
        chief=terms.chief,
    )
    resumes = [rule for rule in _RESUME_RULES if terms.restarts and not (terms.keeps and rule == "MW404")]
    return [
        finding
        for finding in findings
        if finding.rule != _KERAS_RULE
        and (finding.severity is not Severity.HINT or finding.rule in resumes)
        and not (finding.rule == _LAUNCHERS_RULE and _sets_variables(entry, finding.message, terms))
    ]


def _sets_variables(entry: EntryPoint, message: str, terms: Terms) -> bool:
    """Return whether a job sets all variables of another launcher that a message names."""
    names = filter(is_foreign, re.findall(r"\w+", message))
    return all(name in terms.variables or entry.settings_of(name) for name in names)


def _set_variables(request: ProgramRequest, entry: EntryPoint, verdict: Verdict | None) -> list[NextStep]:
    """Return the command that sets the variables of another launcher without which a script failed, if any."""
    if verdict is None or verdict.hint != LAUNCHER_HINT or request.command or request.script.endswith(".ipynb"):
        return []
    names = filter(is_foreign, re.findall(r"[\"'](\w+)[\"']", "\n".join(entry.texts)))
    assigned = assignments(names)
    line = f"{assigned} exec {shlex.join(['python', *entry.words])}"
    words = ("bash", "-c", f'{line} "$@"', "bash", *request.arguments) if request.arguments else ("bash", "-c", line)
    here = entry.workdir == Path.cwd()
    change = {"SCRIPT": None, "-m": None, **({} if here else {"--workdir": os.path.relpath(entry.workdir)})}
    return [Again(change, program=words)] if assigned else []


def _missing_file(request: ProgramRequest, entry: EntryPoint, verdict: Verdict | None) -> str:
    """Return the file that a script did not find and that ``--workdir .`` uploads; empty if there is none."""
    if verdict is None or verdict.kind is not Cause.FILE_NOT_FOUND or not request.script:
        return ""
    message = "\n".join(line for line in (verdict.message, *verdict.lines) if not line.startswith(" "))
    words = re.findall(r"'([^'\n]+)'|([^\s'\";:,(){}\[\]]+)", re.sub("No such file or directory", "", message))
    uploaded, current = entry.workdir, Path.cwd()
    for word in (quoted or plain for quoted, plain in words):
        path = Path(re.sub(r"(^|/)[^/]*[*?\[].*", "", word))  # of a pattern, the directory
        below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
        if below and (current / path).exists() and not (uploaded / path).exists():
            with contextlib.suppress(ScriptError):  # without it, the script would fail for another reason
                find_entry(request.script, "", (), ".")
                return str(path)
    return ""


def add_next_steps(
    error: FleetError, request: ProgramRequest, entry: EntryPoint, verdict: Verdict | None, typed: TrainCommand
) -> None:
    """Add the command that provides the variables, the arguments, or the file without which a script failed, if any.

    Args:
        error: The error; if the values of arguments are not known, its hint becomes the command with their names.
        request: The program.
        entry: Its entry point, which was found when the job started.
        verdict: Why it failed.
        typed: The command that started it.
    """
    error.next_steps = (*_set_variables(request, entry, verdict), *error.next_steps)
    if file := _missing_file(request, entry, verdict):
        error.hint = f"{file} is in the current directory, which was not uploaded"
        error.next_steps = (Again({"--workdir": "."}), *error.next_steps)
    hosted = _HOSTED.search(verdict.message) if verdict and verdict.kind is Cause.FILE_NOT_FOUND else None
    if hosted:
        root, name = hosted.groups()
        error.hint = HOSTED_HINT.format(name=name, root=root)
        if request.script.endswith(".py") and (Path(request.script).expanduser().parent / name).exists():
            edit = Shell(shlex.join(["sed", "-i", f"s#{root}##g", request.script]))
            error.next_steps = (edit, Again({}), *error.next_steps)
    missing = find_missing(verdict.lines) if verdict and verdict.hint.startswith(ARGUMENTS_HINT) else ()
    if not missing or (entry.kind is Kind.COMMAND and entry.first is None):
        return
    operand = next((at for at, word in enumerate(request.command) if at and not word.startswith("-")), 0)
    names = complete(missing, entry.texts, request.arguments or request.command[operand + 1 :])
    program = (*typed.program, *words(names))
    error.hint = ARGUMENTS_HINT + Step("train", *typed.options, "--", *program).text(request.fleet)
    if all(map(value_of, names)):  # a command that repeats a job takes neither this option nor arguments
        again = Again({"--from-capsule": None}, program=program)
        error.hint, error.next_steps = PLACEHOLDERS_HINT, (again, *error.next_steps)


def warn_of_defaults(
    request: ProgramRequest, entry: EntryPoint, workers: int, typed: TrainCommand | None
) -> Iterator[Note]:
    """Yield a warning if the index of a task is an option whose default all tasks would take, with the command."""
    names = find_defaulted(entry.texts, request.arguments) if entry.kind is not Kind.COMMAND else []
    if names and typed is not None and workers > 1:
        line = Step("train", *typed.options, "--", *request.arguments, *words(names)).text(request.fleet)
        text = f"every task takes the default of {join_names(names)}; to give each task its value: {line}"
        yield Note(text, Level.WARNING)


def refuse_without_servers(entry: EntryPoint, hosts: int) -> None:
    """Reject a script that requires a chief and parameter servers if the job has none.

    Args:
        entry: The entry point of the job.
        hosts: Number of hosts in the fleet.

    Raises:
        UsageError: every task would wait for a chief forever.
    """
    for finding in lint(entry.sources, workers=hosts, servers=False):
        if finding.rule == _SERVERS_RULE and finding.severity is Severity.ERROR:
            slots = -(-_FEWEST_WITH_SERVERS // hosts)
            change: dict[str, str | bool | None] = {"--chief": True, "--ps": "1"}
            raise UsageError(
                f"{finding.location}: {finding.message}",
                cause=finding.reason,
                next_steps=[Again({**change, **({"--tasks-per-host": str(slots)} if slots > 1 else {})})],
            )


def described(finding: Finding) -> str:
    """Return a finding as one sentence."""
    return f"{finding.location}: {finding.message}; {finding.reason} ({finding.rule})"


def missing_imports(
    locations: Mapping[str, str], missing: Mapping[str, Sequence[str]], entry: EntryPoint | None = None
) -> Iterator[str]:
    """Yield a sentence for each module that hosts lack: ``task.py:3 imports pandas, which worker-[0-1] lack``.

    Args:
        locations: The location of each import, by module.
        missing: Modules that are not found, by host.
        entry: The entry point of the job; None: unknown.
    """
    for module, location in locations.items():
        hosts = [host for host, names in missing.items() if module in names]
        if hosts:
            lack = f"{fold(hosts)} lack{'s' if len(hosts) == 1 else ''}"
            verb = "requires" if module in CALLS else "imports"
            yield f"{location} {verb} {module}, which {lack}; {advice(module, entry)}"


def shown(entry: EntryPoint) -> str:
    """Return the name of the entry point, shortened to 60 characters."""
    return entry.name if len(entry.name) <= 60 else entry.name[:59] + "…"
