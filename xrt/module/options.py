"""The options of a module: their declarations, and parsing keywords into values."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from xrt.engines import ExecutionOptions
from xrt.engines.contract.options import REDUCED_PRECISIONS, Precision, check_options, option
from xrt.errors import OptionError, did_you_mean
from xrt.graph import FrozenDict
from xrt.graph.device_names import check_device
from xrt.graph.types import LARGEST_EXTENT
from xrt.partition import ClusteringOptions

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import NodePattern
    from xrt.module.lockfile import LockedPlacement
    from xrt.precision import ErrorBudget


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """The reduced precisions that a module may use, and the nodes that stay in float32."""

    names: tuple[Precision, ...] = ()
    exact_nodes: tuple[NodePattern, ...] = ()
    table: CalibrationTable | None = None
    """Ranges of values for int8; None if they are measured on examples."""

    is_quantized: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_quantized", self.names == ("int8",))


NO_CHOICE = PrecisionChoice()
Check: TypeAlias = Literal["first"] | float | None
ALL_ENGINES = "all"
"""This entry of `Isolation.engines` stands for all engines of the module."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Engines in worker processes. If a worker crashes or hangs, its region is placed on another engine."""

    engines: tuple[str, ...] = (ALL_ENGINES,)
    """Engines that compile in a worker process: names or specs, or ``"all"``."""
    run: bool = False
    """Also run the executables in the workers. An executable that cannot be saved always runs there."""
    time_limit: float | None = option(None, above=0)
    """Limit on each compile and each run in a worker process, in seconds; None for no limit."""
    memory_limit: int | None = option(None, at_least=1)
    """Limit on the address space of a worker process, in bytes; None for no limit."""

    def __post_init__(self) -> None:
        names = (self.engines,) if isinstance(self.engines, str) else tuple(self.engines or ())
        if not all(isinstance(name, str) for name in names):
            raise OptionError(f"isolate must be a list of engine names or specs, or 'all'; got {self.engines!r}")
        object.__setattr__(self, "engines", names)
        check_options(self)


@dataclass(frozen=True)
class Buckets:
    """Pad symbolic dims of the inputs to a few sizes, and cut the results.

    ``Buckets()`` rounds every symbolic dim up to a power of two or to the middle of two powers: 8, 12, 16, 24, and so on.
    ``Buckets({"s": [16, 64]})`` pads dim ``s`` to 16 or 64, but no larger size. ``Buckets({"s": None})`` rounds only dim ``s``.
    """

    sizes: Mapping[str, tuple[int, ...] | None] | None = None

    def __post_init__(self) -> None:
        if self.sizes is None:
            return
        if not isinstance(self.sizes, Mapping):
            raise OptionError(f'Buckets takes sizes by symbolic dim, such as Buckets({{"s": [16, 64]}}); got {self.sizes!r}')
        object.__setattr__(self, "sizes", FrozenDict({str(dim): _parse_sizes(dim, sizes) for dim, sizes in self.sizes.items()}))


def _parse_sizes(dim: object, sizes: Any) -> tuple[int, ...] | None:
    """Parse the bucket sizes of a dim to ascending integers; None (the default buckets) stays None."""
    if sizes is None:
        return None
    values = list(sizes) if isinstance(sizes, list | tuple | range) else [sizes]
    if not values or not all(type(size) is int and 0 < size <= LARGEST_EXTENT for size in values):
        raise OptionError(f"Buckets: {dim!r} takes a positive integer, several, or None; got {sizes!r}")
    return tuple(sorted(set(values)))


Shapes: TypeAlias = Literal["auto", "each", "one"] | Buckets


