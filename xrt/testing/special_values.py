"""Operators on numbers that are easily lost: NaN, the infinities and zeros, at every place of a vector.

Each case is one operator, or a chain that engines like to make one, in one element type. A loop over whole vectors and the
loop over what they leave are different code, so each is computed of several sizes; a fold of rows also of one that threads share.
What comes out is to be what the reference engine computes: ONNX says little of these numbers, and IEEE 754 the rest.
Zeros of both signs go in; which of them comes out is not looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from xrt.comparison import Comparison, Tolerance, compare_all, tolerance_for
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["DECLARED", "SPECIALS", "Lost", "SpecialValueCase", "excuse", "make_special_cases"]

Array: TypeAlias = np.ndarray[Any, Any]

Lost: TypeAlias = Literal["nan", "infinity", "number"]
"""What an engine may declare to lose in an operator; `DECLARED` says where."""
DECLARED: Mapping[Lost, str] = {"nan": "loses_nan", "infinity": "loses_infinity", "number": "spreads_nan"}
"""The attributes of an engine that name the operators."""

NUMBERS = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1.5, -2.0, 0.25)
SIZES = (1, 7, 64)
"""Less than a vector, one that leaves a remainder, and several."""
ROWS = (1, 7, 64, 1024)
"""Lengths of rows that are folded into one number; the longest is work enough for threads to share."""
FLOATS = (DType.FLOAT32, DType.FLOAT64, DType.FLOAT16)


def _lengths(all_of_them: Sequence[int], dtype: DType) -> Sequence[int]:
    """Return what to compute in an element type: all sizes in float32, which is what models are made of, else one."""
    return all_of_them if dtype is DType.FLOAT32 else all_of_them[2:3]


@dataclass(frozen=True, slots=True)
class SpecialValueCase:
    """One operator, or a chain of them, on such numbers."""

    name: str
    function: Function
    inputs: tuple[Array, ...]

    @property
    def calls(self) -> tuple[tuple[Array, ...], ...]:
        """The inputs of each call, of which there is one."""
        return (self.inputs,)

    @property
    def operators(self) -> frozenset[str]:
        return frozenset(node.op_type for node in self.function.nodes)

    def judge(self, results: Sequence[Any], expected: Sequence[Any], losing: Collection[Lost] = ()) -> Comparison:
        """Compare results with the expected ones; what is lost may be anything where it is due."""
        mine = [excuse(*pair, losing) for pair in zip(results, expected, strict=True)]
        return compare_all(mine, list(expected), self._tolerance, names=[value.name for value in self.function.outputs])

    @property
    def _tolerance(self) -> Tolerance:
        """How exact it must be: no more than of half precision where any is in it. How exact an operator is, others prove."""
        dtypes = {array.dtype.name for array in self.inputs}
        return tolerance_for("float16" if "float16" in dtypes else "float32", "network")


def excuse(array: Array, expected: Array, losing: Collection[Lost]) -> Array:
    """Return the array with what is expected in the places where anything, or NaN, may be."""
    if array.dtype.kind != "f" or array.shape != expected.shape:
        return array
    places = np.zeros(expected.shape, bool)
    for lost in losing:
        places |= _LOST[lost](array, expected)
    return np.where(places, expected, array)


_LOST: Mapping[Lost, Callable[[Array, Array], Array]] = {
    "nan": lambda array, expected: np.isnan(expected),
    "infinity": lambda array, expected: np.isinf(expected),
    "number": lambda array, expected: np.isfinite(expected) & np.isnan(array),
}


# ---------------------------------------------------------------------- data


def _line(size: int, dtype: DType) -> Array:
    """Return the numbers over and over, so that each is in each lane; of a single one, NaN."""
    places = np.arange(size)
    return _numbers((places + places // 8) % 8, dtype)


def _other_line(size: int, dtype: DType) -> Array:
    """Return what meets each number of `_line` with each, within 64 places."""
    return _numbers(np.arange(size) // 8 % 8, dtype)


def _numbers(places: Array, dtype: DType) -> Array:
    return np.array(NUMBERS)[places].astype(dtype.numpy)


def _rows(length: int, dtype: DType) -> Array:
    """Return rows of ordinary numbers with a special one at the front, inside and at the end, and rows of nothing else."""
    places = sorted({0, length // 3, length // 2, length - 1})
    singles = [(place, number) for number in (np.nan, np.inf, -np.inf) for place in places]
    rows = np.add.outer(3 * np.arange(len(singles) + 7), 7 * np.arange(length)) % 5 / 2 - 0.75
    for row, (place, number) in zip(rows, singles, strict=False):
        row[place] = number
    for row, number in zip(rows[len(singles) :], (np.nan, np.inf, -np.inf, -0.0), strict=False):
        row[:] = number
    rows[-3, [0, -1]] = np.nan, np.inf
    rows[-2, [0, -1]] = -np.inf, np.nan
    return rows.astype(dtype.numpy)


# ---------------------------------------------------------------------- cases

Makes: TypeAlias = Callable[[DType], Iterator[Sequence[Array]]]
"""Gives, for an element type, the inputs of one application of an operator after the other."""


def _of_lines(arity: int) -> Makes:
    makers = (_line, _other_line, lambda size, dtype: _line(size, dtype)[::-1])
    return lambda dtype: ([make(size, dtype) for make in makers[:arity]] for size in _lengths(SIZES, dtype))


def _of_rows(*shape: int) -> Makes:
    """Give the rows with such axes before them; -1 means their number."""
    return lambda dtype: ([_rows(length, dtype).reshape(*shape, length)] for length in _lengths(ROWS, dtype))


def _of_columns(dtype: DType) -> Iterator[Sequence[Array]]:
    return ([np.ascontiguousarray(_rows(length, dtype).T)] for length in _lengths(ROWS, dtype))


def _of_one(length: int) -> Makes:
    return lambda dtype: iter([[_rows(length, dtype)]])


def _of_windows(dtype: DType) -> Iterator[Sequence[Array]]:
    return ([_rows(length, dtype).reshape(1, -1, 1, length).repeat(3, 2)] for length in ROWS[1:3])


Constants: TypeAlias = Mapping[str, Any]
"""By name: numbers, which become the element type of the case, and arrays, which stay as they are."""

LEFT = "left"
"""The name of a constant that is read before everything else."""


@dataclass(frozen=True, slots=True)
class _Row:
    """An operator with how it is applied, or a chain, each of which reads what the one before it made."""

    nodes: tuple[tuple[str, Mapping[str, Any]], ...]
    makes: Makes
    opset: int
    constants: tuple[Constants, ...] = ({},)
    """What each operator of the chain reads behind its first inputs, or before them: `LEFT`."""
    note: str = ""

    def case(self, dtype: DType) -> SpecialValueCase:
        parts = [f"{op}{list(attributes.values()) or ''}".replace(" ", "") for op, attributes in self.nodes]
        applied = [tuple(arrays) for arrays in self.makes(dtype)]
        of = f"of{len(applied[0])}" if len(applied[0]) > 1 else ""
        name = "-".join([*parts, *filter(None, [of, self.note]), str(self.opset), dtype.text])
        draft = _Draft(self, dtype)
        for place, arrays in enumerate(applied):
            draft.apply(place, arrays)
        return SpecialValueCase(name, draft.function(), tuple(array for arrays in applied for array in arrays))


class _Draft:
    """A Function that applies a row's operators to one set of inputs after the other."""

    def __init__(self, row: _Row, dtype: DType) -> None:
        self.row = row
        self.inputs: list[Value] = []
        self.outputs: list[Value] = []
        self.nodes: list[Node] = []
        self.constants: dict[str, Constant] = {}
        self._read = [[self._constant(n, value, dtype) for n, value in given.items()] for given in row.constants]

    def _constant(self, name: str, value: Any, dtype: DType) -> str:
        if value is None:
            return ""
        self.constants[name] = Constant(value if isinstance(value, np.ndarray) else np.array(value, dtype.numpy))
        return name

    def apply(self, place: int, arrays: Sequence[Array]) -> None:
        names = [f"x{place}_{k}" for k in range(len(arrays))]
        pairs = zip(names, arrays, strict=True)
        self.inputs += [Value(name, TensorType(DType.of(array), array.shape)) for name, array in pairs]
        for step, ((op, attributes), constants) in enumerate(zip(self.row.nodes, self._read, strict=True)):
            made = f"y{place}" if step == len(self.row.nodes) - 1 else f"t{place}_{step}"
            read = sorted((*names, *constants), key=lambda name: name != LEFT)
            self.nodes.append(Node(op, tuple(read), (made,), read_attributes(attributes)))
            names = [made]
        self.outputs.append(Value(f"y{place}"))

    def function(self) -> Function:
        return Function(tuple(self.inputs), tuple(self.outputs), tuple(self.nodes), self.constants, {"": self.row.opset})


