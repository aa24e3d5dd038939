"""Tables of known failures: exceptions, last output of a process, reasons of agents.

A new rule is one row. The texts are those of TensorFlow 1.4 to 2.21, Keras 2 and 3, CPython, CUDA, NCCL and Linux.
"""

from __future__ import annotations

import re
from dataclasses import KW_ONLY, dataclass

from train.agent.protocol.records import ReasonKind
from train.diagnosis.texts import HOST_HINT, ILLEGAL_HINT, LAUNCHER_HINT, PACKAGE_HINT, RESOLVER_HINT, TASK_PORT_HINT
from train.diagnosis.tracebacks import Raised
from train.diagnosis.verdict import Cause
from train.script.launchers import LAUNCHERS
from train.script.requirements import FILES


@dataclass(frozen=True)
class Rule:
    """A pattern that identifies a kind of failure.

    Attributes:
        kind: The class of the failure.
        text: Found in the message of the exception, or in the line.
        types: Matches the whole short name of the exception; empty: any.
        unless: Excludes texts that contain it; empty: excludes none.
        shared: True if no single task is to blame because the tasks disagree with each other.
        clause: Replaces the clause of the kind; empty: the kind's clause.
        hint: Replaces the hint of the kind; empty: the kind's hint.
        calls: Found in the file of a call in the traceback; empty: raised in any file.
    """

    kind: Cause
    text: str
    _: KW_ONLY
    types: str = ""
    unless: str = ""
    shared: bool = False
    clause: str = ""
    hint: str = ""
    calls: str = ""

    def fits(self, raised: Raised) -> bool:
        """Return whether this exception is such a failure."""
        if self.types and not re.fullmatch(self.types, raised.short):
            return False
        if self.calls and not any(re.search(self.calls, frame.file) for frame in raised.frames):
            return False
        return self.reads(raised.message)

    def reads(self, text: str) -> bool:
        """Return whether this text reports such a failure."""
        return bool(re.search(self.text, text)) and not (self.unless and re.search(self.unless, text))


# --- exceptions -------------------------------------------------------------------------------------------------

# Without a match in this one, no exception is collateral.
_COLLATERAL_TEXT = re.compile(
    r"Collective ops is aborted by|failed to connect to all addresses|Socket closed|recvmsg:|sendmsg:"
    r"|stopped sending heartbeats|heartbeat timeout|RPC: /tensorflow\.|Collective has timed out|Barrier "
    r"|Deadline Exceeded|\[_Derived_\]|Unable to find the relevant tensor remote_handle"
    r"|RecvAsync is cancelled|remote process exited or there was a network error|Failed to pick subchannel"
    r"|Horovod has been shut down|cluster registration failed|Unexpected task registered"
)
# Texts that only the coordination service writes, with or without the prefix of TensorFlow's log.
_COORDINATION_TEXT = re.compile(
    r"Barrier timed out\. |stopped sending heartbeats|CoordinationService/\w|cluster registration failed"
)
# Part of answers of peers, too: only the status distinguishes an answer from silence.
_REMOTE_TEXT = re.compile(r"Additional GRPC error information from remote target")
# Texts of gRPC that identify it only at the start of an exception's message.
_COLLATERAL_HEAD = re.compile(
    r"OS Error|Endpoint read failed|Trying to connect an http1\.x server|Broken pipe|GOAWAY|Stream removed"
    r"|keepalive watchdog timeout|Transport closed|No route to host|Network is unreachable|Connection reset by peer"
    r"|(?:Cancelled|CANCELLED)\s*$|\{\"created\".{0,200}\"description\":\"EOF\""
)
_COLLATERAL_TYPE = re.compile(
    r"(?:Unavailable|DeadlineExceeded|Internal|Cancelled|Aborted|InvalidArgument|XlaRuntime|JaxRuntime)Error"
    r"|InvalidArgument"
)
# A peer that ended and was restarted while this task continued.
RESTARTED_FOR_SURE = re.compile(
    r"different device incarnation|was probably restarted|Graph handle is not found|Unable to find a context_id"
)
RESTARTED = re.compile(
    rf"{RESTARTED_FOR_SURE.pattern}|different incarnation|has likely restarted"
    r"|incarnation doesn't match with one in the group"
)
TIMED_OUT = re.compile(r"Collective has timed out")
# Any exception of TensorFlow with these words is collateral.
_DERIVED = re.compile(r"Collective ops is aborted by|\[_Derived_\]")
# A peer's report about itself, or a disagreement of the whole group.
_NEVER_COLLATERAL = re.compile(
    r"unknown device\.|Collective instance \d+ expected type|joining a group|that group has size"
    r"|Shape mismatch in the collective instance|found no source for broadcast"
    r"|different (?:device )?incarnation|incarnation doesn't match"
    r"|DNS resolution failed|Domain name not found|Name or service not known"
    r"|errors resolving |Address lookup failed"
)

