"""Decompositions of operators without a lowering rule, traced call by call.

Most are PyTorch's; a few are XRT's, for operators that PyTorch does not decompose. Random operators are never decomposed, as they
draw from PyTorch's generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch._decomp import core_aten_decompositions, decomposition_table
from torch._decomp.decompositions import max_unpool2d
from torch._dispatch.python import enable_python_dispatcher
from torch._prims_common import suggest_memory_format
from torch._subclasses.functional_tensor import FunctionalTensorMode, dispatch_functionalize
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional
from torch.utils import _pytree as pytree

from xrt.frontends.torch.rules.table import bind_arguments

if TYPE_CHECKING:
    from torch.fx import GraphModule, Node as Call


def trace_decomposition(call: Call, read: Sequence[int]) -> GraphModule | None:
    """Trace the decomposition of a captured call on its nodes as inputs; None if there is none.

    For an operator with several results, only those in ``read`` are computed.
    """
    decompose = _find_decomposition(call.target)
    leaves, structure = pytree.tree_flatten((call.args, call.kwargs))
    places = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]
    fakes = [leaves[index].meta.get("val") for index in places]
    tensors = [*fakes, *pytree.tree_leaves(call.meta.get("val"))]
    mode = next((fake.fake_mode for fake in tensors if isinstance(fake, torch._subclasses.FakeTensor)), None)
    if decompose is None or mode is None:
        return None

    def run(*given: Any) -> Any:
        arguments = list(leaves)
        for index, value in zip(places, given, strict=True):
            arguments[index] = value
        args, kwargs = pytree.tree_unflatten(arguments, structure)
        results = call.target(*args, **kwargs)
        if not isinstance(results, list | tuple):
            return results
        return [result if index in read else None for index, result in enumerate(results)]

    # Functionalization costs time, and only some decompositions of PyTorch's C++ code need it.
    for function in (run, dispatch_functionalize(run, FunctionalTensorMode())):
        try:
            with mode, enable_python_dispatcher(), torch.no_grad(), torch._C._DisableAutocast():
                part = make_fx(function, {call.target: decompose})(*fakes)
        except Exception:  # noqa: BLE001  # a decomposition may fail for these arguments; the call stays as it is
            continue
        part.graph.eliminate_dead_code()
        called = {one.target for one in part.graph.nodes if isinstance(one.target, torch._ops.OpOverload)}
        if not any(one is call.target or _is_final(one) for one in called):
            return part
    return None


def _is_final(operator: Any) -> bool:
    """Whether an operator makes a decomposition useless: no rule lowers PyTorch's primitives, updates, and reads of strides."""
    return operator.namespace == "prims" or operator._schema.is_mutable or operator is torch.ops.aten.as_strided.default


@cache
def _list_decompositions() -> dict[Any, Callable[..., Any]]:
    aten = torch.ops.aten
    return {
        **decomposition_table,
        **core_aten_decompositions(),
        aten._transformer_encoder_layer_fwd.default: _decompose_encoder_layer,
    }


def _find_decomposition(operator: Any) -> Callable[..., Any] | None:
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return None
    decomposition = _list_decompositions().get(operator)
    return operator.decompose if decomposition is None and operator._can_decompose() else decomposition


def _decompose_max_unpool2d(x: torch.Tensor, indices: torch.Tensor, output_size: Any) -> torch.Tensor:
    return max_unpool2d(x, indices, output_size).contiguous(memory_format=suggest_memory_format(x))


BEFORE_LOWERING = {torch.ops.aten.max_unpool2d.default: _decompose_max_unpool2d}
"""Decompositions while AOTAutograd traces: PyTorch's fake kernel loses the memory format that the real one keeps."""


def _decompose_encoder_layer(*args: Any, **kwargs: Any) -> Any:
    """Decompose the fused inference form of `nn.TransformerEncoderLayer`."""
    a = bind_arguments(torch.ops.aten._transformer_encoder_layer_fwd.default, args, kwargs)
    if a.mask is not None or a.src.is_nested:
        return NotImplemented

    def attend(x: torch.Tensor) -> torch.Tensor:
        attended = _attend(functional.linear(x, a.qkv_weight, a.qkv_bias), a.num_heads)
        return functional.linear(attended, a.proj_weight, a.proj_bias)

    def feed(x: torch.Tensor) -> torch.Tensor:
        inner = functional.linear(x, a.ffn_weight_1, a.ffn_bias_1)
        return functional.linear((functional.gelu if a.use_gelu else functional.relu)(inner), a.ffn_weight_2, a.ffn_bias_2)

    def normalize(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(x, (a.embed_dim,), weight, bias, a.eps)

    if a.norm_first:
        x = a.src + attend(normalize(a.src, a.norm_weight_1, a.norm_bias_1))
        return x + feed(normalize(x, a.norm_weight_2, a.norm_bias_2))
    x = normalize(a.src + attend(a.src), a.norm_weight_1, a.norm_bias_1)
    return normalize(x + feed(x), a.norm_weight_2, a.norm_bias_2)


def _attend(qkv: torch.Tensor, heads: int) -> torch.Tensor:
    """Scaled dot product attention of packed queries, keys and values."""
    q, k, v = qkv.unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    scores = torch.softmax((q / math.sqrt(q.shape[-1])) @ k.mT, -1)
    return (scores @ v).transpose(1, 2).flatten(2)
