"""The engines of a module in priority order, with the device of each, and the expansion of ``"auto"``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xrt.engines import GraphCompiler
from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine
from xrt.errors import EngineUnavailable, OptionError, PlacementWarning, warn
from xrt.graph import FrozenDict
from xrt.partition.support_matrix import DeviceMap
from xrt.runtime import parse_device_kind
from xrt.runtime.devices.registry import Streams

if TYPE_CHECKING:
    from xrt.engines import CompileContext
    from xrt.engines.contract.registry import EngineStatus
    from xrt.graph import Function, Node
    from xrt.partition import Launch
    from xrt.placement import CostStore
    from xrt.placement.result import PlacementRequest

AUTO = "auto"
"""The entry in a list of engines that requests placement by measurement."""


@dataclass(frozen=True, slots=True)
class EngineList:
    engines: tuple[GraphCompiler, ...]
    implicit: str | None
    """The spec of the reference engine if it was appended to the caller's list, else None."""
    context: CompileContext
    is_auto: bool = False
    left_out: tuple[str, ...] = ()
    """A message for each engine that ``"auto"`` would include but that cannot be used, with the reason."""
    device_map: DeviceMap = DeviceMap()
    reduced_engines: tuple[GraphCompiler, ...] = ()
    streams: Streams = field(default_factory=Streams, compare=False)

    @property
    def specs(self) -> tuple[str, ...]:
        return tuple(engine.spec for engine in self.engines)

    @property
    def by_spec(self) -> dict[str, GraphCompiler]:
        return {engine.spec: engine for engine in (*self.engines, *self.reduced_engines)}

    def make_request(self, function: Function, **fields: Any) -> PlacementRequest:
        """Make the request to place a Function on these engines; ``fields`` add or override fields of PlacementRequest."""
        from xrt.placement.result import PlacementRequest

        defaults = {"engines": self.engines, "implicit": self.implicit, "devices": self.device_map.by_engine}
        return PlacementRequest(function, context=self.context, **{**defaults, **fields})

    def get_host_engine(self, launch: Launch) -> GraphCompiler | None:
        """Return the engine of a launch if it is in the list and computes on the CPU, else None."""
        return self.by_spec.get(launch.engine) if self.device_map.get_device(launch.engine) == "cpu" else None

    def why_not_dynamic(self, launch: Launch) -> str:
        """Explain why a launch must be compiled for fixed sizes of symbolic dims; empty if one executable serves all sizes."""
        engine = self.by_spec.get(launch.engine)
        if engine is None or not engine.supports_dynamic_shapes:
            return f"engine {launch.engine!r} needs every extent fixed"
        return engine.why_not_dynamic(launch.function) or ""

    def fuses_dequantization(self, node: Node, function: Function) -> bool:
        """Whether an engine of the caller's list fuses this DequantizeLinear of constants, so that it must not be folded."""
        return any(engine.fuses_dequantization(node, function) for engine in self.engines if engine.spec != self.implicit)

    def close(self) -> None:
        from xrt.worker.isolated_engine import IsolatedEngine

        for engine in self.engines:
            if isinstance(engine, IsolatedEngine):
                engine.close()

    @property
    def can_be_dynamic(self) -> bool:
        """Whether a plan can keep symbolic dims: all engines support them, or one does and nodes are placed by measurement."""
        if self.is_auto:
            return any(engine.supports_dynamic_shapes for engine in self.engines if engine.spec != self.implicit)
        return all(engine.supports_dynamic_shapes for engine in self.engines)

    @property
    def are_dynamic(self) -> bool:
        """Whether every engine compiles any Function once for all sizes, so that no engine need be queried."""
        if self.is_auto or not self.can_be_dynamic:
            return False
        # An engine that overrides `why_not_dynamic` may decline some Functions.
        listed = (engine.implementation for engine in self.engines if engine.spec != self.implicit)
        return all(implementation.why_not_dynamic is GraphCompiler.why_not_dynamic for implementation in listed)