_TF = r"\w+Error"
_MEMORY_TYPES = (
    r"ResourceExhaustedError|InternalError|UnknownError|InvalidArgumentError|RuntimeError|XlaRuntimeError"
    r"|OutOfMemoryError"
)
_NO_MEMORY = r"OOM when allocating|[Oo]ut of memory|OUT_OF_MEMORY|[Ff]ailed to alloc"
_MISSING = r"No such file or directory|[Nn]o files? matched|No file matching|[Ff]ailed to find any matching files"

_FILE_TYPES = r"NotFoundError|InvalidArgumentError|UnknownError|OSError|IOError|ValueError|DataLossError"
_CUDA_TYPES = (
    r"(?:Internal|FailedPrecondition|NotFound|Unknown|InvalidArgument|Unimplemented|Runtime|XlaRuntime|JaxRuntime"
    r"|Accelerator|CUDA\w*|Import|OS|Assertion)Error"
)
_IMPORTED = r"(?:Import|Attribute|Type|Runtime|NotFound|OS|Value|System|ModuleNotFound|VersionConflict|Version)Error"
# In every release since TensorFlow 1: if they are missing, the module is not TensorFlow.
_ALWAYS = (
    r"(?:distribute|Variable|constant|data|keras|io|train|nn|config|__version__|float32|zeros|ones|cast|reduce_sum|math"
    r"|random|Tensor|function|test|image|saved_model|compat)"
)
_TENSORFLOW_1 = (
    r"(?:Session|InteractiveSession|placeholder|app|flags|logging|contrib|ConfigProto|GPUOptions|get_variable"
    r"|variable_scope|global_variables_initializer|global_variables|initialize_all_variables|set_random_seed"
    r"|reset_default_graph|get_default_graph|trainable_variables|layers|log|to_float|to_int32|random_uniform"
    r"|random_normal|truncated_normal|gfile|python_io|FIFOQueue|all_variables|mul|sub)"
)