def parse_shapes(value: Any) -> Shapes:
    """Return the value of the option ``shapes`` if it is valid; otherwise raise OptionError."""
    if isinstance(value, Buckets) or value in ("auto", "each", "one"):
        return value  # type: ignore[no-any-return]  # it is one of these
    raise OptionError(f"shapes must be 'auto', 'each', 'one' or xrt.Buckets(...); got {value!r}")


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """The options of a module."""

    clustering: ClusteringOptions = ClusteringOptions()
    execution: ExecutionOptions = ExecutionOptions()
    choice: PrecisionChoice = NO_CHOICE
    """The part of ``precision`` and ``calibrate`` that concerns the module."""

    max_error: ErrorBudget | None = option(None, accepts="float | ErrorBudget | None")
    """Allow reduced precision up to this error of the outputs. A fraction of the output's norm (0.01) or an `xrt.ErrorBudget`,
    relative to float32, with ``engine="auto"``; None: only ``precision`` reduces it."""
    calibrate: Any = option(None, accepts="Iterable[Any] | CalibrationTable | str | os.PathLike[str] | None")
    """Examples to measure ranges for int8: batches, each the inputs of a call. Or the ranges, as an `xrt.CalibrationTable` or its
    path."""
    validate: Any = option(None, accepts="Iterable[Any] | None")
    """Other examples to measure the error. None: the last fifth of the batches of ``calibrate``."""
    budget: float = option(20.0, above=0)
    """Time of each search for a plan with ``engine="auto"``, in seconds."""
    lock: LockedPlacement | None = option(None, accepts="str | os.PathLike[str] | None")
    """With ``engine="auto"``: use the plan of this lockfile, do not measure. Model, machine and versions must be the same."""
    shapes: Shapes = option("auto", accepts='Literal["auto", "each", "one"] | Buckets')
    """Programs for the sizes of symbolic dims. ``"auto"``: one for the first sizes; for all others one program if every engine of
    the plan supports that, else padding to a few sizes if it provably changes no result, else one for each set of sizes.
    ``"one"``: one program, on engines that support it. ``"each"``: one for each set of sizes. `xrt.Buckets`: padding, or an
    OptionError if it is not possible."""
    strict: bool = False
    """No fallback to toy: a node that no listed engine supports, or a failure of an engine, is an error."""
    check: Check = None
    """Compare calls with the reference: the ``"first"`` for each set of input types; a share of all (0.01); None for no call."""
    isolate: Isolation = option(Isolation(()), accepts="str | Sequence[str] | Isolation")
    """Engines that compile in a worker process: names, specs, or ``"all"``. With an `xrt.Isolation` they can also run there, with
    limits on time and memory."""
    devices: Mapping[str, str] = option(FrozenDict(), accepts="Mapping[str, str] | None")
    """Devices of engines, by name or spec, if not the module's: ``{"ort": "cuda", "tvm": "cpu"}``."""
    cuda_graph: bool = False
    """Record the first call with each set of input types on a device, and replay it later. `explain` states why not."""
    fold_constants: bool = True
    """Compute nodes that depend only on constants before planning, with the reference engine."""
    dump_subgraph_dir: Path | None = option(None, accepts="str | os.PathLike[str] | None")
    """Folder for the graph before and after each stage, as text, ONNX and DOT; None writes nothing."""
    progress: Callable[[int, int], object] | bool | None = None
    """None or True: show the progress of searches and compiles of more than two seconds on a terminal or in a notebook. False: do
    not show it. A function is called with the number of compiled regions and of all regions, by one thread at a time."""

    @property
    def shows_progress(self) -> bool:
        return self.progress in (None, True)


_DEFAULT = ModuleOptions()
OWNERS: tuple[type, ...] = (ClusteringOptions, ExecutionOptions, ModuleOptions)


KEYWORDS: dict[str, tuple[dataclasses.Field[Any], type]] = {
    field.name: (field, owner)
    for owner in OWNERS
    for field in dataclasses.fields(owner)
    if field.name not in ("choice", "clustering", "execution")
}
"""Maps the name of each keyword of `XRTModule` to its dataclass field and the class that declares the field."""


