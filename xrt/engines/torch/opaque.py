"""Kernels of opaque nodes (domain ``aten``): calls of PyTorch operators that have no ONNX form."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.errors import CompileRefused
from xrt.graph import TensorType, Type, may_equal
from xrt.graph.node import OpaqueCall, Tagged

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Run
    from xrt.engines.torch.kernels import TorchKernelContext
    from xrt.engines.torch.namespace import Tensor

_OPERATOR_NAME = re.compile(r"(\w+)::(\w+)\.(\w+)", re.ASCII)
_BUILTIN_NAMESPACES = frozenset({"aten", "prims"})
"""Namespaces of PyTorch's own operators that models may call."""
_INTERNAL_NAMESPACES = frozenset({"debugprims", "device_mesh", "pippy", "testlib"})
"""Namespaces in which PyTorch itself registers operators with `torch.library.define`. Models may not call these."""
_RESULT_TYPES = frozenset({"Tensor", "int", "float", "bool", "complex", "number"})
_CONTAINER_TYPE = re.compile(r"(?:List|Optional)\[(.*)\]")
_ATTRIBUTE_TYPES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_TORCH_FOLDER = Path(torch.__file__).parent


def make_opaque_kernel(ctx: TorchKernelContext) -> Run:
    """Make the kernel of a node that calls an operator of PyTorch.

    Raises ModelError if the attributes do not describe a call, and CompileRefused if the operator is not registered, or if a
    model may not call it.
    """
    call = OpaqueCall.read(ctx.node)
    operator = _find_operator(call.operator)
    updates_inputs = any(argument.name.startswith("running_") for argument in operator._schema.arguments)
    declared_types = [ctx.function.get_type(name) if ctx.wants(k) else None for k, name in enumerate(ctx.node.outputs)]

    def run(*inputs: Any) -> tuple[Any, ...]:
        if updates_inputs:  # batch norm in training mode writes to its statistics, although its schema does not say so
            inputs = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
        args, kwargs = call.resolve(lambda tagged: _resolve_argument(tagged, inputs))
        results = operator(*args, **kwargs)
        tensors = tuple(map(_to_tensor, results if isinstance(results, tuple | list) else (results,)))
        for k, type_ in enumerate(declared_types):
            _check_result(call.operator, k, tensors[k] if k < len(tensors) else None, type_)
        return tensors

    return run


def _find_operator(name: str) -> Any:
    """Find the operator called ``namespace::operator.overload``; raises CompileRefused if a model may not call it.

    For security, no part of the name is looked up as an attribute before the dispatcher confirms that the operator exists.
    """
    match = _OPERATOR_NAME.fullmatch(name)
    if match is None:
        raise CompileRefused(f"{name!r} is not the name of an operator of PyTorch, which is namespace::operator.overload")
    namespace, operator, overload = match.groups()
    qualified = f"{namespace}::{operator}"
    overloads = {schema.overload_name or "default" for schema in torch._C._jit_get_schemas_for_operator(qualified)}
    if overload not in overloads:
        raise CompileRefused(
            f"this process has no operator {name} of PyTorch; import the library that registers it before the model is compiled"
        )
    if namespace not in _BUILTIN_NAMESPACES and not _is_registered_by_program(qualified):
        raise CompileRefused(
            f"a model may not call the operator {name}, only operators of aten and prims, "
            "and those that this process registers by torch.library"
        )
    packet = getattr(getattr(torch.ops, namespace), operator, None)
    function = getattr(packet, overload, None)
    if not isinstance(function, torch._ops.OpOverload):
        raise CompileRefused(f"a model may not call the operator {name}, because it exists only in TorchScript")
    if reason := _why_not_callable(function._schema):
        raise CompileRefused(f"a model may not call the operator {name}: {reason}")
    return function


def _is_registered_by_program(qualified: str) -> bool:
    """Whether the user's program registered the operator by torch.library, rather than PyTorch or a compiled library."""
    if qualified not in torch.library._defs:
        return False
    if defined := OPDEFS.get(qualified):
        return str(defined._init_fn.__module__).partition(".")[0] != "torch"
    registration = re.search(r"^debug: registered at (.*):\d+$", torch._C._dispatch_dump(qualified), re.MULTILINE)
    if registration is None:
        return False
    file = Path(registration[1])
    if file == _TORCH_FOLDER / "library.py":  # registered by `torch.library.define`, which PyTorch itself calls, too
        return qualified.partition("::")[0] not in _INTERNAL_NAMESPACES
    return not file.is_relative_to(_TORCH_FOLDER)


def _why_not_callable(schema: Any) -> str | None:
    """Explain why a model may not call an operator of this schema; None if it may."""
    if schema.is_mutable:
        return "it modifies its arguments"
    arguments = [(argument.name, _find_element_type(argument.type)) for argument in schema.arguments]
    if any(kind == "str" and ("file" in name or "path" in name) for name, kind in arguments):
        return "it has a file name as argument"
    # PyTorch's operators that create a tensor from numbers are allowed, but not ``empty``, which exposes uninitialized memory.
    is_factory = schema.name.partition("::")[0] in _BUILTIN_NAMESPACES and "empty" not in schema.name
    if all(kind != "Tensor" for _, kind in arguments) and not is_factory:
        return "it has no tensor as argument"
    if not schema.returns or any(_find_element_type(result.type) not in _RESULT_TYPES for result in schema.returns):
        return "it returns something other than tensors and numbers"
    return None


def _find_element_type(type_: Any) -> str:
    """Strip lists and optionals from a schema type: ``"Tensor"`` for ``List[Optional[Tensor]]``."""
    name = str(type_)
    while match := _CONTAINER_TYPE.fullmatch(name):
        name = match[1]
    return name


def _resolve_argument(tagged: Tagged, inputs: tuple[Any, ...]) -> Any:
    """Convert an argument from its form in the node's attributes: the index of an input, a device, or a constant of torch."""
    if tagged.kind == "tensor":
        value = inputs[tagged.value]
        # oneDNN's operators return other results for other memory orders.
        return value.contiguous() if isinstance(value, torch.Tensor) else value
    if tagged.kind == "number":
        return inputs[tagged.value].item()
    if tagged.kind == "device":
        return torch.device(tagged.value)
    value = vars(torch).get(tagged.value)
    if not isinstance(value, _ATTRIBUTE_TYPES[tagged.kind]):
        raise ValueError(f"{tagged.value!r} is not a {tagged.kind} of PyTorch")
    return value


def _to_tensor(result: Any) -> Tensor:
    """Convert a result, such as a Python number, to a tensor. Lazy conjugation and negation are computed; None stays None."""
    if isinstance(result, torch.Tensor):
        return result.resolve_conj().resolve_neg()
    if result is None:
        return None
    return torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)


def _check_result(operator: str, index: int, result: Tensor, declared: Type | None) -> None:
    """Raise ValueError if a result is not a dense CPU tensor of the declared element type and shape."""
    if not isinstance(declared, TensorType):
        return
    shape = None if result is None else tuple(result.shape)
    if result is None:
        description = "missing"
    elif result.dtype != get_torch_dtype(declared.dtype) or not may_equal(TensorType(declared.dtype, shape), declared):
        description = f"{str(result.dtype).removeprefix('torch.')}[{','.join(map(str, result.shape))}]"
    elif result.layout is not torch.strided or result.device.type != "cpu":
        description = f"a tensor on {result.device} with layout {result.layout}"
    else:
        return
    raise ValueError(f"result {index} of {operator} is {description}, and the model declares {declared}")
