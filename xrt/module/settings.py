"""The options of a module: plain keywords sorted into their homes, and the list of engines."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from xrt.engines import CompileContext, ExecutionOptions, GraphCompiler, registry
from xrt.engines.deferred import loaded
from xrt.errors import BudgetWarning, OptionError, SignatureWarning, did_you_mean, warn
from xrt.formats.output import why_not_folder
from xrt.graph import FrozenDict
from xrt.module.automatic import AUTO, asks_for_auto, engines_at_hand
from xrt.module.devices import check_engines_run, check_isolated_there, check_recorded, checked_devices, devices_of
from xrt.module.locked import Locked, locked
from xrt.module.reference import REFERENCE
from xrt.partition import ClusteringOptions, Launch
from xrt.partition.devices import Homes
from xrt.runtime import Streams, budget_of, check_device, kind_of
from xrt.runtime.isolation import Isolated, Limits
from xrt.tune import CostStore
from xrt.tune.driving import check_budget

__all__ = [
    "IMPLICIT",
    "REFERENCE",
    "Check",
    "EngineList",
    "Settings",
    "check_isolated",
    "checked_budget",
    "engine_list",
    "settings_of",
    "warn_of_signatures",
]

Check: TypeAlias = Literal["first", "nan"] | float | None
IMPLICIT = "toy"
"""The engine that stands last in every list that is not strict: the same operators, as quick as they come."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a module is asked for beside its model, engines and device."""

    clustering: ClusteringOptions = ClusteringOptions()
    execution: ExecutionOptions = ExecutionOptions()
    strict: bool = False
    """No implicit reference engine, and no fallback: a node that no listed engine takes, or an engine's fault, is an error."""
    check: Check = None
    """Which calls are held against the reference: ``"first"`` of each signature, that and a part of the others (0.01), those in
    which a region returns ``"nan"``; None is no call."""
    isolate: tuple[str, ...] = ()
    """Engines that compile in a process of their own, by name or spec; ``"all"`` is every one that the list names."""
    isolate_run: bool = False
    """Whether those also run there; what cannot be saved does anyhow."""
    time_limit: float | None = None
    """Seconds for each compile, and each run, in such a process; None is no limit."""
    memory_limit: int | None = None
    """Bytes of address space that such a process may have; None is no limit."""
    fold_constants: bool = True
    """Whether nodes that depend on constants alone are computed once, by the reference engine, before planning."""
    force_compile: bool = False
    """Whether to compile anew what the cache already holds."""
    budget: float = 20.0
    """Seconds that placement by measurement, ``engine="auto"``, may take for a signature."""
    lock: Locked | None = None
    """A lock file, whose plan is taken without measuring where it was made for the same model, machine and versions."""
    max_signatures: int = 16
    """Programs that a module keeps; beyond it the oldest is forgotten, with a warning."""
    dump_subgraph_dir: Path | None = None
    """Where to write the graph as text, ONNX and DOT before and after each stage; None writes nothing."""
    report: Callable[[str], object] | None = None
    """Told in a few words how a compile goes that takes an engine long, such as the trials of ``tvm{tune=64}``."""
    devices: Mapping[str, str] = FrozenDict()
    """Engines, by name or spec, that run elsewhere than the module: ``{"ort": "cuda", "tvm": "cpu"}``."""
    cuda_graph: bool = False
    """Whether a call on a device is recorded once per signature and replayed; where it cannot be, `explain` says why."""
    progress: Callable[[int, int], object] | None = None
    """Told how many regions are compiled, of how many; called from the compiling threads, one at a time."""