EXCEPTIONS = (
    # The tasks disagree.
    Rule(Cause.MODELS_DIFFER,
        r"Gather(?:V\d)?(?:_\d+)?(?: defined at|_device)[\s\S]{0,2000}Shape mismatch in the collective", shared=True,
        clause="the tasks gather tensors of different shapes",
        hint="give the tensors the same shape in every task: drop the last, smaller batch (drop_remainder=True), or "
        "pad them before they are gathered"),
    Rule(Cause.MODELS_DIFFER, r"Shape mismatch in the collective instance|found no source for broadcast",
        shared=True),
    Rule(Cause.VERSION_MISMATCH, r"Collective instance \d+ expected type|expected data_type .{0,40} but got",
        shared=True),
    Rule(Cause.WRONG_TF_CONFIG,
        r"unknown device\.|joining a group (?:with|that)|that group has size|different incarnation"
        r"|has likely restarted|incarnation doesn't match with one in the group|Unexpected task registered",
        types=_TF, unless=RESTARTED_FOR_SURE.pattern, shared=True),
    Rule(Cause.PEER_UNREACHABLE, r"Unable to find the relevant tensor remote_handle", shared=True,
        clause="a worker or parameter server was restarted, or could not be reached by another",
        hint="read the logs of the parameter servers and of the task that the message names"),
    Rule(Cause.WRONG_TF_CONFIG, r"The `task_id` \S+ exceeds the maximum id", types="ValueError"),
    Rule(Cause.WRONG_TF_CONFIG, r"Task index \S+ .{0,40}(?:out of range|not in)|Job \S+ .{0,20}not .{0,30}cluster"
        r"|Task \d+ was not defined in job"),
    Rule(Cause.WRONG_TF_CONFIG,
        r"TF_CONFIG|`?task_type`? .{0,60}(?:must|should|not) |cluster_spec.{0,60}(?:invalid|must|missing)"
        r"|There is no chief .{0,40}cluster|Unrecognized task_type|not a valid task_type|No such job in cluster",
        types=r"ValueError|RuntimeError|KeyError|TypeError"),
    Rule(Cause.WRONG_TF_CONFIG, r"^'?\d+'? has type (?:<class ')?str'?>?, but expected one of: \(?(?:<class ')?int",
        types="TypeError", clause="has a task index in TF_CONFIG that is text, not a number",
        calls=r"/server_lib\.py|/cluster_resolver/|/eager/context\.py|/distribute/"),
    # Resources that a task has used up.
    Rule(Cause.DISK_FULL, r"No space left on device|[Dd]isk quota exceeded|\[Errno 122\]|Disk is full",
        unless=r"inotify|/dev/shm"),
    Rule(Cause.DISK_FULL, r"\.tempstate\d+", types="ResourceExhaustedError", unless=_NO_MEMORY),
    Rule(Cause.GPU_OUT_OF_MEMORY,
        rf"(?s)(?:{_NO_MEMORY}).{{0,2000}}(?:GPU|gpu|CUDA|cuda)|(?:GPU|CUDA|cuda)[^\n]{{0,400}}(?:{_NO_MEMORY})",
        types=_MEMORY_TYPES, unless=r"device:CPU:\d+ by allocator"),
    Rule(Cause.HOST_OUT_OF_MEMORY,
        rf"(?s)(?:{_NO_MEMORY}).{{0,2000}}(?:device:CPU|allocator (?:mkl)?cpu)|std::bad_alloc", types=_MEMORY_TYPES),
    Rule(Cause.HOST_OUT_OF_MEMORY, r"", types=r"_?(?:Array)?MemoryError|ArrowMemoryError"),
    Rule(Cause.HOST_OUT_OF_MEMORY, r"node running low on memory", types="OutOfMemoryError"),
    Rule(Cause.HOST_OUT_OF_MEMORY, r"Cannot allocate memory", types=r"OSError|BlockingIOError|RuntimeError"),
    # Ports and names.
    Rule(Cause.PORT_IN_USE, r"\[Errno 98\]|\[Errno 48\]", types=r"OSError|error",
        clause="could not open a port of the script's own: it was in use", hint=TASK_PORT_HINT),
    Rule(Cause.PORT_IN_USE, r"Could not start gRPC server|Address already in use"),
    Rule(Cause.NAME_RESOLUTION,
        r"DNS resolution failed|Domain name not found|errors resolving \S|Address lookup failed"
        r"|Name or service not known|Temporary failure in name resolution"
        r"|No address associated with hostname|nodename nor servname|Failed to resolve '|Could not resolve host"),
    Rule(Cause.NCCL,
        r"\bNCCL\b|\bnccl(?:Unhandled|System|Internal|Invalid|Remote)\w*|unhandled (?:system|cuda) error",
        types=r"(?:Internal|Unknown|Unavailable|Aborted|Cancelled|FailedPrecondition|InvalidArgument)Error"),
    Rule(Cause.NCCL, r"\bNCCL (?:[Ee]rror|failure)|\bnccl\w+Error\b", types="RuntimeError"),
    # The host's GPU, packages and permissions.
    Rule(Cause.GPU_FAILED,
        r"Could not satisfy (?:explicit )?device specification .{0,300}GPU|No CUDA GPUs are available"
        r"|no CUDA-capable device|CUDA_ERROR_NO_DEVICE", types=_CUDA_TYPES,
        clause="asks for a GPU that this host or this TensorFlow does not have",
        hint="start the job on hosts with GPUs (fleet up --gpu TYPE), check nvidia-smi there, or let the script use "
        "the devices that tf.config.list_logical_devices() returns"),
    Rule(Cause.GPU_FAILED,
        r"DNN library is not found|DNN library initialization failed|libdevice(?:\.10\.bc)? not found"
        r"|can't find libdevice|insufficient driver version|driver version is insufficient"
        r"|NVIDIA driver on your system is too old"
        r"|Found no NVIDIA driver|failed call to cuInit|CUDA_ERROR_(?!OUT_OF)[A-Z]|uncorrectable ECC"
        r"|no kernel image is available|device kernel image is invalid|illegal memory access was encountered"
        r"|unspecified launch failure|misaligned address|CUDA error: (?!out of memory|device-side assert)"
        r"|cuda(?:Get|Set|Stream|Event|Launch|Memcpy)\w*\(?\)?.{0,60}(?:failed|error)|GPU is lost|fallen off the bus"
        r"|CU(?:DNN|BLAS|SOLVER|FFT)_STATUS_(?!ALLOC_FAILED|NOT_INITIALIZED)[A-Z]"
        r"|ptxas .{0,80}(?:fail|exit|not found)|Couldn't invoke ptxas|cudaErrorInsufficientDriver"
        r"|not compiled with CUDA enabled"
        r"|lib(?:cuda|cudart|cudnn|cublas|cufft|curand|cusolver|cusparse|nvinfer|nvrtc|nccl)[\w-]{0,20}\.so\S{0,12}: "
        r"(?:cannot open|undefined symbol|version)", types=_CUDA_TYPES),
    Rule(Cause.PACKAGES, r"name 'scipy' is not defined|requires? (?:the )?(?:SciPy|scipy)\b",
        types="NameError|ImportError|ModuleNotFoundError", clause="lacks the package scipy",
        hint=f"list scipy in {FILES} next to the script"),
    Rule(Cause.PACKAGES, r"cannot open shared object file|Library not loaded|DLL load failed", types=_IMPORTED,
        clause="lacks a library that a package needs",
        hint="install the library on all hosts (libGL.so.1: `sudo apt-get install -y libgl1`, or the package "
        "opencv-python-headless), or a build of the package that has it"),
    Rule(Cause.PACKAGES,
        r"_ARRAY_API not found|compiled using NumPy 1\.x|numpy\.core\S* failed to import|numpy\.dtype size changed"
        r"|[Bb]inary incompatibility|compiled against A[BP]I version|Descriptors cannot (?:not )?be created directly"
        r"|GLIBC(?:XX)?_[\d.]+\S{0,2} not found|CXXABI_[\d.]+\S{0,2} not found|undefined symbol|invalid ELF header"
        r"|wrong ELF class|file too short|Detected incompatible Protobuf|protobuf .{0,80}(?:gencode|runtime) version"
        r"|'MessageFactory' object has no attribute|cannot enable executable stack|numpy\.core\.multiarray"
        r"|cannot import name '\w{1,80}' from '(?:google\.protobuf|ml_dtypes|typing_extensions|wrapt|flatbuffers)\b"
        r"|Unable to convert function return value to a Python type"
        r"|\bis required for a normal functioning of this module"
        r"|(?:requires|needs) \S{1,60} ?[<>=!~]=? ?[\d.]+.{0,80}(?:but|found|have|installed)", types=_IMPORTED),
    Rule(Cause.PERMISSION,
        r"HTTP response code 40[13]|\[Errno 13\]|\[Errno 30\]|Read-only file system|HTTP Error 40[13]"
        r"|\bAccessDenied\b|does not have (?:permission|\S{1,80} access)",
        types=r"\w+Error|Forbidden|Unauthorized|ClientError|PermissionDenied"),
    Rule(Cause.PERMISSION, r"", types=r"PermissionError|PermissionDeniedError|PermissionDenied|UnauthenticatedError"),
    # Data and files.
    Rule(Cause.DATA_CANNOT_BE_SHARDED,
        r"FILE based sharding|not enough for the required \d+ shards|Found an unshardable source dataset"
        r"|autoshard"),
    Rule(Cause.DATA_RAN_OUT,
        r"End of sequence|[Yy]our input ran out of data|[Yy]our dataset iterator ran out of data",
        types=r"(?:OutOfRange|Cancelled|Value|Runtime|Unknown)Error|StopIteration"),
    Rule(Cause.DATA_RAN_OUT, r"Unexpected result of `?\w{4,7}_function`? \(Empty [Ll]ogs\)", types="ValueError",
        hint="give the data set at least one batch for every worker; a filter or a missing file may have left none"),
    Rule(Cause.CHECKPOINT_NOT_SHARED, r"_temp(?:_[0-9a-f]+)?/part-\d{5}-of-(?!00001)\d{5}",
        clause="did not find all parts of a checkpoint, which several tasks write",
        hint="save to storage that all hosts share, or let one task write all parts (experimental_io_device of "
        "tf.train.CheckpointOptions)"),
    Rule(Cause.SAVE_CONFLICT,
        r"MergeV2Checkpoints|_temp(?:_[0-9a-f]+)?(?:/part-\d|; No such file)|\.tempstate\d+|unable to lock file",
        types=r"(?:NotFound|FailedPrecondition|AlreadyExists|Unknown|OS|DataLoss|FileExists|FileNotFound|InvalidArgument"
        r"|BlockingIO)Error"),
    Rule(Cause.SAVE_CONFLICT, r"Directory not empty|File exists",
        types=r"OSError|FileExistsError|FailedPreconditionError|AlreadyExistsError",
        calls=r"/shutil\.py|/saved_model/|/checkpoint/|/checkpoint_manag|/keras/|/tf_keras/|/training/saver"),
    Rule(Cause.CHECKPOINT_NOT_SHARED,
        r"[Ff]ailed to find any matching files for \S*(?:ckpt|checkpoint|ck-\d)|ckpt-\d+.{0,80}No such file"),
    Rule(Cause.FILE_NOT_FOUND, r"", types=r"FileNotFoundError|NotADirectoryError"),
    Rule(Cause.FILE_NOT_FOUND, rf"{_MISSING}|Could not find directory|is not a directory", types=_FILE_TYPES,
        unless=r"undefined symbol|shared object"),
    Rule(Cause.FILE_NOT_FOUND, r"HTTP response code 404|The specified key does not exist", types="NotFoundError"),
    # Keras 3 in place of Keras 2.
    Rule(Cause.KERAS_3, r"Attempt to convert a value \(PerReplica:"
        r"|object has no attribute 'reset_states'\. Did you mean: 'reset_state'"
        r"|not (?:supported|available) in Keras 3|Keras 3 (?:only|no longer|does not)"
        r"|Keras cannot be imported\. Check that it is installed"
        r"|`?keras\.optimizers\.legacy`? is not supported"
        r"|module 'keras\.\S{0,80}' has no attribute '(?:experimental|legacy)'"),
)  # fmt: skip

