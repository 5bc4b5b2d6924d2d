"""Decompose operators that OpenVINO lacks: by ONNX's definitions, by `learned_models`, or by the rules below."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Self

import numpy as np

from xrt import passes
from xrt.engines.openvino.tables import may_cut_off_more_than_there_is
from xrt.engines.toolkit import node_writer
from xrt.engines.toolkit.learned_models import ML, find_learned_definition
from xrt.engines.toolkit.node_writer import NodeWriter, as_function, rename_part
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import ModelError
from xrt.formats.onnx import expand
from xrt.graph import DType, Function, Node, TensorType

__all__ = ["decompose", "find_decomposition"]

REMEMBERED = 1024
"""Cached decompositions; equal nodes share one."""


def find_decomposition(node: Node, function: Function) -> Function | None:
    """Decompose the node into other operators and fold constants; None if no decomposition is known."""
    if node.bodies or node.control:
        return None
    if node.op_type == "Pad" and not may_cut_off_more_than_there_is(node, function):
        return None  # its decomposition contains a Pad itself
    return find_learned_definition(node, function) if node.domain == ML else _decompose(as_function(node, function))


def decompose(function: Function, is_lowered: Callable[[Node, Function], bool]) -> Function:
    """Replace each node that `is_lowered` selects by its decomposition, recursively."""
    return node_writer.rewrite_nodes(function, lambda node, at: find_decomposition(node, at) if is_lowered(node, at) else None)


@lru_cache(maxsize=REMEMBERED)
def _decompose(one: Function) -> Function | None:
    try:
        (node,) = one.nodes
        own = None if node.domain else _DECOMPOSITIONS.get(node.op_type)
        lowered = (own and own(OpenVinoWriter.of(one))) or expand(one)
        if lowered is None or lowered.opset() != one.opset():
            return None
        # OpenVINO's support depends on constant shapes and axes, so compute them now.
        folded = passes.fold_constants(passes.infer_shapes(lowered), evaluate)
    except ModelError:
        return None
    return _with_constants_passed_on(passes.drop_dead_nodes(passes.infer_shapes(folded)))


def _with_constants_passed_on(lowered: Function) -> Function:
    """Add an Identity for each result that was folded to a constant, so that its type is checked as a node's."""
    computed = [value.name for value in lowered.outputs if value.name in lowered.constants]
    if not computed:
        return lowered
    names = {name: f"{name}/constant" for name in computed}
    nodes = tuple(rename_part(node, lambda name: names.get(name, name)) for node in lowered.nodes)
    passed = (Node("Identity", (constant,), (name,)) for name, constant in names.items())
    constants = {names.get(name, name): constant for name, constant in lowered.constants.items()}
    return lowered.replace(nodes=(*nodes, *passed), constants=constants)


class OpenVinoWriter(NodeWriter):
    """Writes the decomposition of the only node of a Function."""

    __slots__ = ()

    @classmethod
    def of(cls, alone: Function) -> Self:
        (node,) = alone.nodes
        return cls(node, alone, [], dict(alone.constants))

    def literal(self, value: object, dtype: type[np.generic] = np.int32) -> str:
        """Add a constant and return its name."""
        return self.constant(np.array(value, dtype))

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.node.inputs

    def get_input(self, index: int) -> str:
        """The name of an input; empty if absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def get_input_type(self, index: int) -> TensorType | None:
        """The type of an input; None if absent or not a tensor."""
        type_ = self.function.get_type(self.get_input(index)) if self.get_input(index) else None
        return type_ if isinstance(type_, TensorType) else None

    def results(self, *names: str) -> Function:
        """The decomposition, with these values as the results of the node."""
        ends = [Node("Identity", (name,), (end,)) for name, end in zip(names, self.node.outputs, strict=False) if end]
        return self.whole(*ends)

    def whole(self, *nodes: Node) -> Function:
        """The decomposition, with these nodes that define the results of the node."""
        written = [replace(node, name="") for node in self.nodes]
        return self.function.replace(nodes=(*written, *nodes), constants=self.constants, types={})


def decompose_pad(writer: OpenVinoWriter) -> Function | None:
    """Split a Pad into a non-negative Pad and a Slice; None for an unknown rank or a mode that reads the cropped elements."""
    x, pads = writer.get_input_type(0), writer.get_input_type(1)
    count = pads.shape[0] if pads is not None and pads.shape else None
    is_constant = writer.node.attr("mode", "constant") in ("constant", b"constant")
    if x is None or x.shape is None or not isinstance(count, int) or not is_constant:
        return None
    zero = writer.literal(0, np.int64)
    # Positive pads add elements, negative ones remove them.
    more, cut = (writer.op(kind, writer.inputs[1], zero) for kind in ("Max", "Min"))
    padded = writer.op("Pad", writer.inputs[0], more, *writer.inputs[2:], attributes=writer.node.attributes)
    axes = writer.get_input(3) or writer.literal(range(len(x.shape)), np.int64)
    first, middle, last = (writer.literal([place], np.int64) for place in (0, count // 2, count))
    begins = writer.op("Neg", writer.op("Slice", cut, first, middle))
    sizes = writer.op("Gather", writer.op("Shape", padded), axes)
    ends = writer.op("Max", writer.op("Add", sizes, writer.op("Slice", cut, middle, last)), zero)
    return writer.results(writer.op("Slice", padded, begins, ends, axes))


def decompose_tensor_scatter(writer: OpenVinoWriter) -> Function | None:
    """Write the cache update as ScatterElements; None for dynamic shapes or circular mode."""
    cache, update = writer.get_input_type(0), writer.get_input_type(1)
    if cache is None or update is None or not (cache.is_static and update.is_static) or not cache.shape or not update.shape:
        return None
    if writer.node.attr("mode", "linear") not in ("linear", b"linear"):
        return None
    rank, along = len(update.shape), writer.node.attr("axis", -2) % len(update.shape)
    steps = np.arange(update.shape[along], dtype=np.int32).reshape([-1 if axis == along else 1 for axis in range(rank)])
    places = writer.literal(np.broadcast_to(steps, update.shape))  # type: ignore[arg-type]  # checked above
    # write_indices holds the first position of each batch entry.
    if writer.get_input(2):
        starts = writer.op(
            "Reshape", writer.cast(writer.get_input(2), DType.INT32), writer.literal([-1] + [1] * (rank - 1), np.int64)
        )
        places = writer.op("Add", starts, places)
    return writer.results(writer.op("ScatterElements", writer.get_input(0), places, writer.get_input(1), axis=along))


_DECOMPOSITIONS: Mapping[str, Callable[[OpenVinoWriter], Function | None]] = {
    "Pad": decompose_pad,
    "TensorScatter": decompose_tensor_scatter,
}
