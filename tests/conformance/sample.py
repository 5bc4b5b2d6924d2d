"""A fixed sample of the tests of onnx: for each operator the cases that would show a wrong result best.

A case *shows* a fault if its expected results, changed in that way, are no longer right: 1 % off, transposed, or one element
late. Square, constant and tiny results hide faults, so the cases of an operator are tried in the order of what they show. Nothing
is recorded: the order follows from the installed ``onnx`` alone.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from onnx import ModelProto, numpy_helper

from tools.known_failures import list_known_failures
from xrt.engines import GraphCompiler
from xrt.errors import CompileFailed, CompileRefused
from xrt.graph import Function, Node, TensorType, Value
from xrt.graph.node import list_names, rename_function
from xrt.module.programs import optimize
from xrt.passes import infer_shapes
from xrt.testing import ConformanceCase, Outcome, ResultWord, node_cases, run_case
from xrt.testing.conformance import run_single
from xrt.testing.running import fit_inputs_for, make_alternating_program
from xrt.verify.execution import run_alone

PER_MODEL = 6
STRUCTURAL = ("ConstantOfShape", "Range")
"""Operators whose first input decides the shape of the result."""


def distort(result: Any) -> Iterator[Any]:
    """Yield what three faulty kernels would return in place of a result."""
    if isinstance(result, np.ndarray) and result.size and result.dtype.kind not in "OUS":
        if result.dtype.kind not in "b":
            yield (result.astype(np.float64) * 1.01).astype(result.dtype)
        yield result.T.reshape(result.shape)
        yield np.roll(result.reshape(-1), 1).reshape(result.shape)


def with_constants(case: ConformanceCase) -> Iterator[ConformanceCase]:
    """Yield the case of one node with its axes, pads, shapes and the like as constants, as models have them.

    Several engines decline an operator whose pads are an input of the graph, which they are in the tests of onnx.
    """
    graph = case.model.graph
    later = {name for node in graph.node for name in (node.input if node.op_type in STRUCTURAL else node.input[1:])}
    pairs = zip(graph.input, case.inputs, strict=True)
    constants = {
        value.name: array
        for value, array in pairs
        if value.name in later and isinstance(array, np.ndarray) and array.ndim <= 1 and array.dtype.kind in "biuf"
    }
    if len(graph.node) != 1 or not constants or case.seed is not None:
        return
    model = ModelProto()
    model.CopyFrom(case.model)
    del model.graph.input[:]
    model.graph.input.extend(value for value in graph.input if value.name not in constants)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    inputs = (array for value, array in zip(graph.input, case.inputs, strict=True) if value.name not in constants)
    yield replace(case, name=f"{case.name}_of_constants", model=model, inputs=tuple(inputs))


def count_shown(case: ConformanceCase) -> int:
    """Count the faults of the first output that a comparison with the expected one would show."""
    expected = case.expected[0]
    with np.errstate(all="ignore"):
        return sum(not _agree(wrong, expected, case) for wrong in distort(expected))


def _agree(a: Any, b: Any, case: ConformanceCase) -> bool:
    if b.dtype.kind == "b":
        return bool((a == b).all())
    return np.allclose(a.astype(np.float64), b.astype(np.float64), case.rtol, case.atol, equal_nan=True)


def _order(case: ConformanceCase) -> tuple[Any, ...]:
    return -count_shown(case), len(case.model.graph.node), len(case.model.graph.initializer), case.name


@functools.cache
def cases_of_operators() -> Mapping[str, Sequence[ConformanceCase]]:
    """The cases of each operator: what shows most comes first, one node before the expansion of an operator."""
    result: dict[str, list[ConformanceCase]] = defaultdict(list)
    for case in node_cases():
        for operator in case.operators:
            result[operator] += [case, *with_constants(case)]
    for cases in result.values():
        cases.sort(key=_order)
    return dict(sorted(result.items()))


def run_operators(engine: GraphCompiler, count: int) -> dict[str, list[Outcome]]:
    """Run, for each operator, the first ``count`` cases that the engine does not decline."""
    make = run_single(engine)
    results: dict[str, list[Outcome]] = {}
    for operator, cases in cases_of_operators().items():
        outcomes = (run_case(case, make) for case in cases)
        claimed = (outcome for outcome in outcomes if outcome.word is not ResultWord.DECLINED)
        if items := [outcome for outcome, _ in zip(claimed, range(count), strict=False)]:
            results[operator] = items
    return results


def list_models(
    engines: Sequence[GraphCompiler], share: tuple[int, int] = (0, 1), *, most: int = PER_MODEL, with_vectors: bool = False
) -> Iterator[list[ConformanceCase]]:
    """Yield lists of ``most`` cases that make a model each: for every operator that an engine supports, its first such case.

    ``share=(i, n)`` keeps the i-th of n shares of the operators; ``with_vectors`` adds those that read no matrix, which
    alternation begins with.
    """
    models: dict[Any, list[ConformanceCase]] = defaultdict(list)
    for number, cases in enumerate(cases_of_operators().values()):
        is_chosen = number % share[1] == share[0] or (with_vectors and not _reads_matrix(cases[0]))
        if is_chosen and (case := next((c for c in cases if _is_supported(c, engines)), None)):
            models[tuple(sorted(case.function.opsets.items()))].append(case)
    for cases in models.values():
        yield from (cases[start : start + most] for start in range(0, len(cases), most))


def _reads_matrix(case: ConformanceCase) -> bool:
    return any(isinstance(array, np.ndarray) and array.ndim >= 2 for array in case.inputs)


def _is_supported(case: ConformanceCase, engines: Sequence[GraphCompiler]) -> bool:
    table = list_known_failures([engine.name for engine in engines])
    if case.is_random or any(gap.covers(case.name) for gap in table):
        return False
    whole = fit_inputs_for(case.function, case.inputs, engines)
    return all(any(engine.why_not(node, whole) is None for engine in engines) for node in whole.nodes)


def run_together(engine: GraphCompiler, cases: Sequence[ConformanceCase]) -> list[Outcome]:
    """Run cases as one model on one engine: for a library of which each compile takes long. What is refused runs in halves."""
    functions = [_with_prefix(case.function, f"{number}/") for number, case in enumerate(cases)]
    try:
        results = iter(run_alone(engine, join(functions), [array for case in cases for array in case.inputs]))
    except (CompileRefused, CompileFailed):
        if len(cases) == 1:
            return [run_case(cases[0], run_single(engine))]
        return [outcome for half in (cases[::2], cases[1::2]) for outcome in run_together(engine, half)]
    items = [case.judge([next(results) for _ in case.expected]) for case in cases]
    words = [ResultWord.PASSED if item else ResultWord.FAILED for item in items]
    return [Outcome(case.name, word, item.message) for case, word, item in zip(cases, words, items, strict=True)]


def run_alternating(pair: tuple[GraphCompiler, GraphCompiler], cases: Sequence[ConformanceCase], first: int) -> list[str]:
    """Run cases as one model, neighbouring nodes on different engines, and return what is wrong."""
    parts = [Turned.of(case, f"{number}/") for number, case in enumerate(cases)]
    inputs = [array for part in parts for array in part.inputs]
    try:
        function = optimize(infer_shapes(join([part.function for part in parts])), fold=True)  # as modules prepare a model
        program = make_alternating_program(function, inputs, pair, first)
    except CompileRefused:  # neither engine compiles some node: without that case the others run
        return [] if len(cases) == 1 else [wrong for case in cases for wrong in run_alternating(pair, [case], first)]
    results = iter(program.run(inputs))
    return [wrong for part in parts if (wrong := part.judge([next(results) for _ in part.function.outputs]))]


@dataclass(frozen=True)
class Turned:
    """A case with a Transpose before each input and behind each output.

    Alternation has them on the other engine: what an operator reads and writes crosses, with the strides of a transposed array.
    """

    case: ConformanceCase
    function: Function
    turned: frozenset[str]
    """The inputs and outputs that are transposed."""

    @classmethod
    def of(cls, case: ConformanceCase, prefix: str) -> Turned:
        """Return the case under names with a prefix."""
        whole = _with_prefix(case.function, prefix)
        arrays = zip(whole.inputs, case.inputs, strict=True)
        before = {value.name: value for value, array in arrays if isinstance(array, np.ndarray) and _is_matrix(value)}
        after = {value.name: value for value in whole.outputs if _is_matrix(value) and whole.computes(value.name)}
        nodes = [Node("Transpose", (f"{name}.T",), (name,), name=f"{name}.T") for name in before]
        nodes += [*whole.nodes, *(Node("Transpose", (name,), (f"{name}.T",), name=f"{name}.T") for name in after)]
        turned = {name: _turn(value) for name, value in (before | after).items()}
        function = whole.replace(
            inputs=tuple(turned.get(value.name, value) for value in whole.inputs),
            outputs=tuple(turned.get(value.name, value) for value in whole.outputs),
            nodes=tuple(nodes),
        )
        return cls(case, function, frozenset(value.name for value in turned.values()))

    @property
    def inputs(self) -> list[Any]:
        pairs = zip(self.function.inputs, self.case.inputs, strict=True)
        return [array.T if value.name in self.turned else array for value, array in pairs]

    def judge(self, results: Sequence[Any]) -> str:
        """Say what is wrong with results; empty if nothing is."""
        pairs = zip(self.function.outputs, results, strict=True)
        result = self.case.judge([a.T if value.name in self.turned else a for value, a in pairs], admit_ties=True)
        return "" if result else f"{self.case.name}: {result.message}"


def _is_matrix(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.rank is not None and value.type.rank >= 2


def _turn(value: Value) -> Value:
    return Value(f"{value.name}.T", replace(value.type, shape=value.type.shape[::-1]))


def _with_prefix(function: Function, prefix: str) -> Function:
    names = {name: f"{prefix}{name}" for name in list_names(function) if name}
    return rename_function(function, names, names)


def join(functions: Sequence[Function]) -> Function:
    """Join Functions of the same opsets, all of whose names differ, side by side."""
    return functions[0].replace(
        inputs=tuple(value for function in functions for value in function.inputs),
        outputs=tuple(value for function in functions for value in function.outputs),
        nodes=tuple(node for function in functions for node in function.nodes),
        constants={name: constant for function in functions for name, constant in function.constants.items()},
        types={name: type_ for function in functions for name, type_ in function.types.items()},
    )