def _each(ops: str, makes: Makes, *opsets: int, **attributes: Any) -> list[_Row]:
    return [_Row(((op, attributes),), makes, opset) for op in ops.split() for opset in opsets or (18,)]


def _with(
    op: str, makes: Makes, constants: Constants, note: str = "", opset: int = 18, attributes: Mapping[str, Any] | None = None
) -> _Row:
    return _Row(((op, attributes or {}),), makes, opset, (constants,), note)


Step: TypeAlias = tuple[str, Constants, Mapping[str, Any]]
"""An operator of a chain, its inputs other than the previous result, and its attributes."""


def _chain(makes: Makes, *steps: Step) -> _Row:
    return _Row(tuple((op, attributes) for op, _, attributes in steps), makes, 18, tuple(given for _, given, _ in steps))


def _of_one_number() -> Iterator[_Row]:
    one = _of_lines(1)
    yield from _each("Abs Neg Exp Log Sqrt Reciprocal Floor Ceil Elu HardSigmoid LeakyRelu Selu Sigmoid Softplus", one)
    yield from _each("Softsign Tanh Identity ThresholdedRelu Erf Sign IsNaN IsInf Celu HardSwish Round Mish", one)
    yield from _each("Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh Acosh Atanh", one)
    yield from _each("Shrink", one, bias=0.5, lambd=0.75)
    yield from _each("Relu", one, 6, 13, 18)
    yield from _each("Gelu", one, 20)
    yield from _each("Gelu", one, 20, approximate="tanh")
    yield from _each("Swish", one, 24)
    yield from _each("LeakyRelu Elu ThresholdedRelu Celu", one, alpha=2.0)
    yield from _each("Clip", one, 6, min=-1.0, max=1.0)
    yield from (row for given in ({"min": -1.0}, {"max": 1.0}) for row in _each("Clip", one, 6, 9, **given))
    yield from _each("Cast", one, to=DType.FLOAT32.onnx)
    yield from _each("Cast", one, to=DType.FLOAT64.onnx)
    yield from _each("Cast", one, to=DType.FLOAT16.onnx)
    yield from _each("Cast", one, to=DType.BFLOAT16.onnx)
    yield from _each("Cast", one, to=DType.BOOL.onnx)


