"""The options of a module: plain keywords sorted into their homes, and the list of engines."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, TypeVar, get_args

from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.contract.options import Precision
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import BudgetWarning, DeviceError, OptionError, did_you_mean, warn
from xrt.graph import FrozenDict
from xrt.graph.device_names import normalize_device
from xrt.module.precision_options import NO_CHOICE, PrecisionChoice, read_budget, read_precision_options
from xrt.partition import ClusteringOptions
from xrt.partition.options import Pin
from xrt.placement.engine_list import AUTO, EngineList, is_auto
from xrt.runtime import check_device, parse_device_kind, resolve_thread_budget, set_default_budget

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.module.lockfile import LockedPlacement
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.auto import AutoPlacement, Lower
    from xrt.precision import ErrorBudget
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

__all__ = [
    "IMPLICIT",
    "OWNERS",
    "REFERENCE",
    "BucketOption",
    "Check",
    "Dynamic",
    "ModuleKeywords",
    "ModuleOptions",
    "add_keywords",
    "check_engines_run",
    "check_isolated",
    "check_isolated_on_device",
    "check_options",
    "check_recorded",
    "configure",
    "is_from_bundle",
    "iter_keywords",
    "make_engine_list",
    "parse_devices",
    "parse_options",
    "validate_budget",
    "validate_devices",
]


def check_options(engines: Sequence[GraphCompiler], context: CompileContext, *, is_permission: bool) -> str:
    """Raise OptionError where an engine does not honor an option; of those that are placed by measurement one has to.

    With ``is_permission`` a lower precision is allowed and not demanded, but for strict types: an engine that computes in full
    precision is measured like the others. Returns a remark where none computes in the lower one.
    """
    reasons = {engine.spec: engine.unsupported_options(context) for engine in engines}
    full = context.in_full_precision()
    is_lowered = None in reasons.values() or (is_permission and any(_lowers_by_itself(one, context) for one in engines))
    if is_permission:
        reasons = {engine.spec: engine.unsupported_options(full) for engine in engines}
    if is_permission and not is_lowered and (full is context or None not in reasons.values()):
        left_out = "; ".join(f"engine {spec!r} is left out: {reason}" for spec, reason in reasons.items())
        raise OptionError(f"no engine is left for engine='auto': {left_out}")
    if reason := next(filter(None, reasons.values()), None):
        raise OptionError(reason)
    if is_lowered:
        return ""
    return f"no engine of the list computes in {context.options.precision} here: all are placed in fp32"


def is_from_bundle(cache: CompileCache | None, context: CompileContext) -> bool:
    """Whether a bundle in lower precision is loaded: which of its engines compute so was decided when it was saved."""
    if context.options.precision == "fp32" or cache is None:
        return False
    from xrt.module.bundle import BundleTier  # for those alone who ask

    return isinstance(cache.disk, BundleTier)


def _lowers_by_itself(engine: GraphCompiler, context: CompileContext) -> bool:
    """Whether an engine computes in the precision of the options by its own spec."""
    if context.options.precision == "fp32":
        return False
    from xrt.verify.comparison import find_precision  # for those alone who ask

    return find_precision(engine, context.in_full_precision()) == context.options.precision


def validate_devices(value: Any) -> Mapping[str, str]:
    """Return devices by engine; raises OptionError for another form, DeviceError for an unknown device."""
    if value is None:
        return FrozenDict()
    if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
        raise OptionError(f"devices maps engines to devices, such as {{'ort': 'cuda', 'tvm': 'cpu'}}; got {value!r}")
    return FrozenDict({name: check_device(device) for name, device in value.items()})


def parse_devices(
    engines: Sequence[GraphCompiler], asked: Mapping[str, str], here: str, others: Sequence[str] = ()
) -> Mapping[str, str]:
    """Return by spec what was asked for each engine by name or spec, the spec's word before the name's.

    What was asked for ``others``, which might be in the list, is nothing; so is the device ``here``, where engines run anyway.
    Raises OptionError for an engine that is not in the
    list, DeviceError for one that does not run there.
    """
    known = sorted({word for engine in engines for word in (engine.name, engine.spec)})
    for name in asked:
        if name not in known and name.partition("{")[0] not in others:
            raise OptionError(
                f"devices names {name!r}, which is not in the list of engines: {', '.join(known)}.{did_you_mean(name, known)}"
            )
    found = {}
    for engine in engines:
        device = asked.get(engine.spec, asked.get(engine.name))
        if device is None:
            continue
        if parse_device_kind(device) not in engine.devices:
            raise DeviceError(f"devices asks for {engine.spec} on {device!r}, and it runs on {', '.join(engine.devices)}")
        if normalize_device(device) != normalize_device(here):
            found[engine.spec] = device
    return FrozenDict(found)


def check_engines_run(engines: Sequence[GraphCompiler], device: str, devices: Mapping[str, str]) -> None:
    """Raise DeviceError unless some engine of the list runs on the module's device, or has one of its own."""
    if not any(parse_device_kind(device) in engine.devices or engine.spec in devices for engine in engines):
        able = "; ".join(f"{engine.spec} runs on {', '.join(engine.devices)}" for engine in engines)
        raise DeviceError(f"device {device!r} was asked for, but no engine of the list runs on it: {able}")