def list_available_engines(
    requested: Sequence[Any],
    context: CompileContext,
    store: CostStore | None,
    *,
    strict: bool,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    """Expand ``"auto"`` in a list; returns the engines to use, and a message for each engine that is left out.

    The engines to use are the other entries of the list or, if ``"auto"`` is the only entry, all registered engines that are
    ready. If bf16 or fp16 is allowed, an engine that can compute in that precision is included in float32 too. ``store`` has the
    engine statuses found by earlier processes. A named engine that is missing or broken causes a PlacementWarning, or raises
    EngineUnavailable with ``strict``. ``devices`` maps engines, by name or spec, to their requested devices. Raises
    EngineUnavailable or OptionError if no engine is left.
    """
    named = [entry for entry in requested if entry != AUTO]
    statuses: Mapping[str, EngineStatus] = store.read_statuses() if store is not None else {}
    # Named engines need no probe: a missing one is reported by its own error.
    if not named:
        statuses = _probe_engines(statuses, store)
    engines: list[GraphCompiler] = []
    left_out = []
    for entry in named or registry.list_by_rank():
        status = statuses.get(entry) if isinstance(entry, str) else None
        engine, reason = _create_engine(entry, status, is_required=bool(named), strict=strict)
        if engine is not None:
            reason = _why_not_on_device(engine, context, devices)
            # A named engine that does not support an option is an error of the caller, which is raised later.
            if not reason and not named:
                reason = engine.unsupported_options(context.in_full_precision())
            if not reason:
                engines.append(engine)
        if reason:
            left_out.append(f"engine {str(entry)!r} is left out: {reason}")
            # The user expects an engine that was named, or that is installed.
            if named or (status is not None and status.state == "broken"):
                warn(left_out[-1], PlacementWarning)
    # Update the status of an engine that was stored as missing and is ready now, such as after the installation of a driver.
    ready = {name for name, status in statuses.items() if status.state == "ready"}
    new_names = [engine.name for engine in engines if engine.spec == engine.name and engine.name not in ready]
    if store is not None:
        probed = {name: registry.probe(name) for name in new_names if name in registry.names()}
        if probed:
            store.store_statuses(list({**store.read_statuses(), **probed}.values()))
    if not engines and named:
        registry.create(named[0])  # raises EngineUnavailable if it is missing
    if not engines:
        raise OptionError(f"no engine is left for engine='auto': {'; '.join(left_out) or 'none is registered'}")
    return _add_precisions(engines, context), tuple(left_out)


def _create_engine(
    entry: Any, status: EngineStatus | None, *, is_required: bool, strict: bool
) -> tuple[GraphCompiler | None, str | None]:
    """Create an engine that is ready or required; else return None, and the reason why it is left out if there is one."""
    if status is not None and status.state == "ready":
        return LazyEngine(status), None  # its library is imported only if the engine is used
    if is_required or (strict and status is not None and status.state == "broken"):
        try:
            return registry.create(entry), None
        except EngineUnavailable as error:
            if strict:
                raise
            return None, str(error)
    return None, status.cause if status is not None else None


def _probe_engines(statuses: Mapping[str, EngineStatus], store: CostStore | None) -> Mapping[str, EngineStatus]:
    """Return the status of each registered engine by name. If one is not among the stored ``statuses``, probe all engines."""
    names = registry.names()
    if set(names) <= set(statuses):
        return statuses
    probed = [registry.probe(name) for name in registry.list_by_rank()]
    if store is not None and all(status.state != "broken" for status in probed):  # a broken engine may be repaired at any time
        store.store_statuses(probed)
    return {status.name: status for status in probed}


def _add_precisions(engines: Sequence[GraphCompiler], context: CompileContext) -> list[GraphCompiler]:
    """Replace each engine by its variants in the allowed reduced precision and in float32, without those it does not support."""
    precision = context.options.precision
    if precision not in ("bf16", "fp16"):
        return list(engines)
    by_spec: dict[str, GraphCompiler] = {}
    for engine in engines:
        # Reduced precision is not always faster, so that float32 races with it.
        variants: Sequence[GraphCompiler | None] = (engine.with_precision(precision), engine)
        if engine.unsupported_options(context) is None:  # it computes in the reduced precision as it is
            variants = (engine, engine.with_precision("fp32"))
        by_spec.update((variant.spec, variant) for variant in variants if variant is not None)
    return list(by_spec.values())


def _why_not_on_device(engine: GraphCompiler, context: CompileContext, devices: Mapping[str, str]) -> str | None:
    device = devices.get(engine.spec, devices.get(engine.name, context.device))
    if parse_device_kind(device) not in engine.devices:
        return f"it runs on {', '.join(engine.devices)}, and not on {device}"
    return None
