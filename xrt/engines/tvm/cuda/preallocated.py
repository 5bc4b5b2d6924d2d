"""A planned ``main`` becomes one that allocates nothing: what it would allocate are parameters.

TVM's runtime takes memory from a pool that knows nothing of streams: what one call frees, the next takes, though work of another
stream may still read it; and no recording may allocate. So inner values lie in blocks of bytes that the caller hands over, and
results in arrays of the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax
from tvm.ir import Call, GlobalVar, IRModule

from xrt.engines.tvm.destination_passing import RESULT, find_result_origin, get_operator_name, list_tuple_fields
from xrt.engines.tvm.export import tensor_type
from xrt.errors import CompileRefused

if TYPE_CHECKING:
    from xrt.graph import TensorType

__all__ = ["AllocationFree", "lift_allocations"]

_STORAGE = tvm.ir.Op.get("relax.memory.alloc_storage")
_WITHIN = tvm.ir.Op.get("relax.memory.alloc_tensor")
_DROPPED = (_STORAGE, RESULT, tvm.ir.Op.get("relax.memory.kill_storage"), tvm.ir.Op.get("relax.memory.kill_tensor"))
_VIEW = relax.ExternFunc("runtime.TVMTensorCreateView")


@dataclass(frozen=True, slots=True)
class AllocationFree:
    """A module whose ``main`` takes, after its own parameters, the blocks of its workspace and the arrays for its results."""

    module: IRModule
    workspace: tuple[int, ...]
    """The bytes of each block, which inner values take turns in."""
    made: tuple[TensorType, ...]
    """The arrays that ``main`` computes into: its last parameters."""
    results: tuple[int, ...]
    """For each result the parameter that holds it after the call."""


def lift_allocations(module: IRModule) -> AllocationFree:
    """Return the module, planned by StaticPlanBlockMemory, with a ``main`` that is handed all memory.

    Raises CompileRefused where it does anything but call functions of the module on tensors of known sizes.
    """
    main = module["main"]
    bindings = [binding for block in main.body.blocks for binding in block.bindings]
    blocks = {binding.var: _block(binding) for binding in bindings if get_operator_name(binding) == _STORAGE}
    made = [binding.var for binding in bindings if get_operator_name(binding) == RESULT]
    kept = [_rewritten(binding, blocks) for binding in bindings if get_operator_name(binding) not in _DROPPED]
    parameters = [*main.params, *blocks.values(), *made]
    body = relax.SeqExpr([relax.BindingBlock(kept)], main.body.body)
    module["main"] = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    values = {binding.var: binding.value for binding in kept}
    results = tuple(_position(field, values, parameters) for field in list_tuple_fields(main.body.body, values))
    sizes = tuple(int(block.ty.shape.values[0]) for block in blocks.values())
    return AllocationFree(module, sizes, tuple(tensor_type(variable.ty) for variable in made), results)


def _block(binding: Any) -> relax.Var:
    (extent,) = binding.value.args[0].values
    return relax.Var(binding.var.name, relax.TensorType((int(extent),), "uint8"))


def _rewritten(binding: Any, blocks: Mapping[Any, relax.Var]) -> Any:
    """Return a binding as it is to be: an allocation within a storage becomes a view of its block.

    TVM's code takes no view that begins behind its memory, so the blocks cannot be one; the planner puts all at their beginnings.
    """
    call = binding.value
    if not isinstance(call, Call) or isinstance(call.op, GlobalVar):
        return binding
    if call.op != _WITHIN or int(call.args[1]):
        raise CompileRefused(f"TVM computes a part of it by {_called(call)}, which is no kernel of the device")
    storage, offset, shape, dtype, _ = call.args
    return relax.VarBinding(binding.var, Call(_VIEW, [blocks[storage], shape, dtype, offset], ty_args=[binding.var.ty]))


def _called(call: Call) -> str:
    if isinstance(call.op, relax.ExternFunc):
        return str(call.op.global_symbol)
    first = call.args[0] if call.args else None
    return str(first.global_symbol) if isinstance(first, relax.ExternFunc) else str(getattr(call.op, "name", call.op))


def _position(result: Any, values: Mapping[Any, Any], parameters: Sequence[Any]) -> int:
    origin = find_result_origin(result, values)
    for position, parameter in enumerate(parameters):
        if parameter.same_as(origin):
            return position
    raise CompileRefused("a result of it lies in memory that is not the caller's")
