"""The options of a module: plain keywords sorted into their homes, and the list of engines."""

from __future__ import annotations

import dataclasses
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.contract.options import check_options, keyword
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import BudgetWarning, DeviceError, OptionError, did_you_mean, warn
from xrt.graph import FrozenDict
from xrt.graph.device_names import normalize_device
from xrt.module.precision_options import NO_CHOICE, PrecisionChoice, read_budget, read_precision_options
from xrt.partition import ClusteringOptions
from xrt.placement.engine_list import AUTO, EngineList, is_auto
from xrt.runtime import check_device, parse_device_kind, resolve_thread_budget, set_default_budget

if TYPE_CHECKING:
    from xrt.cache import CompileCache
    from xrt.module.lockfile import LockedPlacement
    from xrt.module.sizes import Shapes
    from xrt.partition.device_map import DeviceMap
    from xrt.placement.auto import AutoPlacement, Lower
    from xrt.precision import ErrorBudget
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

__all__ = [
    "IMPLICIT",
    "OWNERS",
    "REFERENCE",
    "Check",
    "Isolation",
    "ModuleOptions",
    "add_keywords",
    "check_engines_run",
    "check_isolated",
    "check_isolated_on_device",
    "check_recorded",
    "configure",
    "get_accepted_type",
    "is_from_bundle",
    "list_keywords",
    "make_engine_list",
    "parse_devices",
    "parse_options",
    "validate_budget",
    "validate_devices",
]


def check_execution(engines: Sequence[GraphCompiler], context: CompileContext, *, is_permission: bool) -> str:
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
            f"run, since run=True asks for it or it cannot save what it compiles; take it out of isolate="
        )
    if limits.memory is not None:
        raise OptionError(
            f"memory_limit= bounds the address space of a process, and a driver of {device} takes more of it than there is memory"
            f"; take {engine.spec} out of isolate=, or leave memory_limit= out"
        )


Check: TypeAlias = Literal["first", "nan"] | float | None
IMPLICIT = "toy"
"""The engine added at the end of every list that is not strict: the reference engine with its native kernels."""


