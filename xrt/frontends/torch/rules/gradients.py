"""Rules of backward operators that AOTAutograd emits and PyTorch does not decompose.

Most use `xrt.gradient` of the forward operator's rule, and so have the same form as in a training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from xrt.builder import Builder
from xrt.builder.record_op import emit
from xrt.builder.symbol import current
from xrt.frontends.torch.rules.neural import convolution
from xrt.frontends.torch.rules.product import cdist
from xrt.frontends.torch.rules.reduce import reduce_by
from xrt.frontends.torch.rules.table import RULES, fixed_size, ints, reshape, rule, scalar
from xrt.graph import TensorType
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from xrt.builder import Tensor


def _differentiate(
    record: Callable[..., Tensor], inputs: Sequence[Tensor], g: Tensor, wanted: Sequence[bool]
) -> list[Tensor | None]:
    """Gradients of the wanted inputs, None for the others, from the gradient ``g`` of the result.

    ``record`` emits the forward operator; only the parts that the gradients read remain.
    """
    from xrt.passes.gradient import gradient

    names = [f"input_{index}" for index in range(len(inputs))]
    chosen = [name for name, is_wanted in zip(names, wanted, strict=True) if is_wanted]
    if not chosen:
        return [None] * len(inputs)
    builder = Builder("backward", opsets=dict(current("a gradient").opsets))
    with builder:
        builder.output(record(*(builder.input(name, one.type) for name, one in zip(names, inputs, strict=True))), "result")
    found = gradient(builder.function(), of="result", with_respect_to=chosen, seeds=True)
    found = drop_dead_nodes(found.replace(outputs=found.outputs[1:]))
    results = iter(current("a gradient").inline(found, *inputs, g))
    return [next(results) if is_wanted else None for is_wanted in wanted]


# ---------------------------------------------------------------------- convolutions and distances


@rule("convolution_backward")
def convolution_backward(
    result: Any,
    g: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    output_padding: Any,
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    def record(x: Tensor, weight: Tensor) -> Tensor:
        return convolution(g.tensor_type, x, weight, None, stride, padding, dilation, transposed, output_padding, groups)

    wanted = [mask and type_ is not None for mask, type_ in zip(output_mask, result, strict=True)]
    axes = [axis for axis in range(g.ndim) if axis != 1]
    return *_differentiate(record, [x, weight], g, wanted[:2]), reduce_by("ReduceSum", g, axes, False) if wanted[2] else None


@rule("_cdist_backward")
def cdist_backward(result: TensorType, g: Tensor, a: Tensor, b: Tensor, p: float, distances: Tensor) -> Any:
    return _differentiate(lambda a, b: cdist(distances.tensor_type, a, b, p), [a, b], g, [True, False])[0]


# ---------------------------------------------------------------------- pools and paddings


def _max_pool_backward(count: int, result: TensorType, g: Tensor, x: Tensor, *args: Any) -> Tensor:
    """Scatter-add the gradients at the indices of the maxima, which PyTorch counts per plane."""
    lead = x.ndim - count
    plane = [fixed_size(x, axis) for axis in range(lead, x.ndim)]
    rows = [0] * lead + [-1]
    size = 1
    for one in plane:
        size *= one
    target = emit("Concat", emit("Shape", x, end=lead), ints(size), axis=0)
    zeros = emit("Expand", scalar(0, x.dtype), target)
    indices = args[-1]
    summed = emit("ScatterElements", zeros, reshape(indices, *rows), reshape(g, *rows), axis=lead, reduction="add")
    return reshape(summed, *[0] * lead, *plane)


def _pool_backward(forward: str, result: TensorType, g: Tensor, x: Tensor, *args: Any) -> Any:
    """Backward of average pooling or padding: the gradient of the forward rule."""
    return _differentiate(lambda x: RULES[f"aten.{forward}.default"](g.tensor_type, x, *args), [x], g, [True])[0]


def _adaptive_backward(count: int, result: TensorType, g: Tensor, x: Tensor) -> Any:
    sizes = [fixed_size(g, axis) for axis in range(g.ndim - count, g.ndim)]
    return _pool_backward(f"adaptive_avg_pool{count}d", result, g, x, sizes)


for _count in (2, 3):
    rule(f"max_pool{_count}d_with_indices_backward")(partial(_max_pool_backward, _count))
    rule(f"avg_pool{_count}d_backward")(partial(_pool_backward, f"avg_pool{_count}d"))
    rule(f"_adaptive_avg_pool{_count}d_backward")(partial(_adaptive_backward, _count))
for _count in (1, 2, 3):
    rule(f"replication_pad{_count}d_backward")(partial(_pool_backward, f"replication_pad{_count}d"))