# Hints for exceptions of the script or the host that have no other kind.
SCRIPT_HINTS = (
    Rule(Cause.SCRIPT_EXCEPTION, rf"^'(?:{LAUNCHERS})'$", types="KeyError", hint=LAUNCHER_HINT),
    Rule(Cause.SCRIPT_EXCEPTION, r"SLURM_\w+ not found in environment", types="RuntimeError", hint=RESOLVER_HINT),
    Rule(Cause.SCRIPT_EXCEPTION,
        rf"module 'tensorflow' has no attribute '{_ALWAYS}'|module '(?:numpy|keras)' has no attribute "
        r"'(?:array|float32|ndarray|zeros|layers|Model|Sequential)'|; '(?:tensorflow|keras|numpy)' is not a package",
        types="AttributeError|ModuleNotFoundError",
        hint="rename the file or directory of the script that has the same name as the package and hides it; if "
        "there is none, install the package again"),
    Rule(Cause.SCRIPT_EXCEPTION,
        r"partially initialized module '\S+' |\(most likely due to a circular import\)|consider renaming '",
        types="AttributeError|ImportError",
        hint="rename the script's file if it has the same name as a package or a module of Python; else remove the "
        "circular import"),
    Rule(Cause.SCRIPT_EXCEPTION,
        r"module 'tensorflow\S*' has no attribute 'estimator'|No module named 'tensorflow_estimator",
        types=r"AttributeError|ModuleNotFoundError|ImportError",
        hint="TensorFlow 2.16 and later have no Estimators: train a Keras model instead, or put tensorflow~=2.15.0 "
        "into requirements.txt next to the script, on hosts with Python 3.9 to 3.11"),
    Rule(Cause.SCRIPT_EXCEPTION,
        rf"module 'tensorflow' has no attribute '{_TENSORFLOW_1}'|No module named 'tensorflow\.(?:contrib|examples)"
        r"|module 'tensorflow\S*' has no attribute '(?:GradientDescentOptimizer|AdamOptimizer"
        r"|MonitoredTrainingSession|Supervisor|SyncReplicasOptimizer|get_or_create_global_step"
        r"|Server|replica_device_setter)'", types=r"AttributeError|ModuleNotFoundError|ImportError",
        hint="the script is written for TensorFlow 1: convert it (tf_upgrade_v2, or import tensorflow.compat.v1), "
        "and replace tf.contrib, which no version of TensorFlow 2 has"),
    Rule(Cause.SCRIPT_EXCEPTION, r"Collective ops must be configured at program startup", types="RuntimeError",
        hint="create the strategy before anything else that uses TensorFlow, such as a data set or a tensor"),
    Rule(Cause.SCRIPT_EXCEPTION, r"When providing a distributed dataset, you must specify the number of steps",
        types="ValueError",
        hint="pass steps_per_epoch to fit, and validation_steps if it gets validation_data; or pass data sets that "
        "the strategy has not distributed yet"),
    Rule(Cause.SCRIPT_EXCEPTION,
        r"slot variable under the scope|created (?:in|under) th(?:is|e) (?:tf\.distribute\.S|distribution s)trategy",
        types="ValueError",
        hint="create the model, its optimizer, and its metrics in the same `with strategy.scope():`, and restore "
        "their weights there"),
    Rule(Cause.SCRIPT_EXCEPTION, r"EOF when reading a line", types="EOFError",
        hint="a task has no keyboard: give the answer as an argument (after --) or as a variable (-e NAME=VALUE)"),
    Rule(Cause.SCRIPT_EXCEPTION, r"", types=r"TBNotInstalledError",
        hint=f"list tensorboard in {FILES} next to the script"),
    Rule(Cause.SCRIPT_EXCEPTION, r"can't start new thread|Too many open files|Resource temporarily unavailable",
        hint="raise the limits of the host's account (ulimit -n for files, ulimit -u for threads), or use fewer"),
    Rule(Cause.SCRIPT_EXCEPTION, r"/(?:site|dist)-packages/", types=r"ImportError", hint=PACKAGE_HINT),
    Rule(Cause.SCRIPT_EXCEPTION, r"",
        types=r"OSError|IOError|error|(?:Internal|Unknown|Unavailable|FailedPrecondition|Connection\w*|Timeout|URL|HTTP"
        r"|SSL\w*|XlaRuntime|JaxRuntime|BrokenPipe|System|DataLoss)Error", hint=HOST_HINT),
)  # fmt: skip