def _of_several_numbers() -> Iterator[_Row]:
    one, two, three = map(_of_lines, (1, 2, 3))
    yield from _each("Add Sub Mul Div Pow PRelu Equal Less Greater", two)
    yield from _each("LessOrEqual GreaterOrEqual", two)
    yield from _each("Mod", two, fmod=1)
    yield from _each("Mod", two, 28)
    yield from _each("Max Min", one)
    yield from _each("Max Min", two, 8, 12, 18)
    yield from _each("Max Min Sum Mean", three)


def _of_a_constant_and_a_number() -> Iterator[_Row]:
    one = _of_lines(1)
    for note, given in (("", {"low": -1, "high": 1}), ("low", {"low": -1}), ("high", {"low": None, "high": 1})):
        yield _with("Clip", one, given, note)
    yield from (_with(op, one, {"other": 1}, "constant") for op in ("Max", "Min", "Pow", "Mul", "PRelu"))
    yield from (_with(op, one, {"other": 0}, "zero") for op in ("Mul", "Div", "Add", "Sub"))
    yield from (_with(op, one, {LEFT: 0}, "zero_left") for op in ("Mul", "Div", "Sub"))
    yield from (
        _chain(one, (op, {"zero": 0}, {}), ("Not", {}, {})) for op in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")
    )
    yield from (_with(op, one, {"other": np.nan}, "nan") for op in ("Max", "Min"))
    yield _chain(one, ("Less", {"zero": 0}, {}), ("Where", {"a": np.float32(1), "b": np.float32(2)}, {}))


