"""Graph, the base class for graphs written in Python, the tracing of `build`, and scopes for recorded nodes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from xrt.builder.builder import DEFAULT_OPSET, Builder
from xrt.builder.numerics import is_operand
from xrt.builder.record_op import Operand, get_builder
from xrt.builder.tensor import Tensor
from xrt.errors import ModelError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph.function import Function
from xrt.graph.schemas import Inference
from xrt.graph.types import Type


class Graph:
    """Base class of graphs written in Python, with full type inference. Subclasses implement ``build``.

    >>> from xrt import ops
    >>> from xrt.graph import DType, TensorType
    >>> class Affine(Graph):
    ...     def build(self, x):
    ...         return ops.Relu(x * 2 + 1)
    >>> print(Affine().trace(TensorType(DType.FLOAT32, ("N", 3))).outputs[0])
    relu_1: float32[N,3]

    The parameters of `build` are the inputs, by name. It returns a tensor, a tuple or list of tensors, or a dictionary from
    output names to tensors. Tensors know their shapes where ONNX can infer them.
    """

    opset: int = DEFAULT_OPSET
    """The ai.onnx version."""
    opsets: Mapping[str, int] = {}
    """Versions of other domains; the default is the newest that ``onnx`` describes."""

    def build(self, *inputs: Any, **named: Any) -> Any:
        """Compute the outputs from symbolic inputs, with `xrt.ops` and Python's operators."""
        raise ModelError(f"{type(self).__name__} has no build; write `def build(self, x): ...` that returns its outputs")

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs: the parameters of ``build`` without a default."""
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        parameters = inspect.signature(self.build).parameters.values()
        return tuple(p.name for p in parameters if p.kind in kinds and p.default is p.empty)

    def trace(self, *inputs: Any, **named: Any) -> Function:
        """Trace `build` to a Function. Inputs are types, or arrays that are used for their types."""
        versions = {**self.opsets, "": self.opset}
        builder = Builder(type(self).__name__, opsets=versions, inference=infer_node_types)
        builder.register_names(self)
        return _trace_build(builder, self.build, inputs, named)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """Record this graph as part of the one being traced; names get the class name as prefix."""
        builder = get_builder(f"{type(self).__name__}(...)")
        # A number after the lower-case class name, so that two calls of one graph have different prefixes.
        with builder.scope(builder.scope_names.take_numbered(type(self).__name__.lower())):
            builder.register_names(self)
            return self.build(*inputs, **named)

    @staticmethod
    def update(target: Tensor, value: Any) -> Tensor:
        """Store ``value`` in the buffer of an input after each call; see `Builder.update`."""
        return get_builder("update").update(target, value)

    @staticmethod
    def state(name: str, type_: Type, fill: float = 0) -> Tensor:
        """Add a value that a session stores between calls. Set the next value with `update`; ``fill`` is the initial value.

        The state becomes an input of the graph, after the parameters of `build`.
        """
        return get_builder("state").state(name, type_, fill)


def trace(
    build: Callable[..., Any],
    *inputs: Any,
    name: str = "main",
    opsets: int | Mapping[str, int] = DEFAULT_OPSET,
    inference: Inference | None = None,
) -> Function:
    """Trace a callable to a Function. Inputs are types, or arrays that are used for their types."""
    return _trace_build(Builder(name, opsets=opsets, inference=inference), build, inputs, {})


def _trace_build(builder: Builder, build: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]) -> Function:
    bound = _bind(builder.name, build, inputs, keywords)
    builder.make_inputs(bound)
    with builder:
        for name, value in _name_outputs(builder.name, build(*bound.args, **bound.kwargs)):
            if not is_operand(value):
                raise ModelError(f"build of {builder.name!r} returns {type(value).__name__} {value!r}; it must return tensors")
            builder.output(value, name)
    return builder.function()


def _bind(title: str, build: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any]) -> inspect.BoundArguments:
    """Bind the inputs to the parameters of ``build``; raises ModelError, which mentions ``title``, if they do not match."""
    try:
        signature = inspect.signature(build)
    except ValueError as error:
        raise ModelError(f"the parameters of {build!r} cannot be inspected; wrap it: `def build(x): ...`") from error
    try:
        return signature.bind(*inputs, **keywords)
    except TypeError as error:
        passed = ", ".join([f"{len(inputs)} by position", *keywords])
        raise ModelError(f"build of {title!r} takes {signature}; the inputs passed are {passed}: {error}") from error


def _name_outputs(title: str, result: Any) -> list[tuple[str | None, Any]]:
    """Pair the results of ``build`` with their names; a name is None unless ``build`` returned a dictionary."""
    if isinstance(result, Mapping):
        return list(result.items())
    if isinstance(result, tuple | list):
        return [(None, value) for value in result]
    if result is None:
        raise ModelError(f"build of {title!r} returns nothing; return the output, a tuple of them, or a dictionary by name")
    return [(None, result)]


# ---------------------------------------------------------------------- how nodes are recorded


def scope(name: str) -> AbstractContextManager[None]:
    """Prefix the names of recorded nodes with ``name/``."""
    return get_builder("scope").scope(name)


def device(name: str) -> AbstractContextManager[None]:
    """Place recorded nodes on a device: ``"cpu"``, ``"cuda:1"``."""
    return get_builder("device").device(name)


def inline(function: Function, *inputs: Operand) -> tuple[Tensor, ...]:
    """Record the nodes of a Function on other inputs and return its outputs; names get the Function's name as prefix."""
    return get_builder("inline").inline(function, *inputs)