def parse_options(options: Mapping[str, Any], owner: str = "XRTModule", extra: tuple[str, ...] = ()) -> ModuleOptions:
    """Create the options of a module from keywords. Raises OptionError if they are unknown, invalid or contradict each other.

    ``owner`` is the class that error messages name, and ``extra`` lists further keywords that it has.
    """
    if not options:
        return _DEFAULT
    for name in options:
        if name not in KEYWORDS:
            names = sorted((*KEYWORDS, *extra))
            nearest = did_you_mean(name, ("engine", "device", "cache", *names))
            raise OptionError(f"{owner} has no option {name!r}.{nearest} It has: {', '.join(names)}")
    # First, because ``precision`` may be an option of the module or of the compile.
    values, choice = _read_precision_options(options)
    keywords: dict[type, dict[str, Any]] = {options_class: {} for options_class in OWNERS}
    for name, value in values.items():
        _, options_class = KEYWORDS[name]
        keywords[options_class][name] = value
    module_keywords = keywords[ModuleOptions]
    # The default None stays as it is. If the default is another value, None is the caller's choice, and the reader checks it.
    for name, read in _READERS.items():
        field, _ = KEYWORDS[name]
        if name in module_keywords and (module_keywords[name] is not None or field.default is not None):
            module_keywords[name] = read(module_keywords[name])
    if module_keywords.get("lock") is not None:
        from xrt.module.lockfile import load_lock  # only needed with a lock

        module_keywords["lock"] = load_lock(module_keywords["lock"], module_keywords.get("max_error"))
    clustering = ClusteringOptions(**keywords[ClusteringOptions])
    settings = ModuleOptions(clustering, ExecutionOptions(**keywords[ExecutionOptions]), choice, **module_keywords)
    check_options(settings)
    return settings


def _read_folder(value: Any) -> Path:
    """Convert ``dump_subgraph_dir``. The folder is used after the compile, so check now that it is writable."""
    from xrt.formats.output import why_not_folder

    folder = Path(os.fspath(value))
    if reason := why_not_folder(folder):
        raise OptionError(f"dump_subgraph_dir is {str(folder)!r}, and {reason}")
    return folder


def _read_devices(value: Any) -> Mapping[str, str]:
    if value is None:
        return FrozenDict()
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"devices maps engines to devices, such as {{'ort': 'cuda', 'tvm': 'cpu'}}; got {value!r}")
    return FrozenDict({name: check_device(device) for name, device in value.items()})


def _read_check(value: Any) -> Check:
    if value == "first":
        return "first"
    # bool is a subclass of int.
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise OptionError(f"check must be 'first', a fraction of the calls (above 0, at most 1) or None; got {value!r}")


def _read_progress(value: Any) -> Any:
    if not (isinstance(value, bool) or callable(value)):
        raise OptionError(f"progress must be a function of two numbers, or True, False or None; got {value!r}")
    return value


def _read_seconds(value: Any) -> float:
    from xrt.placement.autotune import check_budget

    check_budget(value)
    return float(value)


def _read_error_budget(value: Any) -> ErrorBudget | None:
    from xrt.precision.budget import parse_budget  # only needed with an error budget

    return parse_budget(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "budget": _read_seconds,
    "check": _read_check,
    "devices": _read_devices,
    "dump_subgraph_dir": _read_folder,
    "isolate": lambda value: value if isinstance(value, Isolation) else Isolation(value or ()),
    "max_error": _read_error_budget,
    "progress": _read_progress,
    "shapes": parse_shapes,
}


def _parse_precision(value: Any) -> PrecisionChoice:
    """Parse ``precision``: a name, a constraint such as ``"Softmax|LayerNormalization=fp32"``, or a list of these."""
    from xrt.graph import NodePattern

    # An empty list is an error, since its meaning is unclear.
    entries = [value] if isinstance(value, str) else value
    if not isinstance(entries, list | tuple) or not entries or not all(isinstance(entry, str) for entry in entries):
        raise OptionError(f"precision is a name, a constraint such as 'Softmax=fp32', or a list of these; got {value!r}")
    names: list[Any] = []
    patterns, precisions = [], get_args(Precision)
    for text in entries:
        before, equals, name = text.rpartition("=")
        name = name.strip()
        if name not in precisions:
            raise OptionError(f"precision must be one of {', '.join(precisions)}; got {name!r}.{did_you_mean(name, precisions)}")
        if not equals:
            names.append(name)
        elif name != "fp32":
            raise OptionError(
                f"the constraint {text!r} is not supported: a constraint keeps nodes in fp32, as 'Softmax=fp32'; pass the "
                f"reduced precision without nodes: precision=[{name!r}, 'Softmax=fp32']"
            )
        else:
            patterns.append(NodePattern.parse(before))
    return PrecisionChoice(tuple(dict.fromkeys(name for name in names if name != "fp32")), tuple(patterns))


