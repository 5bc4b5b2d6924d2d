"""A module as the tests want it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xrt.cache import CompileCache
from xrt.engines import GraphCompiler
from xrt.graph import Function
from xrt.module import XRTModule
from xrt.module.build import simplified
from xrt.passes import infer_shapes
from xrt.verify.running import fitted

__all__ = ["as_planned", "fitted_for", "module_of"]


def module_of(function: Function, engines: Sequence[GraphCompiler | str], **options: Any) -> XRTModule:
    """Return a strict module with a cache of its own that folds no constants.

    Folding is left out because the reference engine would then answer in place of those that are to be proved.
    """
    settings: dict[str, Any] = {"strict": True, "fold_constants": False, "cache": CompileCache()} | options
    return XRTModule(function, list(engines), **settings)


def as_planned(function: Function) -> Function:
    """Return the function, types inferred, as a module of `module_of` plans it; pins may name the nodes that it has then."""
    return simplified(infer_shapes(function), fold=False)


def fitted_for(function: Function, inputs: Sequence[Any], engines: Sequence[GraphCompiler]) -> Function:
    """Return the function with types inferred, and with the inputs' shapes where one of the engines wants them fixed."""
    wants_shapes = [engine for engine in engines if not engine.supports_dynamic_shapes]
    return fitted(function, inputs, (*wants_shapes, *engines)[0])