_DEFAULT = Settings()
_OWN = {f.name: f for f in dataclasses.fields(Settings)}
_CLUSTERING = {f.name for f in dataclasses.fields(ClusteringOptions)}
_EXECUTION = {f.name for f in dataclasses.fields(ExecutionOptions)}
_KNOWN = sorted({*_OWN, *_CLUSTERING, *_EXECUTION, "use_fp16"})


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return Settings from plain keywords; raises OptionError for an unknown one, or one that contradicts another."""
    if not options:
        return _DEFAULT
    for name in options:
        if name not in _KNOWN:
            raise OptionError(f"XRTModule has no option {name!r}.{did_you_mean(name, _KNOWN)} It has: {', '.join(_KNOWN)}")
    own = {name: options[name] for name in _OWN if name in options}
    own["clustering"] = _merged("clustering", ClusteringOptions, options, _CLUSTERING)
    own["execution"] = _merged("execution", ExecutionOptions, _without_aliases(options), _EXECUTION)
    if own.get("dump_subgraph_dir") is not None:
        own["dump_subgraph_dir"] = _checked_folder(Path(os.fspath(own["dump_subgraph_dir"])))
    own["lock"] = locked(own.get("lock"))
    own["check"] = _checked_check(own.get("check"))
    own["isolate"] = _names(own.get("isolate", ()))
    own["devices"] = checked_devices(own.get("devices"))
    _check_signatures(own.get("max_signatures", 1))
    check_budget(own.get("budget", 1.0))
    _check_limits(own)
    _check_callable("progress", own.get("progress"), "two numbers")
    _check_callable("report", own.get("report"), "a text")
    return Settings(**own)


def _checked_folder(folder: Path) -> Path:
    """Return the folder; raises OptionError now for one that could not be written to after the planning."""
    if reason := why_not_folder(folder):
        raise OptionError(f"dump_subgraph_dir is {str(folder)!r}, and {reason}")
    return folder


def _merged(name: str, kind: type, options: Mapping[str, Any], fields: set[str]) -> Any:
    given = options.get(name, kind())
    if not isinstance(given, kind):
        raise OptionError(f"{name} must be {kind.__name__}(...), or be left out; got {given!r}")
    base: Any = given
    changes = {name: options[name] for name in fields if name in options}
    return dataclasses.replace(base, **changes) if changes else base


def _without_aliases(options: Mapping[str, Any]) -> dict[str, Any]:
    """Spell ``use_fp16`` as the precision that it is another word for."""
    out = dict(options)
    asked = out.pop("use_fp16", None)
    if asked:
        if out.setdefault("precision", "fp16") != "fp16":
            raise OptionError(f"use_fp16=True contradicts precision={out['precision']!r}; give one of them")
    return out


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


def warn_of_signatures(limit: int) -> None:
    """Issue the SignatureWarning of a module that forgets its oldest signature."""
    message = (
        f"this module has met more than max_signatures={limit} signatures and forgets the oldest; give inputs of fewer "
        f"shapes, or engines that keep symbolic extents, or raise max_signatures"
    )
    warn(message, SignatureWarning)


def _check_signatures(value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(f"max_signatures must be a positive integer; got {value!r}")


def _check_callable(name: str, value: Any, of: str) -> None:
    if value is not None and not callable(value):
        raise OptionError(f"{name} must be a function of {of}, or None; got {value!r}")


@dataclass(frozen=True, slots=True)
class EngineList:
    """Engines in priority order, and the context in which they compile."""

    engines: tuple[GraphCompiler, ...]
    implicit: str | None
    """The spec of the engine that was appended without being named."""
    context: CompileContext
    is_auto: bool = False
    """Whether nodes are placed by measurement."""
    left_out: tuple[str, ...] = ()
    """A line for each engine that could not be among them."""
    devices: Mapping[str, str] = FrozenDict()
    """Spec of each engine that runs elsewhere than the module, with its device."""
    streams: Streams = field(default_factory=Streams, compare=False)
    """The module's streams."""

    @property
    def homes(self) -> Homes:
        """Where engines run."""
        return Homes(self.context.device, self.devices)

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(engine.spec for engine in self.engines)

    @property
    def by_spec(self) -> dict[str, GraphCompiler]:
        return {engine.spec: engine for engine in self.engines}

    def on_host(self, launch: Launch) -> GraphCompiler | None:
        """Return the engine of a launch; None where it runs on a device, or is not among these."""
        return self.by_spec.get(launch.engine) if self.homes.of(launch.engine) == "cpu" else None

    def close(self) -> None:
        """End the workers of those that have one."""
        for engine in self.engines:
            if isinstance(engine, Isolated):
                engine.close()

    @property
    def are_dynamic(self) -> bool:
        """Whether one executable of any of them serves every size of a symbolic dimension; what is measured is of one size."""
        return not self.is_auto and all(engine.supports_dynamic_shapes for engine in self.engines)