# Of a file that Keras downloads: a task finds it there before another one has written all of it.
INCOMPLETE = Rule(
    Cause.SAVE_CONFLICT,
    r"",
    types=r"BadZipFile|BadGzipFile|ReadError|EOFError|UnpicklingError",
    clause="read an incomplete file that another task was downloading to the same place",
    hint="download the file once before the job, or give each task its own directory for it, with cache_dir of "
    "get_file or KERAS_HOME",
)
DOWNLOADING = re.compile(r"^Downloading data from https?://")

# Out of memory, or a consequence of it: only earlier lines show whether on the host or the GPU.
MEMORY = (
    Rule(Cause.UNKNOWN, rf"{_NO_MEMORY}|failed to allocate memory|[Rr]an out of memory",
        types=r"ResourceExhaustedError|XlaRuntimeError|OutOfMemoryError"),
    Rule(Cause.UNKNOWN,
        r"cuDNN failed to initialize|[Cc]ould not create cudnn handle|failed to create cublas handle"
        r"|CU(?:DNN|BLAS)_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)|Blas \w{4,6} launch failed"
        r"|Dst tensor is not initialized", types=r"InternalError|UnknownError|NotFoundError|FailedPreconditionError"),
)  # fmt: skip
MEMORY_WORDS = (
    Rule(Cause.GPU_OUT_OF_MEMORY,
        r"Allocator \(GPU_\d+_bfc\) ran out of memory|BFCAllocator dump for GPU|CUDA_ERROR_OUT_OF_MEMORY"
        r"|CU(?:DNN|BLAS)_STATUS_ALLOC_FAILED|cudaErrorMemoryAllocation", unless=r"not a failure"),
    Rule(Cause.HOST_OUT_OF_MEMORY,
        r"Allocator \((?:mkl_)?cpu(?:_bfc)?\) ran out of memory|BFCAllocator dump for cpu"),
)  # fmt: skip