def check_recorded(graph: bool, device: str) -> None:
    """Raise OptionError for calls that are to be recorded where nothing can be."""
    if graph and device == "cpu":
        raise OptionError("cuda_graph=True records the work of a device, and the module runs on cpu; pass device='cuda'")


def check_isolated_on_device(engine: IsolatedEngine, homes: DeviceMap, limits: WorkerLimits) -> None:
    """Raise OptionError for an engine in a process of its own that runs elsewhere than on the cpu, where that cannot be.

    Compiling there is no matter of devices; running is, for arrays in a device's memory belong to one process.
    """
    device = homes.of(engine.spec)
    if device == "cpu":
        return
    if engine.runs:
        raise OptionError(
            f"isolate= is for engines on the cpu: arrays on {device} do not cross to another process, where {engine.spec} would "
            f"run, since isolate_run=True asks for it or it cannot save what it compiles; take it out of isolate="
        )
    if limits.memory is not None:
        raise OptionError(
            f"memory_limit= bounds the address space of a process, and a driver of {device} takes more of it than there is memory"
            f"; take {engine.spec} out of isolate=, or leave memory_limit= out"
        )


Check: TypeAlias = Literal["first", "nan"] | float | None
BucketOption: TypeAlias = str | Mapping[str, tuple[int, ...]] | None
Dynamic: TypeAlias = Literal["auto", "always", "never"]
IMPLICIT = "toy"
"""The engine added at the end of every list that is not strict: the reference engine with its native kernels."""


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of a module other than its model, engines and device."""

    clustering: ClusteringOptions = ClusteringOptions()
    execution: ExecutionOptions = ExecutionOptions()
    strict: bool = False
    """No implicit reference engine and no fallback: an unsupported node, or a failure of an engine, is an error."""
    check: Check = None
    """Calls that are compared with the reference: ``"first"`` of each signature; a share of all (0.01); those in which a region
    returns NaN (``"nan"``); None for no call."""
    isolate: tuple[str, ...] = ()
    """Engines that compile in a worker process, by name or spec; ``"all"`` for every engine of the list."""
    isolate_run: bool = False
    """Whether these engines also run there; an executable that cannot be saved always does."""
    time_limit: float | None = None
    """Seconds for each compile and each run in a worker process; None for no limit."""
    memory_limit: int | None = None
    """Bytes of address space of a worker process; None for no limit."""
    fold_constants: bool = True
    """Whether the reference engine computes nodes that depend on constants alone, once, before planning."""
    force_compile: bool = False
    """Whether to compile again what the cache contains."""
    budget: float = 20.0
    """Seconds that placement by measurement, ``engine="auto"``, may take for a signature."""
    lock: LockedPlacement | None = None
    """A lockfile: its plan is used without measuring if model, machine and versions are the same."""
    max_specialization_bytes: int = 1 << 30
    """Bytes that the engines' executables for all signatures of a module may hold, each counted as 2 MiB at least; beyond that
    it drops the least recently used, with a warning. Weights that engines share do not count."""
    buckets: BucketOption = None
    """Sizes of symbolic dims are rounded up to a few, inputs padded and results cut, where that provably changes no result:
    ``"auto"`` where an engine compiles for each size and padding is possible, ``"require"`` with an OptionError where it is not,
    ``{"s": [16, 64]}`` to those sizes (larger ones are not padded). None pads nothing."""
    dynamic: Dynamic = "auto"
    """Whether one program serves all sizes of symbolic dims: ``"auto"``, all but the first call's, where every engine of the list
    supports it and has no reason against it, or with ``engine="auto"`` those of a measured plan; ``"always"``, where they support
    it; ``"never"``, a program for each set."""
    dump_subgraph_dir: Path | None = None
    """Directory for the graph before and after each stage, as text, ONNX and DOT; None writes nothing."""
    devices: Mapping[str, str] = FrozenDict()
    """Devices of engines, by name or spec, that differ from the module's: ``{"ort": "cuda", "tvm": "cpu"}``."""
    cuda_graph: bool = False
    """Whether a call on a device is recorded once per signature and replayed; `explain` says why where it cannot be."""
    max_error: ErrorBudget | None = None
    """With ``engine="auto"``: the largest error of outputs for which plans may compute in lower precision, against float32: a
    share of the output's norm (0.01) or an `xrt.ErrorBudget`. None lowers nothing."""
    calibrate: Any = None
    """Batches that ranges of values are measured on for int8, each what a call takes."""
    validate: Any = None
    """Other batches, on which the error is measured; None: the last fifth of those of ``calibrate``."""
    choice: PrecisionChoice = NO_CHOICE
    """What ``precision`` and ``calibration_table`` say of the module."""
    progress: Callable[[int, int], object] | bool | None = None
    """Whether a search or a compile of more than two seconds shows its progress on a terminal or in a notebook: None and True
    do, False does not. A function receives the number of compiled regions and of all regions instead, from the compiling
    threads, one at a time."""

    @property
    def shows_progress(self) -> bool:
        """Whether progress is shown on a terminal or in a notebook."""
        return self.progress in (None, True)

    def make_auto_placement(
        self, engines: EngineList, cache: CompileCache, everything: Callable[[], EngineList], lower: Lower | None = None
    ) -> AutoPlacement:
        """Return what places the signatures of a module with these options; ``everything`` gives all engines asked for."""
        from xrt.placement.auto import AutoPlacement, PlacementOptions

        load = None
        if self.lock is not None:
            load = partial(self.lock.load_result, clustering=self.clustering, strict=self.strict)
        options = PlacementOptions(self.clustering, self.budget, self.memory_limit, self.cuda_graph, self.shows_progress, lower)
        return AutoPlacement(engines, options, cache, everything, load)