ALL = "all"
"""Isolates every engine of the list."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """Engines that work in processes of their own, where a crash or a hang is one more failure: its region moves on."""

    engines: tuple[str, ...] = (ALL,)
    """Engines that compile in a worker process, by name or spec; ``"all"`` for every engine of the list."""
    run: bool = False
    """Also run these engines there. An executable that cannot be saved always runs where it was compiled."""
    time_limit: float | None = keyword(None, above=0)
    """Seconds for each compile and each run in a worker process; None for no limit."""
    memory_limit: int | None = keyword(None, at_least=1)
    """Bytes of address space of a worker process; None for no limit."""

    def __post_init__(self) -> None:
        names = (self.engines,) if isinstance(self.engines, str) else tuple(self.engines or ())
        if not all(isinstance(name, str) for name in names):
            raise OptionError(f"isolate is a list of engines' names or specs, or 'all'; got {self.engines!r}")
        object.__setattr__(self, "engines", names)
        check_options(self)


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of a module other than its model, engines and device."""

    clustering: ClusteringOptions = ClusteringOptions()
    execution: ExecutionOptions = ExecutionOptions()
    choice: PrecisionChoice = NO_CHOICE
    """The part of ``precision`` and ``calibrate`` that concerns the module."""

    max_error: ErrorBudget | None = keyword(None, accepts="float | ErrorBudget | None")
    """With ``engine="auto"``: allow plans of lower precision up to this error of the outputs against float32: a share of the
    output's norm (0.01) or an `xrt.ErrorBudget`. None lowers nothing."""
    calibrate: Any = keyword(None, accepts="Iterable[Any] | CalibrationTable | str | os.PathLike[str] | None")
    """Examples to measure ranges on, for int8: batches, each what a call takes; or the ranges themselves, as an
    `xrt.CalibrationTable` or its path."""
    validate: Any = keyword(None, accepts="Iterable[Any] | None")
    """Other examples to measure the error on. None is the last fifth of the batches of ``calibrate``."""
    budget: float = keyword(20.0, above=0)
    """Seconds that placement by measurement, ``engine="auto"``, may take for a signature."""
    lock: LockedPlacement | None = keyword(None, accepts="str | os.PathLike[str] | None")
    """With ``engine="auto"``: use the plan of this lockfile, do not measure. Model, machine and versions must be the same."""
    shapes: Shapes = keyword("auto", accepts='Literal["auto", "each", "one"] | Buckets')
    """Programs for the sizes of symbolic dims. ``"auto"``: one for the first sizes; for all others one program if every engine of
    the plan supports that, else padding to a few sizes if it provably changes no result, else one for each set of sizes.
    ``"one"``: one program, on engines that support it; ``"each"``: one for each set; ``xrt.Buckets(...)``: padding, or an
    OptionError if it is not possible."""
    strict: bool = False
    """No fallback to toy: a node that no listed engine supports, or a failure of an engine, is an error."""
    check: Check = None
    """Compare calls with the reference: the ``"first"`` of each signature; a share of all (0.01); those in which a region returns
    NaN (``"nan"``); None for no call."""
    isolate: Isolation = keyword(Isolation(()), accepts="str | Sequence[str] | Isolation")
    """Engines that compile in a worker process: names, specs, or ``"all"``. An `xrt.Isolation` has the limits, and whether they
    also run there."""
    devices: Mapping[str, str] = keyword(FrozenDict(), accepts="Mapping[str, str] | None")
    """Devices of single engines, by name or spec, that differ from the module's: ``{"ort": "cuda", "tvm": "cpu"}``."""
    cuda_graph: bool = False
    """Record a call on a device once per signature and replay it; `explain` says why where it cannot be."""
    fold_constants: bool = True
    """Compute nodes that depend on constants alone once, before planning, with the reference engine."""
    dump_subgraph_dir: Path | None = keyword(None, accepts="str | os.PathLike[str] | None")
    """Folder for the graph before and after each stage, as text, ONNX and DOT; None writes nothing."""
    progress: Callable[[int, int], object] | bool | None = None
    """Show the progress of a search or a compile of more than two seconds on a terminal or in a notebook: None and True do, False
    does not. A function receives the number of compiled regions and of all regions instead, from the compiling threads, one at a
    time."""

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
        limit = self.isolate.memory_limit
        options = PlacementOptions(self.clustering, self.budget, limit, self.cuda_graph, self.shows_progress, lower)
        return AutoPlacement(engines, options, cache, everything, load)


_DEFAULT = ModuleOptions()
OWNERS: tuple[type, ...] = (ClusteringOptions, ExecutionOptions, ModuleOptions)
"""The classes whose fields are keywords of XRTModule."""
_OTHER = ("engine", "device", "cache")
"""Parameters of XRTModule that are no options."""


def list_keywords() -> dict[str, tuple[dataclasses.Field[Any], type]]:
    """The keywords of `XRTModule` by name, each with its field and the class that declares it."""
    parts = ("choice", "clustering", "execution")
    return {one.name: (one, owner) for owner in OWNERS for one in dataclasses.fields(owner) if one.name not in parts}


_KEYWORDS = list_keywords()


def parse_options(options: Mapping[str, Any]) -> ModuleOptions:
    """Create the options of a module from keywords.

    Raises OptionError for an unknown keyword, a value out of range, and keywords that contradict each other.
    """
    if not options:
        return _DEFAULT
    for name in options:
        if name not in _KEYWORDS:
            known = sorted(_KEYWORDS)
            nearest = did_you_mean(name, (*_OTHER, *known))
            raise OptionError(f"XRTModule has no option {name!r}.{nearest} It has: {', '.join(known)}")
    options, choice = read_precision_options(options)
    clustering, execution, own = (
        {name: value for name, value in options.items() if _KEYWORDS[name][1] is owner} for owner in OWNERS
    )
    own |= {"choice": choice, "clustering": ClusteringOptions(**clustering), "execution": ExecutionOptions(**execution)}
    own |= {name: read(own[name]) for name, read in _READERS.items() if name in own}
    if own.get("lock") is not None:
        from xrt.module.lockfile import load_lock

        own["lock"] = load_lock(own["lock"], own.get("max_error"))
    settings = ModuleOptions(**own)
    check_options(settings)
    return settings