# --- last output: lines of a process that ended without an exception -----------------------------------------------

LAST_WORDS = (
    Rule(Cause.HOST_OUT_OF_MEMORY,
        r"'std::bad_alloc'|oom-kill event|oom_kill event|out-of-memory handler|Memory cgroup out of memory"
        r"|\bOOMKilled\b|OOM Killed|Out of memory: Kill(?:ed)? process|^MemoryError$"
        r"|slurmstepd: error: .{0,80}exceeded (?:job )?memory limit|PBS: job killed: (?:v?mem|pvmem) "
        r"|reaching LSF memory usage limit"),
    Rule(Cause.GPU_OUT_OF_MEMORY,
        r"CUDA_ERROR_OUT_OF_MEMORY|Allocator \(GPU_\d+_bfc\) ran out of memory|cudaErrorMemoryAllocation"
        r"|status: \w*(?:INTERNAL|Internal): .{0,80}out of memory", unless=r"not a failure"),
    Rule(Cause.PORT_IN_USE,
        r"Could not start gRPC server|Failed to add port to server|No address added out of total"
        r"|Failed to add any wildcard listeners|\"syscall\":\"bind\"|\bbind addr=\S{1,80}: Address already in use"),
    Rule(Cause.KILLED, r"compiled to use \w{1,20} instructions, but these aren't available",
        clause="runs on a CPU that lacks instructions of this TensorFlow", hint=ILLEGAL_HINT),
    Rule(Cause.GPU_FAILED,
        r"CUDA_ERROR_(?:ILLEGAL|ECC|LAUNCH|MISALIGNED|UNCORRECTABLE|HARDWARE|INVALID_PTX|NO_BINARY)\w*"
        r"|uncorrectable ECC|GPU has fallen off the bus"),
    Rule(Cause.PACKAGES,
        r"GLIBC(?:XX)?_[\d.]+\S{0,2} not found|error while loading shared libraries: |symbol lookup error: "),
    Rule(Cause.FILE_NOT_FOUND,
        r"^fleet: cannot run \S{1,400}: its lines end with CR LF|\^M: bad interpreter|\$'\\r': command not found",
        clause="could not run its program",
        hint="convert the line ends of the file, for example with `sed -i 's/\\r$//' FILE`"),
    Rule(Cause.PERMISSION, r"^fleet: cannot run \S{1,400}: Permission denied", clause="could not run its program",
        hint="make the file executable, for example with `chmod +x FILE`"),
    Rule(Cause.FILE_NOT_FOUND, r"^fleet: cannot run \S{1,400}: (?:No such file|its interpreter)|: bad interpreter: ",
        clause="could not run its program",
        hint="put the program or its interpreter on every host, or name it by its path"),
    Rule(Cause.FILE_NOT_FOUND, r"can't open file '[^']{1,400}': \[Errno 2\]"),
    Rule(Cause.DISK_FULL, r"^(?!.*inotify).{0,200}: No space left on device"),
    Rule(Cause.PREEMPTED, r"PreemptionCheckpointHandler: .{0,80}(?:[Pp]reemption|[Ee]xiting|maintenance)"
        r"|CANCELLED AT \S{1,40} DUE TO PREEMPTION"),
    Rule(Cause.DEADLINE,
        r"CANCELLED AT \S{1,40} DUE TO TIME LIMIT|PBS: job killed: walltime |reaching LSF run time limit"),
)  # fmt: skip
# In the last line of a program that ends itself with code 1, as sys.exit("no data") does.
COMPLAINT = re.compile(
    r"(?i)\b(?:not?|\w+n't|cannot|none|nothing|never|missing|must|needs?|require[sd]?|invalid|errors?|fail\w*"
    r"|unable|un(?:known|supported)|wrong|expect\w*|bad|too|without|abort\w*|only|empty|give|giving up|lacks?)\b"
)
EARLY_WORDS = (
    Rule(Cause.DATA_RAN_OUT,
        r"[Yy]our input ran out of data|[Yy]our dataset iterator ran out of data|OUT_OF_RANGE: End of sequence"
        r"|Out of range: End of sequence", unless=r"\[_Derived_\].*End of sequence.*this does not indicate an error"),
)  # fmt: skip

