"""Arguments and variables with another value in each task: those that a script requires, and their values. Pure.

Sources of the variables: https://docs.open-mpi.org/en/main/tuning-apps/environment-var.html,
https://slurm.schedmd.com/srun.html, https://docs.pytorch.org/docs/stable/elastic/run.html, the manuals of MPICH (PMI)
and MVAPICH2 (MV2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_ONE = r"(?:node|machine|host|process|proc|replica|trainer|task|worker)"
_ENDS = r"(?:hosts|addr(?:es(?:se)?)?s|endpoints|list)"
_VALUES = (
    (rf"(?:(?:global|my|mpi|dist|{_ONE})_?)?rank(?:_id)?|(?!task|worker){_ONE}_?(?:id|idx|index)", "{rank}"),
    (r"(?:(?:tf_)?task|worker)_?(?:id|idx|index|number)|index|idx", "{index}"),
    (r"job_?name|(?:tf_)?(?:task|job|node)_?type|role", "{type}"),
    (rf"world_?size|(?:num|n|total)_?(?:workers|nodes|tasks|proc\w*|hosts|machines|ranks)|{_ONE}_?count", "{tasks}"),
    (rf"workers?_?{_ENDS}", "{worker_hosts}"),
    (rf"(?:ps|parameter_servers?)_?{_ENDS}", "{ps_hosts}"),
    (rf"(?!list$)(?:(?:all|cluster|node|host|task|peer)_?)?{_ENDS}", "{addresses}"),
)
"""Patterns of names, and values with the placeholders of `train.agent.protocol.cluster`."""
# Options that have these values, also if the script has a default for them.
_CERTAIN = r"(?:node_|global_)?rank|task_(?:id|index|type)|world_size|(?:ps|worker)_hosts|nnodes|num_nodes"
# Reports of argparse, absl, click, and fire.
_REPORT = re.compile(
    r"error: the following arguments are required: (.+)|no value for the required argument: (\w+)"
    r"|flag (--\w+)=.{0,80}: Flag \S+ must (?:have a value other than None|be specified)"
    r"|Missing (?:option|argument|parameter:?) ((?:['\"]?[\w-]+['\"]?(?: / )?)+)"
)
_TOO_FEW = re.compile(r"IndexError: (?:list|tuple) index out of range|ValueError: not enough values to unpack")
_READ = re.compile(r"(?!.*\bif\b)\s*([A-Za-z_][\w, ]*?) *(?:: *\w+ *)?=(?!=).*\bargv\b.*")
_DECLARED = re.compile(
    r"(?:(?:add_argument|[oO]ption)\(\s*(?:[\"']-\w[\"'],\s*)?[\"'](--[\w-]+)|DEFINE_\w+\(\s*(?:name=)?[\"'](\w+)"
    r"|click\.argument\(\s*[\"'](\w+))[\"'](?:[^()]|\([^()]*\))*"
)
_FIRST = re.compile(r"\bdefault\s*=\s*[\"']?(?:0|-1)\b|^DEFINE_\w+\([^,]+,\s*[\"']?(?:0|-1)\b")


def value_of(name: str) -> str:
    """Return the value of an argument that differs by task, ``{rank}``; empty: it is another argument."""
    return _first_match(_VALUES, _plain(name))


def _first_match(values: Iterable[tuple[str, str]], name: str) -> str:
    return next((value for pattern, value in values if re.fullmatch(pattern, name)), "")


def words(names: Iterable[str]) -> list[str]:
    """Return the words of a command line that pass these arguments; NAME stands for a value that is not known."""
    pairs = ((name, value_of(name) or re.sub(r"\W", "_", name.lstrip("-")).upper()) for name in names)
    return [word for name, value in pairs for word in ((name, value) if name.startswith("-") else (value,))]


def find_missing(lines: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the arguments that were missing, as the last lines of a task report; empty: none.

    Args:
        lines: The end of the output, or the lines of a traceback from the last call in the user's code.
    """
    names: list[str] = []
    for line in lines:
        for report in _REPORT.finditer(line):
            for aliases in (re.findall(r"[^\s'\"/]+", name) for name in report[report.lastindex or 0].split(", ")):
                names += [alias for alias in aliases if alias.startswith("--")][:1] or aliases[:1]
        names += _positions(lines).values() if _TOO_FEW.match(line) else ()
    return tuple(dict.fromkeys(names))


