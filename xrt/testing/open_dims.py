"""One executable for all sizes: a case whose inputs get symbolic dims in place of sizes, run at its own sizes and at others.

The reference engine, on the Function with the sizes as numbers, says which other sizes are possible and what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from xrt import passes
from xrt.comparison import Comparison, Tolerance, compare_all
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.engines.toolkit.node_query import ELEMENTWISE, EVERY, why_not_at_every_size
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import CompileRefused, ModelError, RunFailed
from xrt.formats.onnx import expand
from xrt.graph import Function, Node, TensorType, Value
from xrt.placement.sizes import read_sizes, resize_values
from xrt.runtime import available_cores
from xrt.testing.running import overlook_deviations
from xrt.verify.comparison import find_output_tolerance
from xrt.verify.execution import copy_values, run_alone

if TYPE_CHECKING:
    from xrt.engines import Executable, GraphCompiler


Opening: TypeAlias = Literal["every", "equal", "first"]
"""Which extents of the inputs become symbolic dims: each one of its own, all but those of 1 with one dim for equal sizes, or the
first extent of each input, with one dim for equal sizes."""
OPENINGS: tuple[Opening, ...] = ("every", "equal", "first")


@dataclass(frozen=True)
class SizedInputs:
    """Inputs of one set of sizes, and what must come out."""

    function: Function
    """The Function of those sizes."""

    values: list[Any]
    expected: list[Any]

    tolerances: list[Tolerance]
    """For each result, the tolerance of a network in the narrowest float that it was computed through."""

    may_be_refused: bool
    """Whether a run may refuse such sizes: the reference takes some that ONNX does not allow, such as parts of a Split that are
    fewer elements than there are."""

    def compare(self, executable: Executable, engine: GraphCompiler) -> Comparison:
        """Run an executable of the engine, and compare the results; a failure says at which sizes."""
        try:
            results = executable.run([copy_values(value) for value in self.values])
        except RunFailed as error:
            found = Comparison("" if self.may_be_refused else f"RunFailed: {error}")
        else:
            if not (found := self._compare(results)):
                found = self._compare(overlook_deviations(results, self.function, self.values, self.expected, [engine]))
        shapes = ", ".join(str(list(value.shape)) for value in self.values if isinstance(value, np.ndarray))
        return found if found else Comparison(f"at {shapes}: {found.message}")

    def _compare(self, results: Sequence[Any]) -> Comparison:
        if len(results) != len(self.expected):
            return compare_all(results, self.expected)
        triples = zip(results, self.expected, self.tolerances, strict=True)
        parts = (compare_all([mine], [theirs], tolerance) for mine, theirs, tolerance in triples)
        return next((part for part in parts if not part), Comparison())


def open_dims(function: Function, inputs: Sequence[Any], opening: Opening) -> Function:
    """Return the Function with symbolic dims in place of extents of its inputs, all other types inferred again.

    Raises CompileRefused where no input has an extent.
    """
    if any(isinstance(array, np.ndarray) and not array.size for array in inputs):
        raise CompileRefused("an input has no elements, which an executable for all sizes may refuse when it runs")
    if any(_has_extents(body) for node in function.nodes for body in node.bodies):
        raise CompileRefused("a body declares the extents of its values")
    computes = any(node.op not in ELEMENTWISE for node in function.nodes)  # then integers along one axis may be a shape, or axes
    opened = tuple(
        value if computes and _may_be_a_shape(array) else _open(value, array, opening)
        for value, array in zip(function.inputs, inputs, strict=True)
    )
    if opened == function.inputs:
        raise CompileRefused("no input has an extent that can be a symbolic dim")
    return passes.infer_shapes(
        function.replace(
            inputs=opened,
            outputs=tuple(Value(v.name) if isinstance(v.type, TensorType) else v for v in function.outputs),
            types={name: type_ for name, type_ in function.types.items() if not isinstance(type_, TensorType)},
            aliases=(),
        )
    )


def _may_be_a_shape(array: Any) -> bool:
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype in (np.int32, np.int64)


def _open(value: Value, array: Any, opening: Opening) -> Value:
    if not isinstance(array, np.ndarray) or not isinstance(value.type, TensorType) or not value.type.shape:
        return value
    dims = list(value.type.shape)
    for axis, size in enumerate(array.shape):
        if opening == "every":
            dims[axis] = f"{value.name}_{axis}"
        elif (axis == 0 and opening == "first") or (size != 1 and opening == "equal"):
            dims[axis] = f"n{size}"
    return Value(value.name, value.type.with_shape(tuple(dims)))


def _has_extents(body: Function) -> bool:
    types = [*(value.type for value in (*body.inputs, *body.outputs)), *body.types.values()]
    return any(isinstance(type_, TensorType) and type_.shape for type_ in types)


def compile_for_all_sizes(engine: GraphCompiler, function: Function) -> Executable:
    """Return one prepared executable for a Function with symbolic dims; raises CompileRefused where the engine declines."""
    ready = passes.inline_constant_control_flow(function)
    if not engine.supports_dynamic_shapes:
        raise CompileRefused(f"engine {engine.spec!r} compiles for fixed sizes")
    for node in ready.nodes:
        if (reason := engine.why_not(node, ready)) is not None:
            raise CompileRefused(f"{node.op}: {reason}")
    executable = engine.compile(ready, CompileContext(threads=available_cores()))
    executable.prepare()
    return executable


UNJUDGED = frozenset({"AffineGrid", "Attention", "DynamicQuantizeLinear", "MeanVarianceNormalization"})
"""Operators for which the reference takes sizes that do not fit together, or a size of 1 leaves nothing to compute by."""

_CHANGES: tuple[Callable[[int], int], ...] = (lambda size: 2 * size, lambda size: 1)
"""Sizes to try in place of a size."""


def list_other_sizes(function: Function, inputs: Sequence[Any]) -> list[SizedInputs]:
    """Return inputs of larger sizes and of size 1, as far as the reference engine takes some such.

    All symbolic dims change, or else those of equal size, or else the first one.
    """
    if any(node.op in UNJUDGED for node in function.nodes):
        return []
    sizes = read_sizes(function.inputs, inputs)
    names = list(sizes)
    equal = [name for name in names if sizes[name] == sizes[names[0]]]
    found = []
    for change in _CHANGES:
        for chosen in dict.fromkeys((tuple(names), tuple(equal), tuple(names[:1]))):
            other = {**sizes, **{name: change(sizes[name]) for name in chosen}}
            if other != sizes and (sized := _compute(function, resize_values(function.inputs, inputs, other))) is not None:
                found.append(sized)
                break
    return found


def _compute(function: Function, values: list[Any]) -> SizedInputs | None:
    """Return the values with what the reference makes of them; None where it cannot."""
    shapes = {v.name: x.shape for v, x in zip(function.inputs, values, strict=True) if isinstance(x, np.ndarray)}
    try:
        fixed = passes.specialize(function, shapes)
        if any(_contradicts(node, fixed) for node in fixed.nodes):
            return None
        expected = run_alone(registry.create(REFERENCE), fixed, [copy_values(value) for value in values])
    except Exception:  # noqa: BLE001  # whatever it raises: there are no such sizes
        return None
    may_be_refused = any(why_not_at_every_size(node, function, EVERY) for node in function.nodes)
    tolerances = _find_tolerances(fixed, expected)
    return SizedInputs(fixed, values, expected, tolerances, may_be_refused)


def _find_tolerances(function: Function, results: Sequence[Any]) -> list[Tolerance]:
    """Return the tolerance of each result; the definition of a node may cast to a narrower float, as FlexAttention's does."""
    try:
        computed = (expand(function) if len(function.nodes) == 1 else None) or function
    except ModelError:  # onnx cannot inline a definition of which an optional input is left out
        computed = function
    return [find_output_tolerance(computed, value.name, result) for value, result in zip(computed.outputs, results, strict=True)]


