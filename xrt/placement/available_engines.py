"""Which engines stand for ``engine="auto"`` here, by what an earlier process has found of them where that still holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.engines.contract import registry
from xrt.engines.contract.proxy import LazyEngine
from xrt.errors import EngineUnavailable, OptionError, PlacementWarning, warn
from xrt.graph import FrozenDict
from xrt.placement.engine_list import AUTO
from xrt.runtime import parse_device_kind

if TYPE_CHECKING:
    from xrt.engines import CompileContext, GraphCompiler
    from xrt.engines.contract.registry import EngineStatus
    from xrt.placement import CostStore

__all__ = ["list_available_engines"]


def list_available_engines(
    asked: Sequence[Any],
    context: CompileContext,
    store: CostStore | None,
    *,
    strict: bool,
    devices: Mapping[str, str] = FrozenDict(),
) -> tuple[list[GraphCompiler], tuple[str, ...]]:
    """Return the engines that replace "auto" in a list, and one line for each engine that is left out.

    These are the other engines of the list if it names any, else all registered engines; where bf16 or fp16 is allowed, one that
    can compute in it is there in float32 too. A named engine that is missing or broken
    is a PlacementWarning; with ``strict`` it raises EngineUnavailable. Raises EngineUnavailable too if no engine is left.
    ``devices`` maps engines, by name or spec, to the devices requested for them.
    """
    named = [one for one in asked if one != AUTO]
    if named:
        found, left_out = _those_of(named, context, store, devices, strict=strict)
    else:
        found, left_out = _all_of(context, store, devices, strict=strict)
    if not found and named:
        registry.create(named[0])  # raises what it lacks
    if not found:
        raise OptionError(f"no engine is left for engine='auto': {'; '.join(left_out) or 'none is registered'}")
    return _add_precisions(found, context), tuple(left_out)


def _add_precisions(engines: Sequence[GraphCompiler], context: CompileContext) -> list[GraphCompiler]:
    """Return the engines, each in the lower precision that is allowed and in float32, as far as it can be had so.

    The precision of options is what an engine may use: one that honors it uses it wherever it can. Strict types demand it.
    """
    precision = context.options.precision
    if precision not in ("bf16", "fp16") or context.options.strict_types:
        return list(engines)
    found: list[GraphCompiler] = []
    for engine in engines:
        is_lowered = engine.unsupported_options(context) is None
        forms = (engine, engine.lower_precision("fp32")) if is_lowered else (engine.lower_precision(precision), engine)
        found += [one for one in forms if one is not None]
    return list({engine.spec: engine for engine in reversed(found)}.values())[::-1]


def _those_of(
    named: Sequence[Any], context: CompileContext, store: CostStore | None, devices: Mapping[str, str], *, strict: bool
) -> tuple[list[GraphCompiler], list[str]]:
    found: list[GraphCompiler] = []
    left_out = []
    known = _remembered(store)
    for one in named:
        reason: str | None
        try:
            engine = LazyEngine(known[one]) if isinstance(one, str) and one in known else registry.create(one)
            reason = _not_there(engine, context, devices)
            found += [] if reason else [engine]
        except EngineUnavailable as error:
            if strict:
                raise
            reason = str(error)
        if reason:
            left_out.append(f"engine {str(one)!r} is left out: {reason}")
            warn(left_out[-1], PlacementWarning)
    _remember([engine.name for engine in found if engine.spec == engine.name and engine.name not in known], store)
    return found, left_out


def _remembered(store: CostStore | None) -> dict[str, EngineStatus]:
    """Return what an earlier process has found of engines that were ready: their libraries need not be imported to know."""
    known = store.statuses() if store is not None else {}
    return {name: status for name, status in known.items() if status.state == "ready"}


def _remember(names: Sequence[str], store: CostStore | None) -> None:
    """Store the status of engines that were created just now, and keep the known statuses of others."""
    registered = [name for name in names if name in registry.names()]
    if store is not None and registered:
        store.keep_statuses(list({**store.statuses(), **{name: registry.probe(name) for name in registered}}.values()))


def _all_of(
    context: CompileContext, store: CostStore | None, devices: Mapping[str, str], *, strict: bool
) -> tuple[list[GraphCompiler], list[str]]:
    """Return all ready engines, and one line for each other one; an engine that is not installed causes no error or warning."""
    found: list[GraphCompiler] = []
    left_out = []
    for status in _statuses(store):
        reason: str | None = status.cause
        if status.state == "ready":
            engine = LazyEngine(status)
            reason = _not_there(engine, context, devices) or engine.unsupported_options(context.in_full_precision())
            found += [] if reason else [engine]
        elif status.state == "broken" and strict:
            registry.create(status.name)
        if reason:
            left_out.append(f"engine {status.name!r} is left out: {reason}")
        if status.state == "broken":
            warn(left_out[-1], PlacementWarning)
    return found, left_out


def _statuses(store: CostStore | None) -> list[EngineStatus]:
    """Return what is the case with all registered engines, as an earlier process found it if nothing was installed since."""
    names = registry.list_by_rank()
    known = store.statuses() if store is not None else {}
    if set(names) <= set(known):
        return [known[name] for name in names]
    found = [registry.probe(name) for name in names]
    if store is not None and all(status.state != "broken" for status in found):  # what is broken may be mended in any way
        store.keep_statuses(found)
    return found


def _not_there(engine: GraphCompiler, context: CompileContext, devices: Mapping[str, str]) -> str | None:
    """Return why an engine cannot serve where it was asked for; what was asked of no such engine is its list's mistake."""
    device = devices.get(engine.spec, devices.get(engine.name, context.device))
    if parse_device_kind(device) not in engine.devices:
        return f"it runs on {', '.join(engine.devices)}, and not on {device}"
    return None
