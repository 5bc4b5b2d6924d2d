"""Rules of recurrent layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from xrt.builder.record_op import apply, emit
from xrt.frontends.torch.rules.activations import drop
from xrt.frontends.torch.rules.table import (
    Unsupported,
    constant,
    fixed_size,
    ints,
    reshape,
    rule,
)
from xrt.graph import DType

if TYPE_CHECKING:
    from xrt.builder import Tensor


_LSTM = 2
"""Its number among the recurrent layers of PyTorch."""
_LSTM_GATES = [0, 3, 1, 2]
"""In ONNX's order; PyTorch's is input, forget, cell, output."""


def _gates(weight: Tensor, order: list[int], hidden: int) -> Tensor:
    """Return stacked gates in another order."""
    rows = np.concatenate([np.arange(gate * hidden, (gate + 1) * hidden) for gate in order])
    return emit("Gather", weight, constant(rows, DType.INT64), axis=0)


def _recurrent(
    op_type: str, order: list[int], x: Tensor, states: list[Tensor], params: Any, options: tuple[Any, ...], **attributes: Any
) -> Any:
    """Apply a stack of layers; the gates of ONNX are in another order than PyTorch's."""
    has_biases, layers, dropout, train, is_bidirectional, is_batch_first = options
    if x.ndim != 3:
        raise Unsupported("a recurrent layer without a batch")
    ways = 2 if is_bidirectional else 1
    per = len(params) // (layers * ways)
    if per != (4 if has_biases else 2):
        raise Unsupported("a recurrent layer with projections")
    y = emit("Transpose", x, perm=[1, 0, 2]) if is_batch_first else x
    ends: list[list[Tensor]] = [[] for _ in states]
    for layer in range(layers):
        mine = [params[(layer * ways + way) * per : (layer * ways + way + 1) * per] for way in range(ways)]
        weights = _stack_weights(mine, order, has_biases)
        starts = [emit("Slice", state, ints(layer * ways), ints((layer + 1) * ways), ints(0)) for state in states]
        hidden, direction = fixed_size(mine[0][1], 1), "bidirectional" if is_bidirectional else "forward"
        inputs = (y, *weights, None, *starts)
        found = apply(op_type, inputs, {"hidden_size": hidden, "direction": direction, **attributes}, outputs=1 + len(states))
        for end, state in zip(ends, found[1:], strict=True):
            end.append(state)
        y = reshape(emit("Transpose", found[0], perm=[0, 2, 1, 3]), 0, 0, -1)
        if train and dropout and layer + 1 < layers:
            y = drop(y, dropout)
    y = emit("Transpose", y, perm=[1, 0, 2]) if is_batch_first else y
    return (y, *[end[0] if layers == 1 else emit("Concat", *end, axis=0) for end in ends])


def _stack_weights(mine: list[Any], order: list[int], has_biases: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the weights of the inputs and of the states, and the biases, of all directions of a layer."""
    hidden = fixed_size(mine[0][1], 1)
    w, r = (emit("Concat", *[_rows(one[i], order, hidden) for one in mine], axis=0) for i in (0, 1))
    if not has_biases:
        return w, r, None
    both = [emit("Concat", *[_gates(one[i], order, hidden) for i in (2, 3)], axis=0) for one in mine]
    return w, r, emit("Concat", *[emit("Unsqueeze", one, ints(0)) for one in both], axis=0)


def _rows(weight: Tensor, order: list[int], hidden: int) -> Tensor:
    return emit("Unsqueeze", weight if order == [0] else _gates(weight, order, hidden), ints(0))


@rule("lstm.input")
def lstm(result: Any, x: Tensor, states: Any, params: Any, *options: Any) -> Any:
    return _recurrent("LSTM", _LSTM_GATES, x, list(states), params, options)


@rule("mkldnn_rnn_layer")
def mkldnn_rnn_layer(result: Any, x: Tensor, *args: Any) -> Any:
    """Apply one layer in one direction: what AOTAutograd makes of an LSTM in evaluation mode on the CPU."""
    *params, state, cell, is_reversed, batch_sizes, mode, hidden, layers = args[:11]
    has_biases, is_bidirectional, is_batch_first, train = args[11:]
    is_one = layers == 1 and not is_bidirectional and not is_batch_first
    if mode != _LSTM or batch_sizes or not is_one or train or result[3] is not None:
        raise Unsupported("a layer of oneDNN that is no LSTM, is packed, or keeps what its gradient needs")
    if x.dtype is not DType.FLOAT32:
        raise Unsupported(f"an LSTM of {x.dtype}, which PyTorch computes faster than engines do")
    weights = _stack_weights([params], _LSTM_GATES, has_biases)
    attributes = {"hidden_size": hidden, "direction": "reverse" if is_reversed else "forward"}
    y, *ends = apply("LSTM", (x, *weights, None, state, cell), attributes, outputs=3)
    return (emit("Squeeze", y, ints(1)), *ends, None)


@rule("gru.input")
def gru(result: Any, x: Tensor, state: Tensor, params: Any, *options: Any) -> Any:
    return _recurrent("GRU", [1, 0, 2], x, [state], params, options, linear_before_reset=1)


@rule("rnn_tanh.input")
def rnn_tanh(result: Any, x: Tensor, state: Tensor, params: Any, *options: Any) -> Any:
    return _recurrent("RNN", [0], x, [state], params, options, activations=["Tanh"] * (2 if options[4] else 1))


@rule("rnn_relu.input")
def rnn_relu(result: Any, x: Tensor, state: Tensor, params: Any, *options: Any) -> Any:
    return _recurrent("RNN", [0], x, [state], params, options, activations=["Relu"] * (2 if options[4] else 1))