def _contradicts(node: Node, function: Function) -> bool:
    """Whether weights of a window or of a normalization have other shapes than the node says, which the reference broadcasts."""
    shapes = [type_.shape if isinstance(type_ := function.get_type(name), TensorType) else None for name in node.inputs if name]
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return False
    if (kernel := node.attr("kernel_shape")) is not None and node.op_type not in ("MaxUnpool", "QLinearConv"):
        return tuple(kernel) != shapes[1][2:]
    if node.op_type not in ("BatchNormalization", "GroupNormalization", "InstanceNormalization"):
        return False
    allowed = {shapes[0][1]} if node.op_type != "GroupNormalization" else {shapes[0][1], node.attr("num_groups")}
    return any(shape is None or len(shape) != 1 or shape[0] not in allowed for shape in shapes[1:])


def compare_at_sizes(
    engine: GraphCompiler,
    function: Function,
    inputs: Sequence[Any],
    judge: Callable[[Sequence[Any]], Comparison],
    opening: Opening,
) -> Iterator[Comparison]:
    """Yield what comes of one executable at the sizes of the inputs, by ``judge``, and at others, by the reference engine.

    Raises CompileRefused where the engine declines.
    """
    opened = open_dims(function, inputs, opening)
    executable = compile_for_all_sizes(engine, opened)
    try:
        yield judge(executable.run([copy_values(value) for value in inputs]))
        for sized in list_other_sizes(opened, inputs):
            yield sized.compare(executable, engine)
    finally:
        executable.close()
