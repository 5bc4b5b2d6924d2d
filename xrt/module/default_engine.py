"""The engine of a module that names none: the first installed one that supports the whole model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.errors import DeviceError, EngineUnavailable, OptionError, UnknownEngine, XRTError
from xrt.module.model_source import make_source
from xrt.module.options import make_engine_list
from xrt.module.specialization import optimize
from xrt.module.stored_plans import find_stored_plans

if TYPE_CHECKING:
    from collections.abc import Callable

    from xrt.cache import CompileCache
    from xrt.graph import Function
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.module.stored_plans import StoredPlans
    from xrt.placement.engine_list import EngineList

__all__ = ["DEFAULT_ENGINES", "open_model", "redecide"]

DEFAULT_ENGINES = ("ort", "openvino", "torch", "xla", "toy")
"""The engines that are tried, in this order, where none is named."""


def open_model(
    model: Any, engine: Any, device: str, settings: ModuleOptions, cache: CompileCache
) -> tuple[EngineList, StoredPlans | None, ModelSource]:
    """Open a model on the engines that are named, or (None) on the default engine for it.

    An `xrt.Graph` has no types before its first call: it starts on the first installed engine, and `redecide` checks that.
    """
    if engine is not None:
        engines = make_engine_list(engine, device, settings, cache)
        stored = find_stored_plans(model, cache, settings, engines)
        return engines, stored, (stored and stored.source) or make_source(model, cache)
    plans: dict[str, StoredPlans | None] = {}
    sources: list[ModelSource] = []

    def why_not(engines: EngineList) -> str | None:
        # Plans are stored only if no region is on the implicit engine: the model need not be read to know that it is supported.
        plans[engines.specs[0]] = stored = find_stored_plans(model, cache, settings, engines)
        if stored is not None and stored.source is not None:
            sources[:] = [stored.source]
            return None
        if not sources:
            sources.append(make_source(model, cache))
        return None if sources[0].is_traced else _why_not(sources[0].get_declared_function(), settings, engines)

    engines = _choose(device, settings, cache, why_not)
    return engines, plans[engines.specs[0]], sources[0]


def redecide(function: Function, device: str, settings: ModuleOptions, cache: CompileCache) -> EngineList:
    """The default engine for the first trace of an `xrt.Graph`."""
    return _choose(device, settings, cache, lambda engines: _why_not(function, settings, engines))


def _choose(device: str, settings: ModuleOptions, cache: CompileCache, why_not: Callable[[EngineList], str | None]) -> EngineList:
    """Make the list of the first engine that is installed, honors the options and supports the model.

    If none supports all of it, the first installed engine gets the nodes that it supports. Libraries of engines behind the chosen
    one are not imported.
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
        reason = why_not(engines)
        if reason is None:
            listed = ", ".join(DEFAULT_ENGINES)
            remarks.append(f"engine {name!r} is the default: the first installed of {listed} that supports the whole model")
            return replace(engines, left_out=(*engines.left_out, *remarks))
        remarks.append(f"engine {name!r} does not support the whole model: {reason}")
        first = first or engines
    if first is None:
        raise failure or OptionError("no engine is installed that could be the default; pass engine=")
    return replace(first, left_out=(*first.left_out, *remarks))


def _why_not(function: Function, settings: ModuleOptions, engines: EngineList) -> str | None:
    """Explain why the first engine of a list does not support every node of a model, or return None."""
    # Constants are folded only if need be: most models are supported as they are, and a module folds once more when it plans.
    if _find_declined(function, engines) is None:
        return None
    return _find_declined(optimize(function, fold=settings.fold_constants, engines=engines), engines)


def _find_declined(function: Function, engines: EngineList) -> str | None:
    from xrt.partition import SupportMatrix
    from xrt.placement.result import unwrap

    found = SupportMatrix.of(function, unwrap(engines.engines[:1]), engines.homes.of(engines.specs[0]))
    reasons = ((node, found.reason(number, 0)) for number, node in enumerate(function.nodes))
    return next((f"{node.name!r} ({node.op}): {reason}" for node, reason in reasons if reason is not None), None)
