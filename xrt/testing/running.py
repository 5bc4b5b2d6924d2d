"""A module as the tests want it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xrt.cache import CompileCache
from xrt.module import XRTModule
from xrt.module.specialization import optimize
from xrt.passes import infer_shapes
from xrt.verify.execution import fit_inputs

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.graph import Function

__all__ = ["as_planned", "fit_inputs_for", "make_module"]


def make_module(function: Function, engines: Sequence[GraphCompiler | str], **options: Any) -> XRTModule:
    """Return a strict module with a cache of its own that folds no constants.

    Folding is left out because the reference engine would then answer in place of those that are to be proved.
    """
    settings: dict[str, Any] = {"strict": True, "fold_constants": False, "cache": CompileCache()} | options
    return XRTModule(function, list(engines), **settings)


def as_planned(function: Function) -> Function:
    """Return the function, types inferred, as a module of `make_module` plans it; pins may name the nodes that it has then."""
    return optimize(infer_shapes(function), fold=False)


def fit_inputs_for(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Function:
    """Return the function with types inferred, and with the inputs' shapes where one of the engines wants them fixed."""
    whole = infer_shapes(function)
    wants_shapes = [engine for engine in engines if engine.why_not_dynamic(whole) is not None]
    return fit_inputs(function, inputs, (*wants_shapes, *engines)[0])
