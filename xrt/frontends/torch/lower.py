"""The walk over a captured graph: each call becomes the nodes that its rule emits, or one opaque node."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from xrt.builder import Builder, Tensor
from xrt.builder.record_op import emit
from xrt.builder.symbol import current
from xrt.errors import InputError, ModelError
from xrt.frontends.torch.checks import CHECKS
from xrt.frontends.torch.control_flow import lower_control_flow
from xrt.frontends.torch.dtypes import from_torch_dtype, share_array
from xrt.frontends.torch.opaque import record_opaque
from xrt.frontends.torch.rules import RULES, Unsupported
from xrt.frontends.torch.symbols import Symbols
from xrt.graph import DType, TensorType
from xrt.graph.constants import Constant
from xrt.graph.type_strings import may_equal

if TYPE_CHECKING:
    from torch.fx import Graph, GraphModule
    from torch.fx import Node as Call

    from xrt.graph import Type

__all__ = ["Lowering"]

_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NUMBERS = {torch.SymInt: DType.INT64, torch.SymFloat: DType.FLOAT64, torch.SymBool: DType.BOOL}


class Lowering:
    """One captured graph on its way into a builder, which must be recording.

    ``declined`` collects, by operator, the reasons of those calls that became opaque nodes. With ``keeps_generator`` these are
    also the calls that draw from PyTorch's generator.
    """

    def __init__(self, builder: Builder, symbols: Symbols, *, keeps_generator: bool = False) -> None:
        self._keeps_generator = keeps_generator
        self.builder = builder
        self.symbols = symbols
        self.values: dict[Call, Any] = {}
        self.declined: dict[Any, str] = {}
        self._root = builder
        self._path = ""
        """The module whose bodies are being lowered."""
        self._constants: dict[object, Tensor] = {}

    # ------------------------------------------------------------------ ends of the graph

    def add_input(self, name: str, fake: Any) -> Tensor:
        """Add an input like a tensor, or like a symbolic number, of the capture."""
        if not isinstance(fake, torch.Tensor):
            tensor = self.builder.input(name, TensorType(_NUMBERS[type(fake)], ()))
            self.symbols.know_value(fake.node.expr, tensor)
            return tensor
        tensor = self.builder.input(name, self.get_type(fake))
        self.symbols.know_shape(tensor, fake.shape)
        return tensor

    def add_constant(self, name: str, tensor: torch.Tensor) -> Tensor:
        """Return the tensor as a constant that shares its memory; tensors of one memory are one constant."""
        key = (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype) if tensor.numel() else name
        if key not in self._constants:
            free = self._root.names.plain(name)
            constant = Constant(share_array(tensor))
            self._root.constants[free] = constant
            self._constants[key] = Tensor(self._root, free, constant.type)
        return self._constants[key]

    def get_type(self, fake: torch.Tensor) -> TensorType:
        """Return the type of a tensor of the capture; raises ModelError for one that is not dense."""
        if fake.layout is not torch.strided:
            raise ModelError(f"the module computes with a tensor of layout {fake.layout}; only dense tensors are lowered")
        return TensorType(from_torch_dtype(fake.dtype), self.symbols.name_shape(fake.shape))

    def get_number(self, value: Any) -> Any:
        """Return a number, or what gives it, as a 0-d tensor for an output."""
        known = self.symbols.number(value) if isinstance(value, _SYMBOLIC) else value
        return known.scalar if not isinstance(known, bool | int | float) else known

    # ------------------------------------------------------------------ the walk

    def run(self, graph: Graph, owner: GraphModule) -> Any:
        """Lower every call of a graph whose placeholders have values, and return the values of its outputs."""
        for call in graph.nodes:
            if call.op == "output":
                return self.argument(call.args[0])
            if call.op == "get_attr":
                self.values[call] = self._attribute(call, owner)
            elif call.op == "call_function":
                self.values[call] = self._call(call)
            elif call.op != "placeholder":
                raise ModelError(f"the captured graph has a {call.op} of {call.target}; only calls of operators are lowered")
        return None

    def argument(self, value: Any) -> Any:
        """Return an argument of a call with the values of the calls that it names."""
        if isinstance(value, torch.fx.Node):
            return self.values[value]
        if isinstance(value, list | tuple):
            return [self.argument(item) for item in value]
        if isinstance(value, dict):
            return {key: self.argument(item) for key, item in value.items()}
        return self.symbols.number(value) if isinstance(value, _SYMBOLIC) else value

    def _attribute(self, call: Call, owner: GraphModule) -> Any:
        found: Any = owner
        for part in str(call.target).split("."):
            found = getattr(found, part)
        return self.add_constant(str(call.target), found) if isinstance(found, torch.Tensor) else found

    def _call(self, call: Call) -> Any:
        fake = call.meta.get("val")
        name = str(call.target)
        if isinstance(fake, _SYMBOLIC):
            return self._number(call, fake, name)
        if name in CHECKS:
            return None
        args, kwargs = self.argument(call.args), self.argument(call.kwargs)
        path = _find_path(call) or self._find_owner(args)
        with self.builder.scope(path) if path else nullcontext():
            if isinstance(call.target, torch._ops.OpOverload):
                return self._lowered(call, name, args, kwargs, fake)
            return self._other(call, args, path, fake)

    def _number(self, call: Call, fake: Any, name: str) -> Any:
        """Return a number; one that is read from a tensor is known from now on."""
        if name in ("aten.item.default", "aten._local_scalar_dense.default") and not fake.node.expr.is_number:
            scalar = emit("Reshape", self.argument(call.args[0]), _NO_AXES)
            wanted = _NUMBERS[type(fake)]
            self.symbols.know_value(fake.node.expr, scalar if scalar.dtype is wanted else emit("Cast", scalar, to=wanted))
        return self.symbols.number(fake)

    def _find_owner(self, args: Any) -> str:
        """Return the module that a call in a body was made in, as its parameters tell: PyTorch does not say it there."""
        for one in args if self.builder is not self._root else ():
            if isinstance(one, Tensor) and one.name in self._root.constants and one.name.startswith(self._path):
                return one.name[len(self._path) :].strip(".").rpartition(".")[0]
        return ""

    def _other(self, call: Call, args: Any, path: str, fake: Any) -> Any:
        """Return the result of what is no operator of PyTorch's: Python's own, or one that calls a part of the graph."""
        name = getattr(call.target, "__name__", str(call.target))
        if isinstance(call.target, torch._ops.OperatorBase):
            before, self._path = self._path, f"{self._path}.{path}".strip(".")
            results = lower_control_flow(self, name, args, fake)
            self._path = before
            return results
        if name in _PYTHON:
            return call.target(*args)
        if isinstance(fake, torch.Tensor):
            raise ModelError(f"the module uses {name}, which is no operator of PyTorch; run it without XRT")
        return fake

    # ------------------------------------------------------------------ graphs inside the graph

    def inline(self, part: GraphModule, args: Sequence[Any]) -> Any:
        """Return the results of a graph on values, its calls recorded here."""
        placeholders = [call for call in part.graph.nodes if call.op == "placeholder"]
        for call, value in zip(placeholders, args, strict=True):
            self.values[call] = self.take_result(value, call.meta.get("val")) if isinstance(value, Tensor) else value
        return self.run(part.graph, part)

    @contextmanager
    def enter(self) -> Iterator[None]:
        """Record in the body that is being traced."""
        before, self.builder = self.builder, current("a body")
        try:
            with self.symbols.enter():
                yield
        finally:
            self.builder = before

    def read_constants(self, *parts: GraphModule) -> None:
        """Make the tensors of graphs constants of the whole, so that a body that is traced twice finds them."""
        for part in parts:
            for call in part.graph.nodes:
                if call.op == "get_attr":
                    self._attribute(call, part)

    def take_result(self, value: Any, fake: Any) -> Any:
        """Return the value that a tensor or a symbolic number of the capture is, with what it tells about sizes."""
        if isinstance(fake, _SYMBOLIC):
            if isinstance(value, Tensor) and not fake.node.expr.is_number:
                self.symbols.know_value(fake.node.expr, value)
            return self.symbols.number(fake)
        if isinstance(fake, torch.Tensor) and value is not None:
            self.symbols.know_shape(value, fake.shape)
        return value

    # ------------------------------------------------------------------ one operator

    def _lowered(self, call: Call, name: str, args: Any, kwargs: Any, fake: Any) -> Any:
        rule = RULES.get(name)
        _check_memory(call)
        if name in _ONE_TYPE:
            self._check_one_type(name, args)
        try:
            if rule is None:
                raise Unsupported("the operator has no ONNX form here")
            if self._keeps_generator and name in _DRAWING:
                raise Unsupported("the operator draws from PyTorch's generator")
            _check_types(fake, call)
            result = self._typed(rule(self._get_types(call, fake), *args, **kwargs), fake)
        except (Unsupported, ModelError) as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001  # a call that a rule does not know of makes no model fail
            reason = f"its rule fails for these arguments ({type(error).__name__}: {error})"
        else:
            return result
        self.declined.setdefault(call.target, reason)
        return self._opaque(call, args, kwargs, fake, reason)

    def _check_one_type(self, name: str, args: Any) -> None:
        """Raise InputError for operands of two types, which PyTorch itself refuses when it runs, naming the input."""
        operands = [one for one in args if isinstance(one, Tensor)]
        other = next((one for one in operands if one.dtype is not operands[-1].dtype), None)
        if other is None:
            return
        known = next((one for one in self._root.inputs if one.type and one.dtype is other.dtype), other)
        second = next(one for one in operands if one.dtype is not other.dtype)
        raise InputError(
            f"input {known.name!r} is {other.dtype}, and {second.name!r} is {second.dtype}: {name.split('.')[1]} of "
            f"PyTorch takes one element type; convert the input, or the module"
        )

    def _opaque(self, call: Call, args: Any, kwargs: Any, fake: Any, reason: str) -> Any:
        schema = call.target._schema
        if schema.is_mutable:
            raise ModelError(f"operator {schema.name} writes to its inputs and could not be made functional: {reason}")
        overload = call.target._overloadname or "default"
        several = isinstance(fake, list | tuple)
        found = self._get_types(call, fake)
        types: list[Type | None] = list(found) if several else [found]
        results = record_opaque(f"{schema.name}.{overload}", args, kwargs, types, reason)
        for tensor, one in zip(results, fake if several else [fake], strict=True):
            if tensor is not None:
                self.symbols.know_shape(tensor, one.shape)
        return list(results) if several else results[0]

    def _get_types(self, call: Call, fake: Any) -> Any:
        """Return the type of the result, None where there is none; of several a tuple, with None also for what nothing reads."""
        if not isinstance(fake, list | tuple):
            return self.get_type(fake) if isinstance(fake, torch.Tensor) else None
        picked = all(getattr(user.target, "__name__", "") == "getitem" for user in call.users)
        read = {user.args[1] for user in call.users if user.users} if picked else set(range(len(fake)))
        return tuple(
            self.get_type(one) if isinstance(one, torch.Tensor) and index in read else None for index, one in enumerate(fake)
        )

    def _typed(self, result: Any, fake: Any) -> Any:
        """Return the result of a rule with the types that the capture knows."""
        if isinstance(fake, list | tuple):
            return [self._typed(one, known) for one, known in zip(result, fake, strict=True)]
        if not isinstance(fake, torch.Tensor) or result is None:
            return result
        wanted = self.get_type(fake)
        if result.dtype is not wanted.dtype:
            result = emit("Cast", result, to=wanted.dtype)
        known = result.tensor_type.shape
        if known is not None and not may_equal(TensorType(wanted.dtype, known), wanted):
            raise Unsupported(f"its rule gives {TensorType(wanted.dtype, known)}, and PyTorch {wanted}")
        if (known is None or None in known) and self.builder.find_constant(result) is None:
            result.type = self.builder.types[result.name] = wanted
        self.symbols.know_shape(result, fake.shape)
        return result


_ONE_TYPE = frozenset(
    f"aten.{name}.default"
    for name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv1d", "conv2d", "conv3d", "convolution")
)
"""Operators that `torch.export` captures with operands of two types and that then fail."""
_DRAWING = frozenset({"aten.native_dropout.default", "aten.bernoulli.p"})
"""Operators with a rule that draw random numbers."""
_NO_AXES = np.zeros(0, np.int64)
_PYTHON = frozenset({"getitem"})
"""Python's own functions that work on the results of operators; the others work on numbers, which are known."""


