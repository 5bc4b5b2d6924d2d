"""FunctionModule: a Function as a torch.nn.Module that torch.export and torch.compile can capture."""

from __future__ import annotations

import itertools
import warnings
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from xrt.builder.tracing import inline
from xrt.errors import ModelError, OptionError
from xrt.frontends.torch.backend import add_torch_engine, choose_default_engines
from xrt.frontends.torch.dtypes import share_array, share_tensor, to_torch_dtype
from xrt.frontends.torch.module import TorchModule
from xrt.frontends.torch.rules import RULES
from xrt.graph import Function
from xrt.graph.constants import Constant, is_mapped
from xrt.module.module import XRTModule

_MODULES: weakref.WeakValueDictionary[int, FunctionModule] = weakref.WeakValueDictionary()
"""Live modules by number. A captured call contains the number, because a graph of PyTorch cannot hold the module."""
_NUMBERS = itertools.count()


class FunctionModule(nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    """A Function on a list of engines, with positional tensor inputs and tensor outputs.

    Constants are buffers under their names, for ``state_dict``; they share the Function's memory, except copies of
    memory-mapped ones. ``load_state_dict`` is refused, because a Function is immutable.
    """

    def __init__(self, model: Function | XRTModule, engine: Any = None, **options: Any) -> None:
        super().__init__()
        self._function, self._xrt_module = _make_xrt_module(model, engine, options)
        self._number = next(_NUMBERS)
        _MODULES[self._number] = self
        for name, constant in self._function.constants.items():
            *path, last = name.split(".")
            owner: Any = self
            for part in path:
                owner = owner._modules.setdefault(part, nn.Module())
            # Not register_buffer, which refuses names of attributes such as "forward".
            owner._buffers[last] = _share_constant(constant)

    def forward(self, *inputs: torch.Tensor) -> Any:
        """Run the Function; return the output, or a tuple of several."""
        # A capture records one custom operator, which `from_torch` replaces by the nodes of the Function.
        is_captured = torch.compiler.is_compiling()
        results = torch.ops.xrt.run_function(list(inputs), self._number) if is_captured else self.run(inputs)
        return tuple(results) if len(results) != 1 else results[0]

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        results = self._xrt_module(*map(share_array, inputs))
        return list(map(share_tensor, results if isinstance(results, tuple) else (results,)))

    def load_state_dict(self, *_: Any, **__: Any) -> Any:
        """Not supported: a Function is immutable."""
        raise ModelError("the constants of a Function do not change; load them into the module that it was made of")


def _make_xrt_module(model: Function | XRTModule, engine: Any, options: dict[str, Any]) -> tuple[Function, XRTModule]:
    """Return the Function of a model and the XRTModule that runs it, which is created for a Function."""
    if isinstance(model, TorchModule):
        raise ModelError("an XRTModule of a module of PyTorch is none of a Function; the module itself is its attribute `model`")
    if isinstance(model, XRTModule):
        if engine is not None or options:
            raise OptionError("an XRTModule has its engines and options; xrt.to_torch takes none with it")
        return model.source.get_declared_function(), model
    if not isinstance(model, Function):
        raise ModelError(f"xrt.to_torch takes a Function or an XRTModule; got a {type(model).__name__}")
    engines = add_torch_engine(engine or choose_default_engines(), model, is_strict=bool(options.get("strict")))
    return model, XRTModule(model, engines, **options)


def _share_constant(constant: Constant) -> torch.Tensor:
    """Convert a constant to a tensor that shares its memory; copy memory-mapped constants and types that NumPy lacks."""
    if is_mapped(constant.array) or constant.array.dtype.isbuiltin != 1:
        return share_tensor(constant.array)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # PyTorch warns about read-only memory
        return torch.from_numpy(constant.array)


# The custom operator that a capture records for a call of a FunctionModule.
_LIBRARY = torch.library.Library("xrt", "DEF")
_LIBRARY.define("run_function(Tensor[] inputs, int number) -> Tensor[]")


def _make_fakes(inputs: Sequence[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Make fake results of the declared types for a capture. A size that no input determines becomes a new dynamic size."""
    function = _find(number)._function
    sizes_by_dim: dict[Any, Any] = {}
    for value, tensor in zip(function.inputs, inputs, strict=True):
        sizes_by_dim.update(zip(value.type.shape or (), tensor.shape, strict=False))  # type: ignore[union-attr]  # all are tensors
    fakes = []
    for value in function.outputs:
        type_: Any = value.type
        if type_ is None or type_.shape is None:
            raise ModelError(f"the rank of output {value.name!r} is not known, so no capture can hold it")
        sizes = [dim if isinstance(dim, int) else sizes_by_dim.get(dim) for dim in type_.shape]
        sizes = [torch.library.get_ctx().new_dynamic_size() if size is None else size for size in sizes]
        fakes.append(torch.empty(sizes, dtype=to_torch_dtype(type_.dtype)))
    return fakes


def _find(number: int) -> FunctionModule:
    if number not in _MODULES:
        raise ModelError("the module of a Function that this graph calls is gone; keep it as long as the graph is used")
    return _MODULES[number]


_LIBRARY.impl("run_function", lambda inputs, number: _find(number).run(inputs), "CPU")
torch.library.register_fake("xrt::run_function", _make_fakes, lib=_LIBRARY)
RULES["xrt.run_function.default"] = lambda _, inputs, number: list(inline(_find(number)._function, *inputs))