def _read_precision_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], PrecisionChoice]:
    """Read the options on precision. Returns the remaining options, and the module's choice of precisions.

    A single bf16 or fp16 remains an option, of the compile. Raises OptionError for options that contradict each other.
    """
    remaining = dict(options)
    precision = remaining.pop("precision", None)
    choice = _parse_precision(precision) if precision is not None else NO_CHOICE
    if (table := _load_table(remaining.get("calibrate"))) is not None:
        del remaining["calibrate"]
        choice = replace(choice, table=table)
    if remaining.get("max_error") is not None:
        return remaining, replace(choice, names=choice.names or REDUCED_PRECISIONS)
    _check_without_budget(choice, remaining)
    # A single reduced precision for all nodes is an option of the compile.
    if not choice.is_quantized and choice.names:
        remaining["precision"] = choice.names[0]
    return remaining, choice


def _check_without_budget(choice: PrecisionChoice, options: Mapping[str, Any]) -> None:
    """Raise OptionError for options that are incomplete or contradict each other without ``max_error``."""
    if len(choice.names) > 1:
        raise OptionError(
            f"precision={list(choice.names)!r} has several precisions, from which XRT chooses by measurement: pass "
            "engine='auto', max_error=0.01 and validate=, or one precision"
        )
    if options.get("validate") is not None:
        raise OptionError("validate= has examples for an error budget; pass max_error= too, such as max_error=0.01")
    has_data = choice.table is not None or options.get("calibrate") is not None
    if choice.is_quantized and not has_data:
        raise OptionError(
            "int8 needs the ranges of the model's values: pass calibrate=, a list of batches or the path of a table that "
            "m.calibrate(batches).save(path) has written"
        )
    if has_data and not choice.is_quantized:
        raise OptionError("calibrate= is for int8; pass precision='int8' too, or max_error= with engine='auto'")
    if choice.exact_nodes and not choice.names:
        raise OptionError("a constraint on precision needs a reduced precision for the other nodes; add 'int8'")
    if choice.exact_nodes and not choice.is_quantized:
        raise OptionError(
            "a constraint on precision is for int8 or an error budget; for bf16 or fp16 list an engine in both precisions, and "
            "pin the nodes: engine=['openvino{precision=bf16}', 'openvino'], pins='Softmax!=openvino{precision=bf16}'"
        )


def _load_table(calibrate: Any) -> CalibrationTable | None:
    """Return ``calibrate`` if it is a calibration table, load the table if it is a path; None if it is batches of examples."""
    if calibrate is None or isinstance(calibrate, list | tuple):
        return None

    from xrt.formats.calibration_table import CalibrationTable

    if isinstance(calibrate, str | os.PathLike):
        return CalibrationTable.load(calibrate)
    return calibrate if isinstance(calibrate, CalibrationTable) else None


C = TypeVar("C", bound=type)


def add_keywords(cls: C) -> C:
    """Set the ``__signature__`` of the class, so that `inspect` and `help` show every keyword with its type and default."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # of the class, not of a subclass
    first = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name != "self"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=get_accepted_type(field))
        for name, (field, _) in KEYWORDS.items()
    ]
    cls.__signature__ = signature.replace(parameters=[*first, *more], return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]  # read by inspect
    return cls


def get_accepted_type(field: dataclasses.Field[Any]) -> str:
    return str(field.metadata.get("accepts") or field.type)