def _read_folder(value: Any) -> Path | None:
    """Check now that the folder can be written to: it is used after the planning."""
    from xrt.formats.output import why_not_folder

    if value is None:
        return None
    folder = Path(os.fspath(value))
    if reason := why_not_folder(folder):
        raise OptionError(f"dump_subgraph_dir is {str(folder)!r}, and {reason}")
    return folder


def _read_shapes(value: Any) -> Shapes:
    from xrt.module.sizes import parse_shapes

    return parse_shapes(value)


def _read_check(value: Any) -> Check:
    if value is None or value in ("first", "nan"):
        return value  # type: ignore[no-any-return]  # just these
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise OptionError(f"check must be 'first', 'nan', a part of the calls (above 0, at most 1) or None; got {value!r}")


def _read_isolation(value: Any) -> Isolation:
    return value if isinstance(value, Isolation) else Isolation(value or ())


def _read_progress(value: Any) -> Any:
    if not (value is None or isinstance(value, bool) or callable(value)):
        raise OptionError(f"progress must be a function of two numbers, or True, False or None; got {value!r}")
    return value


def _read_seconds(value: Any) -> float:
    from xrt.placement.autotune import check_budget

    check_budget(value)
    return float(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "budget": _read_seconds,
    "check": _read_check,
    "devices": validate_devices,
    "dump_subgraph_dir": _read_folder,
    "isolate": _read_isolation,
    "max_error": read_budget,
    "progress": _read_progress,
    "shapes": _read_shapes,
}
"""How the value of a keyword becomes that of its field, for those that accept more than they store."""


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
    if note := check_execution(engines, context, is_permission=is_permission):
        left_out = (*left_out, note)
    engines = _isolated(engines, settings, context.device, devices)
    implicit = None if settings.strict else _reference(engines, context.in_full_precision() if is_permission else context)
    if implicit is not None:
        engines.append(implicit)
    made = EngineList(tuple(engines), implicit.spec if implicit else None, context, is_auto(asked), left_out, devices)
    if settings.shapes == "one" and not made.can_be_dynamic:
        fixed = next(one.spec for one in engines if not one.supports_dynamic_shapes)
        raise OptionError(f"shapes='one': engine {fixed!r} compiles for fixed sizes; leave it, or the option, out")
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
    isolation = settings.isolate
    check_isolated(isolation.engines, [engine.spec for engine in engines])
    if not isolation.engines:
        return list(engines)
    from xrt.engines.contract.proxy import load_engine
    from xrt.partition.device_map import DeviceMap
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

    limits, asked = WorkerLimits(isolation.time_limit, isolation.memory_limit), {*isolation.engines}
    found = [
        IsolatedEngine(load_engine(engine), limits, runs=isolation.run) if asked & {engine.name, engine.spec, ALL} else engine
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
        if name not in (*known, ALL):
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


def add_keywords(cls: C) -> C:
    """Give the class a signature that lists every keyword with its type and default, for `inspect` and `help`."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]  # of the class, not of a subclass
    first = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD and p.name != "self"]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=get_accepted_type(one))
        for name, (one, _) in _KEYWORDS.items()
    ]
    cls.__signature__ = signature.replace(parameters=[*first, *more], return_annotation=inspect.Signature.empty)  # type: ignore[attr-defined]  # read by inspect
    return cls


def get_accepted_type(one: dataclasses.Field[Any]) -> str:
    """The type of the values that an option accepts, as text."""
    return str(one.metadata.get("accepts") or one.type)


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