def engine_list(asked: Any, device: str, settings: Settings, store: CostStore | None = None) -> EngineList:
    """Return the engines for a name, spec, instance or list of them, the implicit reference engine included.

    The ``store`` may know which engines are ready here.

    Raises UnknownEngine or EngineUnavailable, OptionError for an engine listed twice or an execution option that a
    listed engine does not honour, DeviceError when none of them runs on the device.
    """
    context = CompileContext(settings.execution, check_device(device), checked_budget(settings.execution), report=settings.report)
    engines, left_out = _created(asked, context, settings, store)
    _check_list(engines)
    devices = devices_of(engines, settings.devices, context.device, registry.names() if asks_for_auto(asked) else ())
    check_engines_run(engines, context.device, devices)
    check_recorded(settings.cuda_graph, context.device)
    for engine in engines:
        if reason := engine.unsupported_options(context):
            raise OptionError(reason)
    engines = _isolated(engines, settings, Homes(context.device, devices))
    implicit = None if settings.strict else _reference(engines, context)
    if implicit is not None:
        engines.append(implicit)
    return EngineList(tuple(engines), implicit.spec if implicit else None, context, asks_for_auto(asked), left_out, devices)


def _created(
    asked: Any, context: CompileContext, settings: Settings, store: CostStore | None
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    many = _as_list(asked)
    if asks_for_auto(asked):
        found = settings.lock.engines([one for one in many if one != AUTO]) if settings.lock else None
        return (found, ()) if found else engines_at_hand(many, context, store, strict=settings.strict, devices=settings.devices)
    if settings.lock is not None:
        raise OptionError("lock= holds a placement by measurement; pass engine='auto', or a list with 'auto' in it")
    return [registry.create(one) for one in many], ()


def _isolated(engines: Sequence[GraphCompiler], settings: Settings, homes: Homes) -> list[GraphCompiler]:
    """Return the engines, those in front of a worker that are to have one."""
    check_isolated(settings.isolate, [engine.spec for engine in engines])
    limits, asked = Limits(settings.time_limit, settings.memory_limit), {*settings.isolate}
    found = [
        Isolated(loaded(engine), limits, runs=settings.isolate_run) if asked & {engine.name, engine.spec, "all"} else engine
        for engine in engines
    ]
    for engine in found:
        if isinstance(engine, Isolated):
            check_isolated_there(engine, homes, limits)
    return found


def check_isolated(asked: Sequence[str], specs: Sequence[str]) -> None:
    """Raise OptionError for an engine to isolate, by name or spec, that is none of those."""
    known = [name for spec in specs for name in (spec.partition("{")[0], spec)]
    for name in asked:
        if name not in (*known, "all"):
            raise OptionError(f"isolate names {name!r}, which is not in the list of engines.{did_you_mean(name, known)}")


def checked_budget(options: ExecutionOptions) -> int:
    """Return the threads that are asked for, or fewer with a warning: threads beyond the cores only wait for each other."""
    asked, budget = options.threads, budget_of(options.threads)
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
    reference = registry.create(IMPLICIT)
    serves = kind_of(context.device) in reference.devices and reference.unsupported_options(context) is None
    return reference if serves else None