def _folds() -> Iterator[_Row]:
    rows = _of_rows(-1)
    for op in ["ReduceMax", "ReduceMin", "ReduceSum", "ReduceMean", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp"]:
        yield _with(op, rows, {"axis": np.array([1])}, "rows", attributes={"keepdims": 0})
        yield _with(op, _of_columns, {"axis": np.array([0])}, "columns")
    for op in ("ReduceMax", "ReduceMin", "ReduceSumSquare"):
        yield _with(op, rows, {}, "all")
        yield from _each(op, rows, 11, axes=(1,))
    yield from _each("Softmax LogSoftmax", rows, 11, 13)
    yield from _each("Softmax", _of_columns, 13, axis=0)
    yield from _each("LpNormalization", rows, 18, axis=-1)
    one_channel = _of_rows(-1, 1)
    yield _with("InstanceNormalization", one_channel, {"scale": [2], "bias": [1]})
    yield _with("BatchNormalization", one_channel, {"scale": [2], "bias": [1], "mean": [0.5], "variance": [4]})
    yield _with("LayerNormalization", _of_one(64), {"scale": [2] * 64})
    yield _with("RMSNormalization", _of_one(64), {"scale": [2] * 64}, opset=23)


def _poolings() -> Iterator[_Row]:
    windows = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    yield from _each("MaxPool AveragePool LpPool", _of_windows, **windows)
    yield from _each("MaxPool AveragePool", _of_windows, kernel_shape=[2, 2])
    yield from _each("MaxPool", _of_rows(1, -1), kernel_shape=[1])
    yield from _each("GlobalMaxPool GlobalAveragePool", _of_windows)


def _chains() -> Iterator[_Row]:
    """Chains of which engines make one loop: the last operator is then computed by other code than alone."""
    kernel = np.array([1, 0.5, 0.25], np.float32).reshape(1, 1, 3)
    wide = _of_rows(-1, 1)
    conv: Step = ("Conv", {"w": kernel}, {"pads": [1, 1]})
    yield _chain(wide, conv)
    last: list[tuple[str, Constants]] = [
        *((op, {}) for op in ["Relu", "Elu", "HardSigmoid", "LeakyRelu", "Sigmoid", "Tanh", "Sign"]),
        *(("Clip", {"low": 0, "high": 6}), ("Max", {"other": 0}), ("Min", {"other": 1}), ("PRelu", {"other": 0.5})),
    ]
    yield from (_chain(wide, conv, (op, given, {})) for op, given in last)
    fold = {"keepdims": 0}
    yield _chain(wide, conv, ("Relu", {}, {}), ("ReduceMax", {}, fold))
    along: Constants = {"axis": np.array([1])}
    yield from (_chain(_of_rows(-1), (op, given, {}), ("ReduceSum", along, fold)) for op, given in last)
    weights = np.eye(8, dtype=np.float32) + 1
    matmul: Step = ("MatMul", {"w": weights}, {})
    yield from (_chain(_of_one(8), matmul, ("Add", {"bias": 1}, {}), (op, given, {})) for op, given in last[:1] + last[-4:])
    yield _chain(_of_lines(1), ("Mul", {"two": 2}, {}), ("Relu", {}, {}), ("Tanh", {}, {}), ("Neg", {}, {}))


def _made() -> Iterator[SpecialValueCase]:
    for row in (*_of_one_number(), *_of_several_numbers(), *_of_a_constant_and_a_number(), *_folds(), *_poolings()):
        yield from (row.case(dtype) for dtype in FLOATS)
    yield from (row.case(DType.FLOAT32) for row in _chains())


SPECIALS: tuple[SpecialValueCase, ...] = tuple(_made())
"""Every case, under a name of its own."""


def make_special_cases(name: str) -> SpecialValueCase:
    """Return the case of that name."""
    return next(one for one in SPECIALS if one.name == name)