_DEFAULT = ModuleOptions()
_OWN = {f.name: f for f in dataclasses.fields(ModuleOptions) if f.name not in ("choice", "clustering", "execution")}
_CLUSTERING = {f.name for f in dataclasses.fields(ClusteringOptions)}
_EXECUTION = {f.name for f in dataclasses.fields(ExecutionOptions)}
_OTHER = ("engine", "device", "cache")
"""Parameters of XRTModule that are no options."""
_KNOWN = sorted({*_OWN, *_CLUSTERING, *_EXECUTION})


def parse_options(options: Mapping[str, Any]) -> ModuleOptions:
    """Return Settings from plain keywords; raises OptionError for an unknown one, or one that contradicts another."""
    if not options:
        return _DEFAULT
    for name in options:
        if name not in _KNOWN:
            raise OptionError(
                f"XRTModule has no option {name!r}.{did_you_mean(name, (*_OTHER, *_KNOWN))} It has: {', '.join(_KNOWN)}"
            )
    options, choice = read_precision_options(options)
    own = {name: options[name] for name in _OWN if name in options}
    own |= {"choice": choice, "max_error": read_budget(own.get("max_error"))}
    own["clustering"] = ClusteringOptions(**{name: options[name] for name in _CLUSTERING if name in options})
    own["execution"] = ExecutionOptions(**{name: options[name] for name in _EXECUTION if name in options})
    if own.get("dump_subgraph_dir") is not None:
        own["dump_subgraph_dir"] = _checked_folder(Path(os.fspath(own["dump_subgraph_dir"])))
    if own.get("lock") is not None:
        from xrt.module.lockfile import load_lock

        own["lock"] = load_lock(own["lock"], own.get("max_error"))
    if own.get("buckets") is not None:
        from xrt.module.buckets import parse_buckets

        own["buckets"] = parse_buckets(own["buckets"])
    if own.get("dynamic", "auto") not in get_args(Dynamic):
        raise OptionError(f"dynamic must be 'auto', 'always' or 'never'; got {own['dynamic']!r}")
    own["check"] = _checked_check(own.get("check"))
    own["isolate"] = _names(own.get("isolate", ()))
    own["devices"] = validate_devices(own.get("devices"))
    _check_bytes(own.get("max_specialization_bytes", 1))
    if "budget" in own:
        from xrt.placement.autotune import check_budget

        check_budget(own["budget"])
    _check_limits(own)
    progress = own.get("progress")
    if not (progress is None or isinstance(progress, bool) or callable(progress)):
        raise OptionError(f"progress must be a function of two numbers, or True, False or None; got {progress!r}")
    return ModuleOptions(**own)


