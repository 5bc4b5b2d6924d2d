"""Test executables with symbolic dims: make the dims of a case's inputs symbolic, and run it at the original and at other sizes.

The reference engine, run with concrete sizes, decides which other sizes are possible and computes the expected results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from xrt import passes
from xrt.comparison import Comparison
from xrt.engines import CompileContext
from xrt.engines.contract import registry
from xrt.engines.contract.graph_compiler import prepare_or_close
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.engines.toolkit.support import ELEMENTWISE, SYMBOLIC_OPERATORS, why_not_symbolic
from xrt.errors import CompileRefused, ModelError, RunFailed
from xrt.formats.onnx import expand_definition
from xrt.graph import Function, Node, TensorType, Value
from xrt.placement.sizes import read_sizes, resize_values
from xrt.runtime import count_available_cores
from xrt.runtime.inputs import copy_values
from xrt.testing.running import overlook_deviations
from xrt.verify.comparison import Verdict, judge_outputs
from xrt.verify.execution import run_alone

if TYPE_CHECKING:
    from xrt.engines import Executable, GraphCompiler


Opening: TypeAlias = Literal["every", "equal", "first"]
"""Which sizes of the inputs become symbolic dims. ``every``: all, each as a separate dim. ``equal``: all except 1, where equal
sizes share a dim. ``first``: the size of axis 0 of each input, where equal sizes share a dim."""
OPENINGS: tuple[Opening, ...] = ("every", "equal", "first")


@dataclass(frozen=True)
class SizedInputs:
    function: Function
    """The Function specialized to these sizes."""
    values: list[Any]
    expected: list[Any]
    may_be_refused: bool
    """Whether RunFailed is acceptable at these sizes: the reference engine accepts some that ONNX does not allow, such as Split
    sizes that do not add up to the size of the axis."""

    def compare(self, executable: Executable, engine: GraphCompiler) -> Comparison:
        """Run the executable and compare its results; the message of a failure names the input shapes."""
        try:
            results = executable.run([copy_values(value) for value in self.values])
        except RunFailed as error:
            message = "" if self.may_be_refused else f"RunFailed: {error}"
        else:
            message = self._judge(results)
            if message:
                explained = overlook_deviations(results, self.function, self.values, self.expected, [engine])
                message = self._judge(explained)
        shapes = ", ".join(str(list(value.shape)) for value in self.values if isinstance(value, np.ndarray))
        return Comparison(message and f"at {shapes}: {message}")

    def _judge(self, results: Sequence[Any]) -> str:
        """Describe the first difference that tolerance, ties and rounding do not explain; empty if there is none."""
        # The expanded definition, because casts inside an operator allow for more rounding as well.
        check = judge_outputs(self._expand_definition(), self.values, results, self.expected, _run_reference)
        return check.message if check.verdict is Verdict.DISAGREES else ""

    def _expand_definition(self) -> Function:
        """Replace a single node by its ONNX definition, which shows its inner casts: FlexAttention rounds to a narrower float."""
        if len(self.function.nodes) != 1:
            return self.function
        try:
            return expand_definition(self.function) or self.function
        except ModelError:  # onnx cannot inline a definition whose optional input is absent
            return self.function


def _run_reference(function: Function, inputs: Sequence[Any]) -> list[Any]:
    return run_alone(registry.create(REFERENCE), function, [copy_values(value) for value in inputs])


def open_dims(function: Function, inputs: Sequence[Any], opening: Opening) -> Function:
    """Replace sizes of the inputs by symbolic dims, and infer all other tensor types again.

    Raises CompileRefused if no size can be symbolic, an input has no elements, or a body declares shapes.
    """
    if any(isinstance(array, np.ndarray) and not array.size for array in inputs):
        raise CompileRefused("an input has no elements, which an executable for all sizes may refuse at run time")
    # Sizes that a body declares would be wrong for other sizes of the values that it captures.
    if any(_declares_sizes(body) for node in function.nodes for body in node.bodies):
        raise CompileRefused("a body declares the sizes of its values")
    may_read_shapes = any(node.op not in ELEMENTWISE for node in function.nodes)  # an elementwise operator reads only data
    opened = tuple(
        value if may_read_shapes and _may_be_shape(array) else _open_input(value, array, opening)
        for value, array in zip(function.inputs, inputs, strict=True)
    )
    if opened == function.inputs:
        raise CompileRefused("no input has a size that can be a symbolic dim")
    # Drop the declared types of outputs and inner values, which have the old sizes.
    return passes.infer_shapes(
        function.replace(
            inputs=opened,
            outputs=tuple(Value(v.name) if isinstance(v.type, TensorType) else v for v in function.outputs),
            types={name: type_ for name, type_ in function.types.items() if not isinstance(type_, TensorType)},
            aliases=(),
        )
    )


def _may_be_shape(array: Any) -> bool:
    """Whether an input may be a shape or axes, whose number determines a rank."""
    return isinstance(array, np.ndarray) and array.ndim == 1 and array.dtype in (np.int32, np.int64)


def _open_input(value: Value, array: Any, opening: Opening) -> Value:
    """Replace sizes of an input by symbolic dims, if it is a tensor of known rank."""
    if not isinstance(array, np.ndarray) or not isinstance(value.type, TensorType) or not value.type.shape:
        return value
    dims = list(value.type.shape)
    for axis, size in enumerate(array.shape):
        if opening == "every":
            dims[axis] = f"{value.name}_{axis}"
        elif (axis == 0 and opening == "first") or (size != 1 and opening == "equal"):
            dims[axis] = f"n{size}"
    return Value(value.name, value.type.with_shape(tuple(dims)))


def _declares_sizes(body: Function) -> bool:
    types = [*(value.type for value in (*body.inputs, *body.outputs)), *body.types.values()]
    return any(isinstance(type_, TensorType) and type_.shape for type_ in types)


def compile_for_all_sizes(engine: GraphCompiler, function: Function) -> Executable:
    """Compile and prepare one executable for a Function with symbolic dims; raises CompileRefused if the engine declines."""
    # As in a module: engines without control flow support the inlined nodes.
    ready = passes.inline_constant_control_flow(function)
    if not engine.supports_dynamic_shapes:
        raise CompileRefused(f"engine {engine.spec!r} compiles for fixed sizes")
    for node in ready.nodes:
        if (reason := engine.why_not(node, ready)) is not None:
            raise CompileRefused(f"{node.op}: {reason}")
    return prepare_or_close(engine.compile(ready, CompileContext(threads=count_available_cores())))


UNTESTED_OPERATORS = frozenset({"AffineGrid", "Attention", "DynamicQuantizeLinear", "MeanVarianceNormalization"})
"""Operators that are not tested at other sizes: some accept sizes that do not match, others are degenerate at a size of 1."""


def list_other_sizes(function: Function, inputs: Sequence[Any]) -> list[SizedInputs]:
    """Make inputs with doubled sizes and inputs with sizes of 1, if the reference engine accepts these.

    As many symbolic dims change as the reference engine accepts: all, or those of the same size as the first, or only the first.
    """
    if any(node.op in UNTESTED_OPERATORS for node in function.nodes):
        return []
    sizes = read_sizes(function.inputs, inputs)
    names = list(sizes)
    equal = [name for name in names if sizes[name] == sizes[names[0]]]
    samples = []
    for factor in (2, 0):  # 0 makes sizes of 1
        for changing in (names, equal, names[:1]):
            changed = {**sizes, **{name: max(factor * sizes[name], 1) for name in changing}}
            if changed != sizes and (sized := _evaluate(function, resize_values(function.inputs, inputs, changed))) is not None:
                samples.append(sized)
                break
    return samples


def _evaluate(function: Function, values: list[Any]) -> SizedInputs | None:
    """Compute the expected outputs on the reference engine; None if it does not accept the sizes of ``values``."""
    shapes = {v.name: x.shape for v, x in zip(function.inputs, values, strict=True) if isinstance(x, np.ndarray)}
    try:
        fixed = passes.specialize(function, shapes)
        if any(_has_wrong_parameters(node, fixed) for node in fixed.nodes):
            return None
        expected = _run_reference(fixed, values)
    except Exception:  # noqa: BLE001  # any failure means that these sizes are invalid
        return None
    may_be_refused = any(why_not_symbolic(node, function, SYMBOLIC_OPERATORS) for node in function.nodes)
    return SizedInputs(fixed, values, expected, may_be_refused)


def _has_wrong_parameters(node: Node, function: Function) -> bool:
    """Whether the weights or normalization parameters of a node have a wrong shape, which the reference engine may broadcast."""
    shapes = [type_.shape if isinstance(type_ := function.get_type(name), TensorType) else None for name in node.inputs if name]
    # shapes[0] is that of the data, and the others those of the parameters: a normalization has one per channel or group.
    if len(shapes) < 2 or not shapes[0] or not shapes[1]:
        return False
    if (kernel := node.attr("kernel_shape")) is not None and node.op_type not in ("MaxUnpool", "QLinearConv"):
        return tuple(kernel) != shapes[1][2:]  # a weight is (channels, channels, *kernel)
    if node.op_type not in ("BatchNormalization", "GroupNormalization", "InstanceNormalization"):
        return False
    allowed = {shapes[0][1]} if node.op_type != "GroupNormalization" else {shapes[0][1], node.attr("num_groups")}
    return any(shape is None or len(shape) != 1 or shape[0] not in allowed for shape in shapes[1:])
