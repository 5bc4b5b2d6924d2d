"""Create the engines of a module from its arguments, and choose the default engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler
from xrt.engines.contract import registry
from xrt.errors import BudgetWarning, DeviceError, EngineUnavailable, OptionError, UnknownEngine, XRTError, did_you_mean, warn
from xrt.graph import FrozenDict
from xrt.graph.device_names import check_device, normalize_device
from xrt.module.options import ALL_ENGINES, ModuleOptions
from xrt.partition.support_matrix import DeviceMap
from xrt.placement.engine_list import AUTO, EngineList
from xrt.runtime import parse_device_kind, resolve_thread_budget, set_default_budget

if TYPE_CHECKING:
    from xrt.cache import CompileCache

IMPLICIT = "toy"
"""Name of the reference engine, which is appended to a list of engines without it, unless ``strict`` is set."""
DEFAULT_ENGINES = ("ort", "openvino", "torch", "xla", "toy")


def is_auto(engine: Any) -> bool:
    """Whether the argument ``engine`` of a module is ``"auto"`` or a list with it."""
    entries = engine if isinstance(engine, list | tuple) else [engine]
    return any(isinstance(entry, str) and entry == AUTO for entry in entries)


def check_budget(engine: Any) -> None:
    """Raise OptionError for a time budget if ``engine`` does not request a search."""
    if not is_auto(engine):
        raise OptionError("budget= is the time of a search; pass engine='auto', or a list with 'auto' in it")


def make_engine_list(engine: Any, device: str, settings: ModuleOptions, cache: CompileCache) -> EngineList:
    """Create the engine list of a module, with the reference engine appended.

    ``engine`` is the argument of XRTModule: a name, a spec, an instance, or a list of these. ``cache`` stores which engines work
    on this machine, for "auto".

    Raises UnknownEngine or EngineUnavailable; OptionError for an engine that is listed twice or does not support an execution
    option; DeviceError if no engine of the list runs on the device.
    """
    has_auto = is_auto(engine)
    if settings.max_error is not None and not has_auto:
        raise OptionError("max_error= needs placement by measurement; pass engine='auto', or a list with 'auto' in it")
    context = CompileContext(settings.execution, check_device(device), validate_budget(settings.execution))
    engines, left_out = _create_engines(engine, has_auto, context, settings, cache)
    if settings.choice.is_quantized and settings.max_error is None:
        engines = [candidate.with_precision("int8") or candidate for candidate in engines]
    # Plans name engines by spec, so specs must be unique.
    specs = [candidate.spec for candidate in engines]
    if (duplicate := next((spec for spec in specs if specs.count(spec) > 1), None)) is not None:
        raise OptionError(f"engine {duplicate!r} is twice in the list {specs}; list each once")
    devices = parse_devices(engines, settings.devices, context.device, registry.names() if has_auto else ())
    device_map = DeviceMap(context.device, devices)
    if not any(parse_device_kind(device) in candidate.devices or candidate.spec in devices for candidate in engines):
        supported_devices = "; ".join(f"{candidate.spec} runs on {', '.join(candidate.devices)}" for candidate in engines)
        raise DeviceError(f"no engine of the list runs on device {device!r}: {supported_devices}")
    if settings.cuda_graph and device == "cpu":
        raise OptionError("cuda_graph=True records the work of a device, and the module runs on cpu; pass device='cuda'")
    # With "auto", `precision` allows a reduced precision, but engines without it run in fp32. In a bundle, the specs of the saved
    # engines already have the precision.
    allows_fp32 = has_auto
    if settings.execution.precision != "fp32":
        from xrt.module.bundle import BundleTier  # only needed for reduced precisions

        allows_fp32 |= isinstance(cache.disk, BundleTier)
    if note := _check_execution(engines, context, allows_fp32=allows_fp32):
        left_out = (*left_out, note)
    engines = _isolate(engines, settings, device_map)
    implicit: str | None = None
    if not settings.strict and all(candidate.name != IMPLICIT for candidate in engines):
        from xrt.engines.contract.proxy import ImplicitEngine

        # A proxy imports the reference engine only if a node is placed on it.
        reference = ImplicitEngine(IMPLICIT)
        reference_context = context.in_full_precision() if allows_fp32 else context
        if parse_device_kind(device) in reference.devices and reference.unsupported_options(reference_context) is None:
            engines, implicit = [*engines, reference], reference.spec
    engine_list = EngineList(tuple(engines), implicit, context, has_auto, left_out, device_map)
    if settings.shapes == "one" and not engine_list.can_be_dynamic:
        fixed = next(candidate.spec for candidate in engines if not candidate.supports_dynamic_shapes)
        raise OptionError(f"shapes='one': engine {fixed!r} compiles for fixed sizes; remove it or the option")
    return engine_list


def _create_engines(
    engine: Any, has_auto: bool, context: CompileContext, settings: ModuleOptions, cache: CompileCache
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    """Create the listed engines. "auto" stands for the engines of the lockfile's plan, else for all available engines.

    Also returns a message for each engine that "auto" leaves out.
    """
    listed = list(engine) if isinstance(engine, list | tuple) else [engine]
    if not listed:
        raise OptionError("the list of engines is empty; name at least one, such as engine='toy'")
    for entry in listed:
        if not isinstance(entry, str | GraphCompiler):
            raise OptionError(f"an engine is a name, a spec or a GraphCompiler instance; got {type(entry).__name__} {entry!r}")
    if not has_auto:
        if settings.lock is not None:
            raise OptionError("lock= has a placement by measurement; pass engine='auto', or a list with 'auto' in it")
        return [registry.create(entry) for entry in listed], ()

    from xrt.placement import CostStore
    from xrt.placement.engine_list import list_available_engines

    if settings.lock and (engines := settings.lock.engines([entry for entry in listed if entry != AUTO])):
        return engines, ()
    return list_available_engines(listed, context, CostStore.for_cache(cache), strict=settings.strict, devices=settings.devices)


def choose_default_engine(
    device: str, settings: ModuleOptions, cache: CompileCache, why_not: Callable[[EngineList], str | None]
) -> EngineList:
    """Create the list of the first engine in `DEFAULT_ENGINES` that is installed and supports the options and the model.

    ``why_not`` explains why the engines of a list do not support the whole model, or returns None. If no default engine supports
    it, the first that is installed and supports the options is used.
    """
    first: EngineList | None = None
    failure: XRTError | None = None
    remarks = []
    for name in DEFAULT_ENGINES:
        try:
            engines = make_engine_list(name, device, settings, cache)
        except (EngineUnavailable, UnknownEngine) as error:
            remarks.append(str(error))
            continue
        except (OptionError, DeviceError) as error:
            failure = failure or error
            continue
        if (reason := why_not(engines)) is None:
            listed = ", ".join(DEFAULT_ENGINES)
            remarks.append(f"engine {name!r} is the default: the first installed of {listed} that supports the whole model")
            return replace(engines, left_out=(*engines.left_out, *remarks))
        remarks.append(f"engine {name!r} does not support the whole model: {reason}")
        first = first or engines
    if first is None:
        raise failure or OptionError("no engine is installed that could be the default; pass engine=")
    return replace(first, left_out=(*first.left_out, *remarks))


def _check_execution(engines: Sequence[GraphCompiler], context: CompileContext, *, allows_fp32: bool) -> str:
    """Raise OptionError if an engine does not support an execution option.

    With ``allows_fp32``, an engine may compute in fp32 instead of the reduced precision. If all engines do, a remark for the user
    is returned, otherwise an empty string.
    """
    reasons = {engine.spec: engine.unsupported_options(context) for engine in engines}
    is_supported = None in reasons.values()
    if allows_fp32:
        full, precision = context.in_full_precision(), context.options.precision
        if not is_supported and precision != "fp32":
            from xrt.verify.comparison import find_precision  # only needed for reduced precisions

            # The spec of an engine may set the precision.
            is_supported = any(find_precision(engine, full) == precision for engine in engines)
        reasons = {engine.spec: engine.unsupported_options(full) for engine in engines}
        if not is_supported and None not in reasons.values():
            left_out = "; ".join(f"engine {spec!r} is left out: {reason}" for spec, reason in reasons.items())
            raise OptionError(f"no engine is left for engine='auto': {left_out}")
    if reason := next(filter(None, reasons.values()), None):
        raise OptionError(reason)
    if is_supported:
        return ""
    return f"no engine of the list computes in {context.options.precision} here: all are placed in fp32"


def parse_devices(
    engines: Sequence[GraphCompiler], devices: Mapping[str, str], module_device: str, others: Sequence[str] = ()
) -> Mapping[str, str]:
    """Convert the option ``devices`` (by name or spec; a spec has precedence) to devices by spec, without ``module_device``.

    Raises OptionError for a name that is neither in ``engines`` nor in ``others`` (engines that "auto" could have listed);
    DeviceError for an engine that does not support its device.
    """
    names = sorted({name for engine in engines for name in (engine.name, engine.spec)})
    for name in devices:
        if name not in names and name.partition("{")[0] not in others:
            raise OptionError(
                f"devices names {name!r}, which is not in the list of engines: {', '.join(names)}.{did_you_mean(name, names)}"
            )
    overrides = {}
    for engine in engines:
        device = devices.get(engine.spec, devices.get(engine.name))
        if device is None:
            continue
        if parse_device_kind(device) not in engine.devices:
            raise DeviceError(f"devices places {engine.spec} on {device!r}, but it runs on {', '.join(engine.devices)}")
        if normalize_device(device) != normalize_device(module_device):
            overrides[engine.spec] = device
    return FrozenDict(overrides)


def check_isolated(names: Sequence[str], specs: Sequence[str]) -> None:
    """Raise OptionError if the option ``isolate`` names an engine that is not in the list ``specs``."""
    engine_names = [name for spec in specs for name in (spec.partition("{")[0], spec)]
    for name in names:
        if name not in (*engine_names, ALL_ENGINES):
            raise OptionError(f"isolate names {name!r}, which is not in the list of engines.{did_you_mean(name, engine_names)}")


def _isolate(engines: Sequence[GraphCompiler], settings: ModuleOptions, device_map: DeviceMap) -> list[GraphCompiler]:
    """Replace the engines that the option ``isolate`` names by proxies that use worker processes.

    An engine on a device can compile in a worker, but not run there, because device arrays belong to one process.
    """
    isolation = settings.isolate
    check_isolated(isolation.engines, [engine.spec for engine in engines])
    if not isolation.engines:
        return list(engines)

    from xrt.engines.contract.proxy import load_engine
    from xrt.worker.isolated_engine import IsolatedEngine, WorkerLimits

    limits = WorkerLimits(isolation.time_limit, isolation.memory_limit)
    names = set(isolation.engines)
    isolated: list[GraphCompiler] = []
    for original in engines:
        if not names & {original.name, original.spec, ALL_ENGINES}:
            isolated.append(original)
            continue
        engine = IsolatedEngine(load_engine(original), limits, runs=isolation.run)
        device = device_map.get_device(original.spec)
        isolated.append(engine)
        if device != "cpu" and engine.runs:
            raise OptionError(
                f"isolate= is for engines on the cpu: {engine.spec} would run in another process, by run=True or because it "
                f"cannot save executables, and arrays on {device} cannot be sent there; remove it from isolate="
            )
        if device != "cpu" and limits.memory is not None:
            raise OptionError(
                f"memory_limit= limits the address space of a process, of which a driver of {device} reserves more than there is "
                f"memory; remove {engine.spec} from isolate=, or remove memory_limit="
            )
    return isolated


def validate_budget(options: ExecutionOptions) -> int:
    """Return the thread budget of the options: at most the number of cores, with a warning if more were requested."""
    threads, budget = options.threads, resolve_thread_budget(options.threads)
    if threads is not None and threads > budget:
        warn(
            f"threads={threads} is more than the {budget} cores that this process may use; {budget} threads are used",
            BudgetWarning,
        )
    return budget


def configure(*, threads: int | None = None) -> None:
    """Set the default thread budget of modules that are created from now on; None means all cores that the process may use.

    Raises OptionError for an invalid number of threads.
    """
    validate_budget(ExecutionOptions(threads=threads))
    set_default_budget(threads)