def _checked_folder(folder: Path) -> Path:
    """Return the folder; raises OptionError now for one that could not be written to after the planning."""
    from xrt.formats.output import why_not_folder

    if reason := why_not_folder(folder):
        raise OptionError(f"dump_subgraph_dir is {str(folder)!r}, and {reason}")
    return folder


def _checked_check(value: Any) -> Check:
    if value is None or value in ("first", "nan"):
        return value  # type: ignore[no-any-return]  # just these
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise OptionError(f"check must be 'first', 'nan', a part of the calls (above 0, at most 1) or None; got {value!r}")


def _names(value: Any) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else tuple(value or ())
    if not all(isinstance(name, str) for name in names):
        raise OptionError(f"isolate is a list of engines' names or specs, or 'all'; got {value!r}")
    return names


def _check_limits(own: Mapping[str, Any]) -> None:
    for name, kinds in (("time_limit", (int, float)), ("memory_limit", (int,))):
        value = own.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, kinds) or not value > 0:
            raise OptionError(f"{name} must be a positive number or None; got {value!r}")
        if not own["isolate"]:
            raise OptionError(f"{name} bounds engines in a process of their own, and none is; name them in isolate=")
    if own.get("isolate_run") and not own["isolate"]:
        raise OptionError("isolate_run=True needs engines that are isolated; name them in isolate=")


def _check_bytes(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"max_specialization_bytes must be a positive integer; got {value!r}")


