"""Running a compiled model some of whose inputs or outputs are codes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.engines.contract.graph_compiler import Executable
from xrt.engines.contract.options import RunOptions
from xrt.engines.openvino.coded_types import is_encoded
from xrt.engines.openvino.executable import OpenVinoExecutable, Uses
from xrt.graph import Function, TensorType, Value

if TYPE_CHECKING:
    from xrt.engines.openvino.requests import CompiledModel

__all__ = ["make_executable"]


def make_executable(
    function: Function,
    compiled: CompiledModel,
    limits: Mapping[int, int],
    held: object,
    uses: Uses,
    inplace: Mapping[int, int] | None = None,
) -> OpenVinoExecutable:
    """Return an executable that takes and gives what the Function does; the arguments are those of `OpenVinoExecutable`."""
    has_codes = any(is_encoded(value.type) for value in (*function.inputs, *function.outputs))
    kind = EncodedExecutable if has_codes else OpenVinoExecutable
    return kind(function, compiled, limits, held, uses, inplace)


class EncodedExecutable(OpenVinoExecutable):
    """Runs on the bytes of what it is given: no value is copied or changed."""

    def __init__(self, function: Function, *rest: Any) -> None:
        from xrt.engines.openvino.bit_encoding import retype

        super().__init__(retype(function), *rest)
        self._given, self._made = _places(function.inputs), _places(function.outputs)

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        buffers = options.out or [None] * len(self.function.outputs)
        codes = replace(options, out=_seen(buffers, dict.fromkeys(self._made, np.dtype(np.uint8)))) if options.out else options
        results = _seen(super().run(self._codes(inputs), codes), self._made)
        return [result if buffer is None else buffer for result, buffer in zip(results, buffers, strict=True)]

    def fast_call(self) -> Callable[..., Sequence[Any]]:
        return Executable.fast_call(self)

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        if not self.supports_io_binding():
            return Executable.bind(self, inputs, outputs)
        return super().bind(self._codes(inputs), _seen(outputs, dict.fromkeys(self._made, np.dtype(np.uint8))))

    def _codes(self, inputs: Sequence[Any]) -> list[Any]:
        return _seen(inputs, dict.fromkeys(self._given, np.dtype(np.uint8)))


def _places(values: Sequence[Value]) -> dict[int, np.dtype[Any]]:
    types = [value.type for value in values]
    return {k: type_.dtype.numpy for k, type_ in enumerate(types) if isinstance(type_, TensorType) and is_encoded(type_)}


def _seen(arrays: Sequence[Any], as_types: Mapping[int, np.dtype[Any]]) -> list[Any]:
    """Return the arrays, those at the places seen as of other types; None stays."""
    return [a if a is None or k not in as_types else a.view(as_types[k]) for k, a in enumerate(arrays)]
