"""A module of PyTorch that has no one graph for the engines: torch.compile splits it, and each part runs as an XRTModule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from xrt.errors import FallbackWarning, PlanError, warn
from xrt.frontends.torch.backend import compile_graph
from xrt.frontends.torch.dtypes import share_array
from xrt.frontends.torch.export import drop_warnings, register_dataclasses
from xrt.frontends.torch.leaves import gives_arrays, unflatten

if TYPE_CHECKING:
    from xrt.errors import ModelError
    from xrt.module.module import XRTModule

__all__ = ["SplitModule", "split"]


class SplitModule:
    """A module in parts, into which Dynamo splits it as it runs; the code between them runs in Python."""

    def __init__(self, model: torch.nn.Module, arguments: Mapping[str, Any]) -> None:
        self._modules: list[XRTModule] = []
        backend = partial(compile_graph, options=arguments, freeze=True, modules=self._modules)
        self._compiled = torch.compile(model, backend=backend)

    @property
    def parts(self) -> tuple[XRTModule, ...]:
        """The modules of the parts that have run, in the order of their first calls."""
        return tuple(self._modules)

    def run(self, leaves: list[Any], structure: Any, given: list[Any]) -> Any:
        """Return what the module returns for inputs as `flatten` gives them; arrays where only arrays were given."""
        args, kwargs = unflatten(leaves, structure)
        with torch.no_grad(), drop_warnings("torch._dynamo.variables.tensor"):  # of the breaks, which are meant
            result = self._compiled(*args, **kwargs)
        if not gives_arrays(given):
            return result
        while register_dataclasses(pytree.tree_leaves(result)):
            pass
        return pytree.tree_map_only(torch.Tensor, share_array, result)

    def close(self) -> None:
        """Release what was compiled."""
        for module in self._modules:
            module.close()


def split(model: torch.nn.Module, arguments: Mapping[str, Any], error: ModelError | PlanError) -> SplitModule:
    """Return the module in parts, with a FallbackWarning; raises the error where the arguments are ``strict``."""
    if arguments.get("strict"):
        raise error
    reason = f"has operators that no engine supports ({error})" if isinstance(error, PlanError) else "branches on data"
    warn(
        f"{type(model).__name__} {reason} and runs in parts, into which torch.compile splits it; "
        f".parts are their modules, each with a plan of its own",
        FallbackWarning,
    )
    return SplitModule(model, arguments)