def make_engine_list(asked: Any, device: str, settings: ModuleOptions, cache: CompileCache | None = None) -> EngineList:
    """Return the engines for a name, spec, instance or list of them, the implicit reference engine included.

    The directory of the cache may know which engines are ready here.

    Raises UnknownEngine or EngineUnavailable, OptionError for an engine listed twice or an execution option that a
    listed engine does not honour, DeviceError when none of them runs on the device.
    """
    if settings.max_error is not None and not is_auto(asked):
        raise OptionError("max_error= is kept by measurement; pass engine='auto', or a list with 'auto' in it")
    context = CompileContext(settings.execution, check_device(device), validate_budget(settings.execution))
    engines, left_out = _created(asked, context, settings, cache)
    if settings.choice.is_quantized and settings.max_error is None:
        from xrt.module.precision import lower_engines  # for those alone who ask

        engines = lower_engines(engines)
    _check_list(engines)
    devices = parse_devices(engines, settings.devices, context.device, registry.names() if is_auto(asked) else ())
    check_engines_run(engines, context.device, devices)
    check_recorded(settings.cuda_graph, context.device)
    is_permission = is_auto(asked) or is_from_bundle(cache, context)
    if note := check_options(engines, context, is_permission=is_permission):
        left_out = (*left_out, note)
    engines = _isolated(engines, settings, context.device, devices)
    implicit = None if settings.strict else _reference(engines, context.in_full_precision() if is_permission else context)
    if implicit is not None:
        engines.append(implicit)
    made = EngineList(tuple(engines), implicit.spec if implicit else None, context, is_auto(asked), left_out, devices)
    if settings.dynamic == "always" and not made.can_be_dynamic:
        fixed = next(one.spec for one in engines if not one.supports_dynamic_shapes)
        raise OptionError(f"dynamic='always': engine {fixed!r} compiles for fixed sizes; leave it, or the option, out")
    return made


