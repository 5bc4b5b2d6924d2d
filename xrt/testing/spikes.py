"""One special number among ordinary ones: NaN, an infinity, the largest and the smallest number at a random place of an input.

`xrt.testing.special_values` fills whole rows with such numbers, for a fixed choice of operators and sizes. Here the recipes of
generated graphs, which know the attributes of operators, give the operators, and a seed gives the places. So a number that
spreads to where it has no influence is found too. The reference engine's results count, within what ONNX defines:

- a product with a weight of zero (padding, ``beta`` of 0) may be computed or left out, so NaN may come of it or not;
- a sum of infinities or of the largest numbers overflows sooner or later, depending on its order, and to what is open.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from xrt.comparison import Comparison, compare_all, tolerance_for
from xrt.formats import text
from xrt.graph import Constant, DType, Function, TensorType, Value
from xrt.testing.generate import Form, make_random_inputs, make_recipe_function
from xrt.testing.generators import ALL_FAMILIES
from xrt.testing.graph_draft import Seeded
from xrt.testing.special_values import Lost, excuse

__all__ = ["SPIKES", "Spiked", "find_spiked"]

Array: TypeAlias = np.ndarray[Any, Any]

SEEDS = 40
"""How many graphs of each recipe are looked at for forms of its operators."""
FORMS = 2
"""How many forms of an operator are kept: each is compiled once."""
FORM = Form(dtypes=(DType.FLOAT32,), empty=False, control=False, symbolic=False)


def _words(words: str) -> frozenset[str]:
    return frozenset(words.split())


COMBINING = _words("""
    Attention AveragePool BatchNormalization Conv ConvTranspose CumSum Einsum Gelu Gemm GlobalAveragePool GridSample
    GroupNormalization InstanceNormalization LRN LSTM LayerNormalization LogSoftmax LpNormalization LpPool MatMul
    Mean ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMean ReduceProd ReduceSum ReduceSumSquare
    RMSNormalization Resize Scan Softmax Sum
""")
"""Operators that add or multiply numbers in an order of their own: where one overflows is theirs."""
WEIGHTED = _words("Attention Conv ConvTranspose Einsum Gemm GridSample MatMul Resize")
"""Operators that multiply with weights that may be zero."""
OPEN = frozenset({"Attention"})
"""Operators in which an infinity may leave a row of a softmax with nothing but -inf: versions of ONNX differ there."""
WRITTEN = _words("ArgMax ArgMin TopK Cast Sign QuantizeLinear Pow")
"""Operators of whose results a part is not defined: only forms that are written here are looked at."""
WITHOUT_NAN = _words("ArgMax ArgMin TopK QuantizeLinear Sign")
"""Operators of which ONNX does not say what a NaN becomes."""
RETYPED = _words("""
    Add Clip Conv CumSum Elu Equal Exp Gemm GlobalAveragePool GlobalMaxPool Greater InstanceNormalization LayerNormalization
    LogSoftmax MatMul Max MaxPool Min Mul Pad ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Round Sigmoid
    Softmax Softplus Sum Tanh Where
