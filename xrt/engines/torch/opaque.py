"""Opaque nodes of the domain ``aten``: operators of PyTorch without an ONNX form, computed by calling the operator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch._library.custom_ops import OPDEFS

from xrt.engines.torch.dtypes import get_torch_dtype
from xrt.errors import CompileRefused
from xrt.graph import Shape, TensorType, Type
from xrt.graph.node import OpaqueCall, Tagged

if TYPE_CHECKING:
    from xrt.engines.kernels.table import Run
    from xrt.engines.torch.kernels import TorchKernelContext
    from xrt.engines.torch.namespace import Tensor


_NAME = re.compile(r"(\w+)::(\w+)\.(\w+)", re.ASCII)
_NAMESPACES = frozenset({"aten", "prims"})
_DEFINED = frozenset({"debugprims", "device_mesh", "pippy", "testlib"})
"""Namespaces in which PyTorch itself uses `torch.library.define`."""
_RESULTS = frozenset({"Tensor", "int", "float", "bool", "complex", "number"})
_CONTAINER = re.compile(r"(?:List|Optional)\[(.*)\]")
_KINDS = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}
_LIBRARY = Path(torch.__file__).parent


def make_opaque_kernel(at: TorchKernelContext) -> Run:
    """The kernel of a node that calls an operator of PyTorch.

    Raises ModelError if its attributes describe no call, CompileRefused if the operator is not registered or a model may not
    call it.
    """
    call = OpaqueCall.read(at.node)
    operator = _find_operator(call.operator)
    updates = any(argument.name.startswith("running_") for argument in operator._schema.arguments)
    declared = [at.function.get_type(name) if at.wants(k) else None for k, name in enumerate(at.node.outputs)]

    def run(*inputs: Any) -> tuple[Any, ...]:
        if updates:  # batch norm in training writes to its statistics, which its schema does not declare
            inputs = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in inputs)
        args, kwargs = call.resolve(lambda tagged: _resolve_argument(tagged, inputs))
        results = operator(*args, **kwargs)
        tensors = tuple(map(_to_tensor, results if isinstance(results, tuple | list) else (results,)))
        for k, type_ in enumerate(declared):
            _check_result(call.operator, k, tensors[k] if k < len(tensors) else None, type_)
        return tensors

    return run


def _find_operator(name: str) -> Any:
    """Find the overload named ``namespace::operator.overload``; raises CompileRefused if a model may not call it.

    Security: no part of the name is looked up as an attribute before the dispatcher confirms that the operator exists.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise CompileRefused(f"{name!r} is not the name of an operator of PyTorch, which is namespace::operator.overload")
    namespace, operator, overload = match.groups()
    qualified = f"{namespace}::{operator}"
    overloads = {schema.overload_name or "default" for schema in torch._C._jit_get_schemas_for_operator(qualified)}
    if overload not in overloads:
        raise CompileRefused(
            f"this process has no operator {name} of PyTorch; import the library that registers it before the model is compiled"
        )
    if namespace not in _NAMESPACES and not _is_registered_by_program(qualified):
        raise CompileRefused(
            f"{name} is an operator that no model may call: those are the operators of aten and prims, "
            "and those that this process registers by torch.library"
        )
    function = getattr(getattr(getattr(torch.ops, namespace), operator, None), overload, None)
    if not isinstance(function, torch._ops.OpOverload):
        raise CompileRefused(f"{name} is an operator of TorchScript alone, which no model may call")
    if why := _why_not(function._schema):
        raise CompileRefused(f"{name} is an operator that no model may call: {why}")
    return function


def _is_registered_by_program(qualified: str) -> bool:
    """Whether the program registered the operator by torch.library, rather than PyTorch or a compiled library."""
    if qualified not in torch.library._defs:
        return False
    if defined := OPDEFS.get(qualified):
        return str(defined._init_fn.__module__).partition(".")[0] != "torch"
    registration = re.search(r"^debug: registered at (.*):\d+$", torch._C._dispatch_dump(qualified), re.MULTILINE)
    if registration is None or Path(registration[1]) == _LIBRARY / "library.py":  # registered by `torch.library.define`
        return registration is not None and qualified.partition("::")[0] not in _DEFINED
    return not Path(registration[1]).is_relative_to(_LIBRARY)


def _why_not(schema: Any) -> str | None:
    """Explain why a model may not call an operator of this schema; None if it may."""
    if schema.is_mutable:
        return "it modifies its arguments"
    arguments = [(argument.name, _find_element_type(argument.type)) for argument in schema.arguments]
    if any(kind == "str" and ("file" in name or "path" in name) for name, kind in arguments):
        return "it takes the name of a file"
    if all(kind != "Tensor" for _, kind in arguments) and not _is_factory(schema.name):
        return "it takes no tensor"
    if not schema.returns or any(_find_element_type(result.type) not in _RESULTS for result in schema.returns):
        return "it returns something else than tensors and numbers"
    return None


def _is_factory(name: str) -> bool:
    """Whether the operator creates a tensor from numbers; ``empty`` is excluded, because it exposes old memory."""
    return name.partition("::")[0] in ("aten", "prims") and "empty" not in name


def _find_element_type(type_: Any) -> str:
    """The element type of a schema type, without lists and optionals."""
    name = str(type_)
    while match := _CONTAINER.fullmatch(name):
        name = match[1]
    return name


def _resolve_argument(tagged: Tagged, inputs: tuple[Any, ...]) -> Any:
    if tagged.kind == "tensor":
        value = inputs[tagged.value]  # oneDNN's operators depend on the memory order
        return value.contiguous() if isinstance(value, torch.Tensor) else value
    if tagged.kind == "number":
        return inputs[tagged.value].item()
    if tagged.kind == "device":
        return torch.device(tagged.value)
    value = vars(torch).get(tagged.value)
    if not isinstance(value, _KINDS[tagged.kind]):
        raise ValueError(f"{tagged.value!r} is no {tagged.kind} of PyTorch")
    return value


def _to_tensor(result: Any) -> Tensor:
    """Convert a result to a tensor, and materialize lazy conjugation and negation."""
    if isinstance(result, torch.Tensor):
        return result.resolve_conj().resolve_neg()
    return None if result is None else torch.tensor(result, dtype=torch.float64 if isinstance(result, float) else None)


def _check_result(operator: str, index: int, result: Tensor, declared: Type | None) -> None:
    """Raise ValueError unless a result is a dense CPU tensor of the declared element type and shape."""
    if not isinstance(declared, TensorType):
        return
    if result is None:
        description = "missing"
    elif result.dtype != get_torch_dtype(declared.dtype) or not _matches_shape(result.shape, declared.shape):
        description = f"{str(result.dtype).removeprefix('torch.')}[{','.join(map(str, result.shape))}]"
    elif result.layout is not torch.strided or result.device.type != "cpu":
        description = f"a tensor on {result.device} with layout {result.layout}"
    else:
        return
    raise ValueError(f"result {index} of {operator} is {description}, and the model declares {declared}")


def _matches_shape(shape: tuple[int, ...], declared: Shape | None) -> bool:
    """Whether a shape has the declared rank and static extents."""
    if declared is None:
        return True
    return len(shape) == len(declared) and all(
        extent == expected for extent, expected in zip(shape, declared, strict=True) if type(expected) is int
    )