def _created(
    asked: Any, context: CompileContext, settings: ModuleOptions, cache: CompileCache | None
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    many = _as_list(asked)
    if is_auto(asked):
        from xrt.placement import CostStore
        from xrt.placement.engine_list import list_available_engines

        store = None if cache is None else CostStore.for_cache(cache)
        found = settings.lock.engines([one for one in many if one != AUTO]) if settings.lock else None
        return (
            (found, ())
            if found
            else list_available_engines(many, context, store, strict=settings.strict, devices=settings.devices)
        )
    if settings.lock is not None:
        raise OptionError("lock= holds a placement by measurement; pass engine='auto', or a list with 'auto' in it")
    return [registry.create(one) for one in many], ()


def _isolated(
    engines: Sequence[GraphCompiler], settings: ModuleOptions, device: str, devices: Mapping[str, str]
) -> list[GraphCompiler]:
    """Return the engines, those in front of a worker that are to have one."""
    check_isolated(settings.isolate, [engine.spec for engine in engines])
    if not settings.isolate:
        return list(engines)
    from xrt.engines.contract.proxy import load_engine
    from xrt.partition.device_map import DeviceMap
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

    limits, asked = WorkerLimits(settings.time_limit, settings.memory_limit), {*settings.isolate}
    found = [
        IsolatedEngine(load_engine(engine), limits, runs=settings.isolate_run)
        if asked & {engine.name, engine.spec, "all"}
        else engine
        for engine in engines
    ]
    for engine in found:
        if isinstance(engine, IsolatedEngine):
            check_isolated_on_device(engine, DeviceMap(device, devices), limits)
    return found


def check_isolated(asked: Sequence[str], specs: Sequence[str]) -> None:
    """Raise OptionError for an engine to isolate, by name or spec, that is none of those."""
    known = [name for spec in specs for name in (spec.partition("{")[0], spec)]
    for name in asked:
        if name not in (*known, "all"):
            raise OptionError(f"isolate names {name!r}, which is not in the list of engines.{did_you_mean(name, known)}")


def validate_budget(options: ExecutionOptions) -> int:
    """Return the threads that are asked for, or fewer with a warning: threads beyond the cores only wait for each other."""
    asked, budget = options.threads, resolve_thread_budget(options.threads)
    if asked is not None and asked > budget:
        warn(
            f"threads={asked} is more than the {budget} cores that this process may use; {budget} threads are used", BudgetWarning
        )
    return budget


def _as_list(asked: Any) -> Sequence[str | GraphCompiler]:
    many = list(asked) if isinstance(asked, list | tuple) else [asked]
    if not many:
        raise OptionError("the list of engines is empty; name at least one, such as engine='toy'")
    for one in many:
        if not isinstance(one, str | GraphCompiler):
            raise OptionError(f"an engine is a name, a spec or a GraphCompiler instance; got {type(one).__name__} {one!r}")
    return many


def _check_list(engines: Sequence[GraphCompiler]) -> None:
    specs = [engine.spec for engine in engines]
    twice = next((spec for spec in specs if specs.count(spec) > 1), None)
    if twice is not None:
        raise OptionError(f"engine {twice!r} stands twice in the list {specs}; list each once")


def _reference(engines: Sequence[GraphCompiler], context: CompileContext) -> GraphCompiler | None:
    """Return the reference engine unless it is listed, or cannot serve the context."""
    if any(engine.name == IMPLICIT for engine in engines):
        return None
    from xrt.engines.contract.proxy import ImplicitEngine

    reference = ImplicitEngine(IMPLICIT)
    serves = parse_device_kind(context.device) in reference.devices and reference.unsupported_options(context) is None
    return reference if serves else None


C = TypeVar("C", bound=type)
OWNERS: tuple[type, ...] = (ModuleOptions, ClusteringOptions, ExecutionOptions)
"""The classes whose fields are keywords of XRTModule."""


class ModuleKeywords(TypedDict, total=False):
    """Keyword arguments of `XRTModule` other than ``model``, ``engine``, ``device`` and ``cache``."""

    minimum_nodes: int
    maximum_nodes: int | None
    pins: str | Pin | Sequence[str | Pin]

    precision: Precision | str | Sequence[str]
    strict_types: bool
    calibration_table: str | os.PathLike[str] | Any | None  # an xrt.CalibrationTable, whose module is not loaded for a hint
    max_error: float | Any | None  # an xrt.ErrorBudget
    calibrate: Iterable[Any] | None
    validate: Iterable[Any] | None
    threads: int | None
    max_workspace_size: int | None
    max_batch_size: int | None

    strict: bool
    check: Check
    isolate: str | Sequence[str]
    isolate_run: bool
    time_limit: float | None
    memory_limit: int | None
    fold_constants: bool
    force_compile: bool
    budget: float
    lock: str | os.PathLike[str] | None
    max_specialization_bytes: int
    buckets: Literal["auto", "require"] | Mapping[str, int | Sequence[int]] | None
    dynamic: Dynamic
    dump_subgraph_dir: str | os.PathLike[str] | Path | None
    devices: Mapping[str, str] | None
    cuda_graph: bool
    progress: Callable[[int, int], object] | bool | None


def iter_keywords() -> Iterator[tuple[str, Any, type]]:
    """Yield name, default and owning class of each keyword, in the order of `ModuleKeywords`."""
    fields = {field.name: (field, owner) for owner in OWNERS for field in dataclasses.fields(owner)}
    for name in ModuleKeywords.__annotations__:
        field, owner = fields[name]
        yield name, field.default, owner


def add_keywords(cls: C) -> C:
    """Give the class a signature that lists every keyword with its type and default; `inspect` and `help` show it."""
    signature = inspect.signature(cls)
    first = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    types = ModuleKeywords.__annotations__
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_spell(types[name]))
        for name, default, _ in iter_keywords()
    ]
    cls.__signature__ = signature.replace(parameters=[*first, *more])  # type: ignore[attr-defined]  # read by inspect
    return cls


def _spell(annotation: Any) -> str:
    """Return the annotation as it is written; annotations of a TypedDict are forward references."""
    return str(getattr(annotation, "__forward_arg__", annotation))


def configure(*, threads: int | None = None, shared_pool: str | None = None) -> None:
    """Set, for this process, the thread budget of modules that name none, and the engine whose executables share one pool.

    ``threads=None`` is the cores that the process may use. With ``shared_pool="ort"`` every session of that engine runs on one
    pool of that size instead of one of its own. ONNX Runtime then refuses, process-wide, all sessions with
    a pool of their own, those of other libraries too; there is no way back, and a module with another budget is refused.

    Modules that exist keep what they have. Raises OptionError for no number of threads, an engine that has no such pool, or
    when a session exists already; UnknownEngine and EngineUnavailable for an engine that cannot be had.
    """
    budget = validate_budget(ExecutionOptions(threads=threads))
    if shared_pool is not None:
        registry.engine_class(shared_pool).share_pool(budget)
    set_default_budget(threads)
