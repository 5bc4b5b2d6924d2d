"""Higher-order operators of PyTorch: a conditional becomes If, a loop Loop, a scan or a map Scan; others are computed in place.

The graphs that such an operator calls become bodies. What they read of the graph around them are its values, not copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from xrt.builder.record_op import apply, emit
from xrt.errors import ModelError
from xrt.frontends.torch.checks import CHECKS
from xrt.frontends.torch.rules.table import as_tensor
from xrt.graph import DType

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from xrt.builder import Tensor
    from xrt.frontends.torch.lower import Lowering

__all__ = ["lower_control_flow"]

HigherOrder: TypeAlias = Callable[["Lowering", list[Any]], Sequence[Any]]
"""Takes the operator's arguments, tensors as values and graphs as they are, and returns its results in order."""


def lower_control_flow(lowering: Lowering, name: str, args: list[Any], fakes: Any) -> list[Any]:
    """Return the results of a higher-order operator.

    ``fakes`` are the results of the capture. Raises ModelError for an operator that has no form here.
    """
    rule = _RULES.get(name)
    if rule is None:
        raise ModelError(f"the module uses the higher-order operator {name}, which has no ONNX form; run it without XRT")
    results = rule(lowering, args)
    if name in _INLINED or not isinstance(fakes, list | tuple):
        return results  # type: ignore[return-value]  # what is computed in place returns what its graph returns
    return [lowering.take_result(one, fake) for one, fake in zip(results, fakes, strict=False)]


def _inline(lowering: Lowering, args: list[Any]) -> Any:
    index = next(i for i, one in enumerate(args) if isinstance(one, torch.fx.GraphModule))
    operands = args[index + 1 :]
    part = args[index]
    count = sum(call.op == "placeholder" for call in part.graph.nodes)
    if len(operands) > count:
        operands = [one for one in operands if not isinstance(one, str)]  # the name of the part
    if len(operands) == 1 and isinstance(operands[0], list) and count != 1:
        operands = operands[0]
    return lowering.inline(part, operands)


def _cond(lowering: Lowering, args: list[Any]) -> Sequence[Any]:
    condition, then, other, operands = args
    if isinstance(condition, bool):
        return lowering.inline(then if condition else other, operands)  # type: ignore[no-any-return]  # a list
    lowering.read_constants(then, other)
    bodies = {"then_branch": _make_body(lowering, then, operands), "else_branch": _make_body(lowering, other, operands)}
    return _merge(_several(apply("If", [_as_condition(condition)], bodies)), _find_absent(then))


def _while_loop(lowering: Lowering, args: list[Any]) -> Sequence[Any]:
    condition, body, carried, others = args
    lowering.read_constants(condition, body)
    carried = [as_tensor(one) for one in carried]

    def run(_iteration: Tensor, _condition: Tensor, *states: Tensor) -> list[Tensor]:
        with lowering.enter():
            results = [as_tensor(one) for one in lowering.inline(body, [*states, *others])]
            return [_as_condition(_single(lowering.inline(condition, [*results, *others]))), *results]

    start = _as_condition(_single(lowering.inline(condition, [*carried, *others])))
    return _several(apply("Loop", [None, start, *carried], {"body": run}))


def _scan(lowering: Lowering, args: list[Any]) -> Sequence[Any]:
    body, states, rows, others = args
    return _emit_scan(lowering, body, states, rows, others)


def _map(lowering: Lowering, args: list[Any]) -> Sequence[Any]:
    body, rows, others = args
    return _emit_scan(lowering, body, [], rows, others)


def _emit_scan(lowering: Lowering, body: GraphModule, states: Any, rows: Any, others: Any) -> Sequence[Any]:
    lowering.read_constants(body)

    def run(*operands: Tensor) -> list[Tensor]:
        with lowering.enter():
            return [as_tensor(one) for one in lowering.inline(body, [*operands, *others]) if one is not None]

    inputs = [as_tensor(one) for one in (*states, *rows)]
    return _merge(_several(apply("Scan", inputs, {"body": run, "num_scan_inputs": len(rows)})), _find_absent(body))


def _with_effects(lowering: Lowering, args: list[Any]) -> Sequence[Any]:
    """Return no token and the results of an operator whose calls PyTorch keeps in order: here a check, which is not kept."""
    if str(args[1]) not in CHECKS:
        raise ModelError(f"the module calls {args[1]}, whose effects no Function has; run it without XRT")
    return [None]


_INLINED: dict[str, HigherOrder] = dict.fromkeys(
    (
        "wrap_with_set_grad_enabled",
        "wrap_with_autocast",
        "wrap_activation_checkpoint",
        "tag_activation_checkpoint",
        "hints_wrapper",
        "invoke_subgraph",
        "strict_mode",
        "wrap",
    ),
    _inline,
)
"""Calls of a part of the graph that differ from it in nothing for a Function."""
_RULES: dict[str, HigherOrder] = {
    **_INLINED,
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "with_effects": _with_effects,
}


# ---------------------------------------------------------------------- bodies and their results


def _make_body(lowering: Lowering, part: GraphModule, operands: Sequence[Any]) -> Callable[[], list[Tensor]]:
    def run() -> list[Tensor]:
        with lowering.enter():
            return [as_tensor(one) for one in lowering.inline(part, operands) if one is not None]

    return run


def _find_absent(part: GraphModule) -> list[bool]:
    """Return which results of a graph are None, so that no body gives them."""
    (output,) = [call for call in part.graph.nodes if call.op == "output"]
    return [one is None for one in output.args[0]]


def _merge(results: Sequence[Any], absent: Sequence[bool]) -> list[Any]:
    given = iter(results)
    return [None if is_absent else next(given) for is_absent in absent]


def _several(results: Any) -> Sequence[Any]:
    return results if isinstance(results, tuple) else (results,)


def _single(results: Any) -> Any:
    return results[0] if isinstance(results, list | tuple) else results


def _as_condition(value: Any) -> Tensor:
    """Return a condition, a tensor of one element or a number, as a 0-d tensor of bool."""
    tensor = as_tensor(value)
    if tensor.dtype is not DType.BOOL:
        tensor = emit("Cast", tensor, to=DType.BOOL)
    return tensor if tensor.shape == () else emit("Squeeze", tensor)