def _check_types(fake: Any, call: Call) -> None:
    """Raise Unsupported where a tensor that the call reads or gives is complex."""
    read = [node.meta.get("val") for node in call.all_input_nodes]
    for one in [*read, *(fake if isinstance(fake, list | tuple) else [fake])]:
        if isinstance(one, torch.Tensor) and one.dtype.is_complex:
            raise Unsupported("operators of ONNX take no complex numbers")


_STRIDED = "aten.as_strided.default"
_BY_MEMORY = frozenset({"aten._linalg_det.default", "aten._linalg_slogdet.default"})


def _check_memory(call: Call) -> None:
    """Raise ModelError for an operator whose result depends on where PyTorch has its input in memory: an engine's are contiguous.

    One of determinants keeps the factors of a matrix or of its transpose, and the backward graph is traced for one of these.
    """
    if (target := str(call.target)) != _STRIDED and target not in _BY_MEMORY:
        return
    read = call.all_input_nodes[0].meta["val"]
    if target == _STRIDED and not (read.is_contiguous() and read.storage_offset() == 0):
        raise ModelError(f"{call.target} reads the memory around a tensor that is not contiguous")
    if target in _BY_MEMORY and len(call.users) > 1 and not read.is_contiguous():
        raise ModelError(f"what {call.target} keeps for its gradient depends on the order of its input in memory")


_PATH = re.compile(r"^[LG]\[['\"]\w+['\"]\]\.?|_modules\[['\"]?|['\"]\]|^L__self___?|\['|\(.*")


def _find_path(call: Call) -> str:
    """Return the module that a call was made in, by its name in the whole: ``encoder.layer.3.output``.

    Dynamo puts the variable of Python that the whole is in before it.
    """
    stack: Iterable[Any] = (call.meta.get("nn_module_stack") or {}).values()
    path = ""
    for entry in stack:
        path = entry[0]
    return "" if path.startswith("_empty") else _PATH.sub("", path).strip(".")