""")
"""Operators of which a form of float16 and one of float64 are looked at as well."""


@dataclass(frozen=True, slots=True)
class Spike:
    """A place of an input, and the calls that show what depends on it."""

    index: int
    place: int

    def inputs(self, ordinary: Sequence[Array], number: float) -> tuple[Array, ...]:
        """Return the inputs with the number in that place."""
        arrays = [array.copy() for array in ordinary]
        arrays[self.index].reshape(-1)[self.place] = number
        return tuple(arrays)


ORDINARY = (-0.875, 0.375)
"""What depends on a place changes with one of these in it."""


def _numbers(dtype: DType) -> tuple[float, ...]:
    """Return the special numbers: those that are not finite, the largest, and the smallest that is normal."""
    limits = np.finfo(dtype.numpy)
    return (np.nan, np.inf, -np.inf, float(limits.max), float(limits.tiny))


@dataclass(frozen=True)
class Spiked:
    """An operator, or a few that a recipe adds together, with ordinary inputs and places in them."""

    name: str
    function: Function
    ordinary: tuple[Array, ...]
    spikes: tuple[Spike, ...]
    dtype: DType = DType.FLOAT32

    @cached_property
    def numbers(self) -> tuple[float, ...]:
        """The special numbers of the type."""
        return _numbers(self.dtype)

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(node.op_type for node in self.function.nodes)

    @cached_property
    def calls(self) -> tuple[tuple[Array, ...], ...]:
        """The inputs of each call: the ordinary ones, then for each place two that tell what depends on it, and the special."""
        return (self.ordinary, *(spike.inputs(self.ordinary, n) for spike in self.spikes for n in (*ORDINARY, *self.numbers)))

    def judge(self, results: Sequence[Any], expected: Sequence[Any], losing: Collection[Lost] = ()) -> Comparison:
        """Compare the results of all calls, one after the other, with the expected ones; what is lost may be anything."""
        mine, width, each = list(results), len(self.function.outputs), len(ORDINARY) + len(self.numbers)
        for start in range(1, len(self.calls), each):
            calls = [expected[width * k : width * (k + 1)] for k in (0, *range(start, start + len(ORDINARY)))]
            moved = [~_same(np.stack(outputs)) for outputs in zip(*calls, strict=True)]
            for step, number in enumerate(self.numbers):
                first = width * (start + len(ORDINARY) + step)
                for place in range(first, first + width):
                    mine[place] = self._admitted(number, mine[place], expected[place], moved[place - first])
        with np.errstate(over="ignore", invalid="ignore"):
            mine = [excuse(*pair, losing) for pair in zip(mine, expected, strict=True)]
            return compare_all(mine, list(expected), tolerance_for(str(self.dtype), "network"), names=self._names)

    @property
    def _names(self) -> list[str]:
        each = len(ORDINARY) + len(self.numbers)
        calls = ["of ordinary numbers"]
        for spike in self.spikes:
            where = f"in place {spike.place} of {self.function.inputs[spike.index].name}"
            calls += [f"with {number:.4g} {where}" for number in (*ORDINARY, *self.numbers)]
        assert len(calls) == 1 + each * len(self.spikes)
        return [f"{value.name} {call}" for call in calls for value in self.function.outputs]

    def _admitted(self, number: float, array: Array, expected: Array, moved: Array) -> Array:
        """Return the array with what is expected wherever ONNX leaves it open."""
        if self._is_undefined(number, expected):
            return expected
        if array.shape != expected.shape or expected.dtype.kind != "f":
            return array
        finite, due = np.isfinite(array), np.isfinite(expected)
        admitted = np.zeros(expected.shape, bool)
        if self.operators & WEIGHTED:
            admitted |= ~moved & (~finite | ~due)
        if self.operators & COMBINING and not np.isnan(number):
            admitted |= moved & (np.isfinite(number) | (~finite & ~due))
        if self.operators & OPEN and np.isinf(number):
            admitted[...] = True
        return np.where(admitted, expected, array)

    def _is_undefined(self, number: float, expected: Array) -> bool:
        """Whether ONNX says nothing of what comes of the number."""
        if np.isnan(number) and self.operators & WITHOUT_NAN:
            return True
        if "LayerNormalization" in self.operators and np.isfinite(number) and abs(number) > float(np.finfo(np.float32).max):
            return True  # its stash_type is float32, unless said otherwise
        if "Cast" in self.operators and expected.dtype.kind in "iu":
            return not abs(number) < 127
        return number == -np.inf and "Pow" in self.operators  # C's pow makes an infinity of its square root, and others NaN


def _same(arrays: Array) -> Array:
    """Return where all are the same number."""
    kept: Array = ((arrays == arrays[0]) | (arrays != arrays)).all(axis=0)
    return kept


# ---------------------------------------------------------------------- cases

MORE = (
    ("LRN", "x: float32[1,6,2,1]", "LRN(x) {size = 3}"),
    ("LRN", "x: float32[1,3,4,4]", "LRN(x) {size = 2, alpha = 0.1}"),
    ("Resize", "x: float32[1,2,4,4]", "Resize(x, _, s) {mode = 'cubic'}"),
    ("Resize", "x: float32[1,2,4,4]", "Resize(x, _, s) {mode = 'cubic', coordinate_transformation_mode = 'asymmetric'}"),
    ("Resize", "x: float32[1,2,4,4]", "Resize(x, _, s) {mode = 'linear', coordinate_transformation_mode = 'asymmetric'}"),
    ("Resize", "x: float32[1,2,4,4]", "Resize(x, _, s) {mode = 'linear', coordinate_transformation_mode = 'pytorch_half_pixel'}"),
    ("InstanceNormalization", "x: float32[2,3,4,4], a: float32[3], b: float32[3]", "InstanceNormalization(x, a, b)"),
    (
        "BatchNormalization",
        "x: float32[2,3,4], a: float32[3], b: float32[3], m: float32[3]",
        "BatchNormalization(x, a, b, m, one)",
    ),
    ("GlobalAveragePool", "x: float32[2,5,4,4]", "GlobalAveragePool(x)"),
    ("AveragePool", "x: float32[1,3,6,6]", "AveragePool(x) {kernel_shape = [3, 3], pads = [1, 1, 1, 1], count_include_pad = 1}"),
    ("Conv", "x: float32[1,17,5,5], w: float32[18,17,3,3], b: float32[18]", "Conv(x, w, b) {pads = [1, 1, 1, 1]}"),
    ("Conv", "x: float32[1,4,9], w: float32[4,1,3]", "Conv(x, w) {group = 4, strides = [2]}"),
    ("ConvTranspose", "x: float32[1,2,4,4], w: float32[2,3,3,3]", "ConvTranspose(x, w) {strides = [2, 2]}"),
    ("Gemm", "a: float32[3,4], b: float32[4,5], c: float32[5]", "Gemm(a, b, c) {beta = 0.0}"),
    ("Gemm", "a: float32[3,4], b: float32[4,5], c: float32[3,5]", "Gemm(a, b, c) {alpha = 0.5, beta = 2.0}"),
    ("MatMul", "a: float32[17,33], b: float32[33,18]", "MatMul(a, b)"),
    ("MeanVarianceNormalization", "x: float32[2,3,4,4]", "MeanVarianceNormalization(x)"),
    ("LSTM", "x: float32[3,2,4], w: float32[1,12,4], r: float32[1,12,3]", "LSTM(x, w, r) {hidden_size = 3}"),
    ("GRU", "x: float32[3,2,4], w: float32[1,9,4], r: float32[1,9,3]", "GRU(x, w, r) {hidden_size = 3}"),
)
"""Forms that no recipe makes, in opset 18: an operator, its inputs, and how it is applied."""
EXACT = (
    *((op, f"x: {t}[3,17]", f"{op}(x) {{axis = 1}}") for t in ("float32", "float16", "float64") for op in ("ArgMax", "ArgMin")),
    *(("TopK", f"x: {t}[3,9]", "TopK(x, k)") for t in ("float32", "float16", "float64")),
    *(("TopK", "x: float32[9,2]", f"TopK(x, k) {{axis = 0, largest = {n}}}") for n in (0, 1)),
    *(("Cast", f"x: {t}[19]", f"Cast(x) {{to = {to}}}") for t in ("float32", "float16", "float64") for to in (1, 7, 9, 10, 11)),
    *(("Pow", "x: float32[19]", f"Pow(x, {name})") for name in ("two", "three", "half", "less")),
    *(("Sign", f"x: {t}[19]", "Sign(x)") for t in ("float32", "float16", "float64")),
    ("QuantizeLinear", "x: float32[19]", "QuantizeLinear(x, q)"),
)
"""Forms, in opset 18, of which a part of the results is defined."""
LATER = (
    ("GroupNormalization", "x: float32[2,6,3,3], a: float32[6], b: float32[6]", "GroupNormalization(x, a, b) {num_groups = 3}"),
    ("RMSNormalization", "x: float32[3,8], a: float32[8]", "RMSNormalization(x, a)"),
    ("Gelu", "x: float32[3,8]", "Gelu(x)"),
    ("Gelu", "x: float32[3,8]", "Gelu(x) {approximate = 'tanh'}"),
    ("Attention", "q: float32[1,2,4,8], k: float32[1,2,5,8], v: float32[1,2,5,8]", "Attention(q, k, v)"),
    ("Attention", "q: float32[1,2,4,8], k: float32[1,2,4,8], v: float32[1,2,4,8]", "Attention(q, k, v) {is_causal = 1}"),
    (
        "Attention",
        "q: float32[1,2,4,8], k: float32[1,2,4,8], v: float32[1,2,4,8], mask: float32[4,4]",
        "Attention(q, k, v, mask)",
    ),
)
"""The same in opset 23."""
CONSTANTS = {
    "k": "const k: int64[1] = [3]",
    "two": "const two: float32[] = 2.0",
    "three": "const three: float32[] = 3.0",
    "half": "const half: float32[] = 0.5",
    "less": "const less: float32[] = -1.0",
    "q": "const q: float32[] = 0.01",
    "s": "const s: float32[4] = [1.0, 1.0, 2.0, 1.5]",
    "one": "const one: float32[3] = [1.0, 1.0, 1.0]",
}


FLOATS = (DType.FLOAT32, DType.FLOAT16, DType.FLOAT64)


def _is_float(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.dtype in FLOATS and 0 not in (value.type.shape or ())


def _case(name: str, function: Function, seed: int) -> Spiked:
    """Return the case of a Function: a random place in each of its inputs, and two in the first.

    The places of a GridSample are left alone: ONNX does not say what is read where there is none.
    """
    rng = np.random.default_rng(seed)
    grids = {node.inputs[1] for node in function.nodes if node.op_type == "GridSample"}
    places = [index for index, value in enumerate(function.inputs) if _is_float(value) and value.name not in grids]
    inputs = tuple(make_random_inputs(function, seed))
    spikes = tuple(Spike(index, int(rng.integers(inputs[index].size))) for index in [*places[:1], *places])
    return Spiked(name, function, inputs, spikes, _dtype(function.inputs[places[0]]) if places else DType.FLOAT32)


def _dtype(value: Value) -> DType:
    assert isinstance(value.type, TensorType)
    return value.type.dtype


def _written() -> Iterator[Spiked]:
    for group, opset, rows in (("18", 18, MORE), ("23", 23, LATER), ("exact", 18, EXACT)):
        for row, (op, inputs, applied) in enumerate(rows):
            read = "\n".join(line for name, line in CONSTANTS.items() if f", {name})" in applied)
            given, results = ("y: ?, i: ?", "y, i") if op == "TopK" else ("y: ?", "y")
            source = f"function main({inputs}) -> ({given}) {{\n opset ai.onnx {opset}\n{read}\n {results} = {applied}\n}}"
            yield _case(f"{op}-{group}-{row}", text.parse(source.replace("'", '"')), row)


def _retyped(function: Function, dtype: DType) -> Function:
    """Return the Function with its inputs and constants of float32 in another type."""

    def other(type_: Any) -> Any:
        return TensorType(dtype, type_.shape) if isinstance(type_, TensorType) and type_.dtype is DType.FLOAT32 else type_

    constants = {
        name: Constant(constant.array.astype(dtype.numpy)) if constant.dtype is DType.FLOAT32 else constant
        for name, constant in function.constants.items()
    }
    inputs, outputs = (tuple(Value(v.name, other(v.type)) for v in values) for values in (function.inputs, function.outputs))
    return function.replace(inputs=inputs, outputs=outputs, constants=constants, types={})


def _made() -> Iterator[Spiked]:
    recipes = dict.fromkeys(recipe for family in ALL_FAMILIES.values() for recipe in family)
    seen: set[Any] = set()
    kept: Counter[str] = Counter()
    for recipe in recipes:
        for seed in range(SEEDS):
            function = make_recipe_function(recipe, Seeded(seed), FORM)
            if function is None or not any(map(_is_float, function.inputs)):
                continue
            ops = "-".join(node.op_type for node in function.nodes)
            form = tuple((node.op_type, node.attributes, tuple(map(bool, node.inputs))) for node in function.nodes)
            if set(ops.split("-")) & WRITTEN or kept[ops] == FORMS or str(form) in seen:
                continue
            seen.add(str(form))
            kept[ops] += 1
            yield _case(f"{ops}-{kept[ops]}", function, seed)
            if kept[ops] == 1 and ops in RETYPED:
                yield from (_case(f"{ops}-{dtype}", _retyped(function, dtype), seed) for dtype in FLOATS[1:])
    yield from _written()


SPIKES: tuple[Spiked, ...] = tuple(_made())
"""Every case, under a name of its own."""


def find_spiked(name: str) -> Spiked:
    """Return the case of that name."""
    return next(one for one in SPIKES if one.name == name)
