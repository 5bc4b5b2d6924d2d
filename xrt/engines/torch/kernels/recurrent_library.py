"""Recurrent layers by PyTorch's own functions, which compute all steps of both directions in one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from xrt.engines.torch.kernel_context import find_known
from xrt.engines.torch.table import Tensor

if TYPE_CHECKING:
    from xrt.engines.torch.kernel_context import TorchKernelContext

__all__ = ["LibraryLayer"]

# The gates of a library function in its own order, as places in ONNX's: i o f c, z r h.
_ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
_USUAL = {"LSTM": ["sigmoid", "tanh", "tanh"], "GRU": ["sigmoid", "tanh"], "RNN": ["tanh"]}
_TYPES = (torch.float32, torch.float64)


class LibraryLayer:
    """A node that a function of PyTorch may compute; each call decides, by the inputs that are given.

    Weights are put into the order of the library's gates: once where they are constant, else in each call.
    """

    def __init__(self, at: TorchKernelContext) -> None:
        self._op = at.node.op_type
        self._direction = at.attr("direction", "forward")
        self._batch_first = bool(at.attr("layout", 0))
        self._call = _find_function(at)
        given = len(at.node.inputs) > 3 and bool(at.node.inputs[3])
        self._is_constant = all(find_known(at.node, at.function, i) is not None for i in range(1, 4 if given else 3))
        self._packed = at.packed
        self._weights: list[Tensor] | None = None

    def accepts(self, x: Tensor, rest: Sequence[Tensor]) -> bool:
        """Whether the library serves a call: real numbers to compute, and none of lengths and peepholes, in ``rest``."""
        usual = self._call is not None and type(x) is torch.Tensor and x.dtype in _TYPES
        return usual and x.numel() > 0 and all(one is None for one in rest)

    def __call__(self, x: Tensor, w: Tensor, r: Tensor, bias: Tensor, initial: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return Y and the last states, laid out as the node says."""
        x = x.transpose(0, 1) if self._batch_first else x
        backwards = self._direction == "reverse"
        x = x.flip(0) if backwards else x
        shape = (r.shape[0], x.shape[1], r.shape[-1])
        states = [x.new_zeros(shape) if one is None else self._swap(one).contiguous() for one in initial]
        both = self._direction == "bidirectional"
        states_given = states if self._op == "LSTM" else states[0]
        assert self._call is not None
        y, *last = self._call(x, states_given, self._order(w, r, bias), bias is not None, 1, 0.0, False, both, False)
        y = (y.flip(0) if backwards else y).unflatten(2, (shape[0], shape[2]))
        y = y.transpose(0, 1) if self._batch_first else y.transpose(1, 2)
        return y, *map(self._swap, last)

    def _swap(self, state: Tensor) -> Tensor:
        return state.transpose(0, 1) if self._batch_first else state

    def _order(self, w: Tensor, r: Tensor, bias: Tensor) -> list[Tensor]:
        """Return the library's parameters: weights of input and state, then biases, for each direction."""
        if self._weights is not None:
            return self._weights
        order = _ORDERS[self._op]
        of_gates = [w, r] if bias is None else [w, r, *bias.chunk(2, 1)]
        parts = [value.unflatten(1, (len(order), r.shape[-1]))[:, list(order)].flatten(1, 2) for value in of_gates]
        weights = [value[d] for d in range(len(w)) for value in parts]
        if self._is_constant:  # two threads may both do it, and both are right
            self._packed.extend(parts)
            self._weights = weights
        return weights


def _find_function(at: TorchKernelContext) -> Callable[..., Any] | None:
    """Return the function that computes what the attributes say; None where PyTorch has none."""
    op = at.node.op_type
    names = {name.lower() for name in at.attr("activations") or ()}
    if at.attr("clip") is not None or at.attr("activation_alpha") or at.attr("activation_beta"):
        return None
    if op == "RNN":
        by_name: dict[str, Callable[..., Any]] = {"tanh": torch.rnn_tanh, "relu": torch.rnn_relu}
        return by_name.get((names or {"tanh"}).pop()) if len(names) < 2 else None
    directions = 2 if at.attr("direction", "forward") == "bidirectional" else 1
    listed = [name.lower() for name in at.attr("activations") or _USUAL[op] * directions]
    if listed != _USUAL[op] * directions or at.attr("input_forget", 0):
        return None
    return torch.lstm if op == "LSTM" else torch.gru if at.attr("linear_before_reset", 0) else None