def complete(missing: Sequence[str], sources: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return the names of all arguments to add so that a script runs: also those that it would report later.

    Args:
        missing: The names that it reported.
        sources: The text of its files.
        given: The arguments that it had.
    """
    text, names = "\n".join(sources), list(missing)
    read = _positions(text.splitlines())
    if set(read.values()).issuperset(missing):
        return [read.get(at, f"ARG{at}") for at in range(len(given) + 1, max(read) + 1)]
    typed = {_plain(word.partition("=")[0]) for word in given if word.startswith("-")}
    for match in _DECLARED.finditer(text):
        name = match[1] or match[3] or f"--{match[2]}"
        is_needed = match[3] or "required=True" in match[0] or re.fullmatch(_CERTAIN, _plain(name))
        aliases = {_plain(name), *re.findall(r"[\"']-(\w)[\"']", match[0])}
        names += [name] if is_needed and not aliases & {*typed, *map(_plain, names)} else []
    return names


def find_defaulted(sources: Iterable[str], given: Sequence[str]) -> list[str]:
    """Return the names of the options of one task, if its index has a default that all tasks would take.

    Args:
        sources: The text of the script's files.
        given: The arguments that it has.
    """
    typed = {_plain(word.partition("=")[0]) for word in given if word.startswith("-")}
    declared = {match[1] or f"--{match[2]}": match[0] for match in _DECLARED.finditer("\n".join(sources))}
    certain = re.compile(rf"{_CERTAIN}|job_name")  # together with an index
    names = [name for name in declared if name != "--None" and certain.fullmatch(_plain(name))]
    indices = [name for name in names if value_of(name) in ("{rank}", "{index}") and _FIRST.search(declared[name])]
    return names if indices and typed.isdisjoint(map(_plain, names)) else []


def _plain(name: str) -> str:
    return name.lstrip("-").replace("-", "_").lower()


def _positions(lines: Sequence[str]) -> dict[int, str]:
    """Return the arguments that lines of a script read from sys.argv, by index."""
    names: dict[int, str] = {}
    for match in (match for match in map(_READ.match, lines) if match):
        targets, first = re.split(r", *", match[1]), int("argv[1:" in match[0])
        indices = [int(index) for index in re.findall(r"\bargv\[(\d)\]", match[0])]
        indices = indices or [*range(first, first + len(targets))][: len(targets) if targets[1:] else 0]
        names.update(zip(indices, targets, strict=False))
    return {index: name for index, name in sorted(names.items()) if index}


# --- variables that other launchers set for each process, and their values in a task of `fleet` --------------------

INDEX = (
    "RANK", "PMI_RANK", "PMIX_RANK", "PMI_ID", "MPI_RANKID", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK",
    "PALS_RANKID", "FLUX_TASK_RANK", "SLURM_PROCID", "SLURM_NODEID", "PBS_NODENUM", "PBS_TASKNUM", "TASK_INDEX",
)  # fmt: skip
COUNT = (
    "WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_UNIVERSE_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_NTASKS",
    "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_NODES",
    "PBS_NUM_NODES", "FLUX_JOB_SIZE",
)  # fmt: skip
_VALUES_OF_VARIABLES = (
    ("TASK_INDEX", "$FLEET_TASK_INDEX"),
    ("|".join(INDEX), "$FLEET_RANK"),
    ("|".join(COUNT), "$FLEET_NUM_TASKS"),
    (r"\w*LOCAL_?RANK(?:ID)?|\w*NODE_RANK|SLURM_LOCALID", "0"),
    (r"\w*LOCAL_(?:WORLD_)?SIZE|SLURM_NTASKS_PER_NODE", "1"),
    (r"SLURM(?:_JOB|_STEP)?_NODELIST", '"$(echo $FLEET_ADDRESSES | sed s/:[0-9]*//g)"'),
    ("MASTER_ADDR", "${FLEET_ADDRESSES%%:*}"),
    ("MASTER_PORT", '"$(echo $FLEET_ADDRESSES | sed "s/,.*//; s/.*://")"'),
    ("SLURM_JOB_?ID|PBS_JOBID", "$FLEET_JOB_ID"),
)
"""Patterns of names, and values for a shell."""
LAUNCHERS = (
    r"(?:PMI|PMIX|OMPI|MV2|MPI|PALS|FLUX|SLURM|PBS)_\w+|RANK|WORLD_SIZE|MASTER_(?:ADDR|PORT)|"
    r"LOCAL_(?:RANK|WORLD_SIZE)|NODE_RANK"
)
"""Pattern of the names of all variables that other launchers set."""


def is_foreign(name: str) -> bool:
    """Return whether another launcher sets the variable `name`."""
    return re.fullmatch(LAUNCHERS, name) is not None


def assignments(names: Iterable[str]) -> str:
    """Return assignments for a shell that give variables their values in a task; others are omitted."""
    values = {name: _first_match(_VALUES_OF_VARIABLES, name) for name in names}
    return " ".join(f"{name}={value}" for name, value in values.items() if value)