# --- reasons that an agent gives ----------------------------------------------------------------------------------

REASONS = {
    ReasonKind.TIMEOUT: Cause.DEADLINE,
    ReasonKind.LIFETIME: Cause.LIFETIME,
    ReasonKind.HANG: Cause.HANG,
    ReasonKind.AGENT_KILLED: Cause.KILLED,
    ReasonKind.PREEMPTED: Cause.PREEMPTED,
    ReasonKind.HOST_LOST: Cause.PEER_UNREACHABLE,
    ReasonKind.UNREACHABLE: Cause.PEER_UNREACHABLE,
    ReasonKind.DISK_FULL: Cause.DISK_FULL,
    ReasonKind.OUT_OF_MEMORY: Cause.HOST_OUT_OF_MEMORY,
    ReasonKind.KILLED: Cause.KILLED,
    ReasonKind.NOT_JOINED: Cause.PEER_NEVER_STARTED,
    ReasonKind.NAME_RESOLUTION: Cause.NAME_RESOLUTION,
    ReasonKind.PORT_IN_USE: Cause.PORT_IN_USE,
    ReasonKind.VERSIONS: Cause.VERSION_MISMATCH,
}
"""Class of the cause for each reason; the cause is unknown for all others."""
# Decisions of the gang; they take precedence over logs.
DECISIONS = (
    ReasonKind.TIMEOUT,
    ReasonKind.LIFETIME,
    ReasonKind.HANG,
    ReasonKind.AGENT_KILLED,
    ReasonKind.PREEMPTED,
    ReasonKind.HOST_LOST,
)
# For a task that its agent stopped, only these reasons are causes.
INDEPENDENT_REASONS = (ReasonKind.DISK_FULL, ReasonKind.OUT_OF_MEMORY, ReasonKind.PREEMPTED)

# --- statuses that peers answered with ----------------------------------------------------------------------------

# The peer did not answer at all: DEADLINE_EXCEEDED and UNAVAILABLE of gRPC.
_SILENT = {4, 14}
_CANCELLED = 1  # aborted by the caller; no information about the peer
_STATUS = re.compile(r"grpc_status\"?: ?(\d{1,2})")
_STATUS_FIRST = re.compile(r"Error received from peer .{0,80}?\{grpc_status: ?(\d{1,2})")
_STATUS_NAMES = {
    "CANCELLED": 1, "UNKNOWN": 2, "INVALID_ARGUMENT": 3, "DEADLINE_EXCEEDED": 4, "NOT_FOUND": 5, "ALREADY_EXISTS": 6,
    "PERMISSION_DENIED": 7, "RESOURCE_EXHAUSTED": 8, "FAILED_PRECONDITION": 9, "ABORTED": 10, "OUT_OF_RANGE": 11,
    "UNIMPLEMENTED": 12, "INTERNAL": 13, "UNAVAILABLE": 14, "DATA_LOSS": 15,
}  # fmt: skip
_TYPES_OF = {name.replace("_", "").lower() + "error": number for name, number in _STATUS_NAMES.items()}
_NAMED_STATUS = re.compile(rf"\b({'|'.join(_STATUS_NAMES)}): |\b(\w{{5,24}}Error): ")


def status_in(text: str) -> int | None:
    """Return the gRPC status in a text: the number if it has one, otherwise the first name; None: none.

    An answer may quote the answer of another peer: the outer status comes first or last in its line.
    """
    line = next((line for line in text.split("\n") if _STATUS.search(line)), "")
    first = _STATUS_FIRST.search(line)
    numbers = [first.group(1)] if first else _STATUS.findall(line)
    if numbers:
        return int(numbers[-1])
    for named in _NAMED_STATUS.finditer(text):
        number = _STATUS_NAMES.get(named.group(1) or "") or _TYPES_OF.get((named.group(2) or "").lower())
        if number:
            return number
    return None


def is_silence(status: int | None) -> bool:
    """Return whether this status means that the peer did not answer; None means so too."""
    return status is None or status in _SILENT


def is_answer(status: int | None) -> bool:
    """Return whether a peer answered with an error of its own."""
    return status is not None and status not in _SILENT and status != _CANCELLED


def type_of(status: int) -> str:
    """Return the name of TensorFlow's exception for a status: ``InvalidArgumentError``."""
    name = next((name for name, number in _STATUS_NAMES.items() if number == status), "UNKNOWN")
    return "".join(word.capitalize() for word in name.split("_")) + "Error"


def is_collateral(raised: Raised) -> bool:
    """Return whether an exception only reports that a peer is gone, or that a failure aborted the collective."""
    return not _NEVER_COLLATERAL.search(raised.message) and any(_is_collateral(link) for link in raised.chain())


def _is_collateral(raised: Raised) -> bool:
    if raised.short.endswith("Error") and _DERIVED.search(raised.message):
        return True
    if _COLLATERAL_TYPE.fullmatch(raised.short) is None:
        return False
    return mentions_peers(raised.message) or _COLLATERAL_HEAD.match(raised.message) is not None


def mentions_peers(text: str) -> bool:
    """Return whether a text is typical of a failure that another task caused."""
    if _COLLATERAL_TEXT.search(text):
        return True
    return _REMOTE_TEXT.search(text) is not None and not is_answer(status_in(text))


def is_of_coordination(text: str) -> bool:
    """Return whether a text comes from the coordination service, whichever process printed it."""
    return _COORDINATION_TEXT.search(text) is not None


def rule_of(raised: Raised) -> Rule | None:
    """Return the rule that fits an exception, or else its direct cause."""
    link: Raised | None = raised
    while link:
        for rule in EXCEPTIONS:
            if rule.fits(link):
                return rule
        # An iterator of TensorFlow that is at its end raises StopIteration while it handles OutOfRangeError.
        link = link.before if link.caused or link.short == "StopIteration" else None
    return None


def hint_of(raised: Raised) -> str:
    """Return the hint for an exception that no rule classifies; empty: none."""
    return next((rule.hint for rule in SCRIPT_HINTS if rule.fits(raised)), "")


def find_rule(text: str, rules: tuple[Rule, ...]) -> Rule | None:
    """Return the first of `rules` that reads `text`."""
    return next((rule for rule in rules if rule.reads(text)), None)
