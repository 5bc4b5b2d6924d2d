"""A Function while it is being generated, and recipes that each add one operator to it, or a few that belong together.

A recipe takes a draft, finds or makes what it needs, and defines values whose types and bounds it knows. What steps
(rounding, comparing floats, choosing an index) is marked, so that nothing is computed from it where engines are compared.

Everything random is asked of a `Chooser`, so the same recipes serve hypothesis, which shrinks what it chose, and a
seeded generator, which needs no library. Shapes are concrete while a graph is drafted; some extents are named at the end.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

__all__ = ["FAMILIES", "OPSET", "SIZES", "Chooser", "DraftValue", "GraphDraft", "Recipe", "Seeded", "broadcastable", "gentle"]

T = TypeVar("T")

OPSET = 18
"""Every recipe is written for this opset: the first in which all reductions take their axes as an input."""
SIZES = {"N": 3, "M": 2}
"""What the named extents of a generated Function stand for."""
MOST_ELEMENTS = 20_000
"""Nothing larger is computed with: extents multiply quickly."""
LARGEST = 1e3
"""No value of a generated graph exceeds this, so that no product of products overflows and tolerances keep their meaning."""


class Chooser(Protocol):
    """Where the choices come from."""

    def pick(self, options: Sequence[T]) -> T:
        """Return one of the options; the first is the simplest."""
        ...  # pragma: no cover

    def integer(self, low: int, high: int) -> int:
        """Return an integer between both, inclusive; ``low`` is the simplest."""
        ...  # pragma: no cover


class Seeded:
    """Choices from a seed, without hypothesis.

    >>> Seeded(0).integer(1, 6) == Seeded(0).integer(1, 6)
    True
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, options: Sequence[T]) -> T:
        return options[self._random.randrange(len(options))]

    def integer(self, low: int, high: int) -> int:
        return self._random.randint(low, high)


@dataclass(frozen=True, slots=True)
class DraftValue:
    """A value of the draft."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    bound: float
    """No element is larger than this in magnitude."""
    leaf: bool = False
    """Whether nothing may be computed from it: it steps, and two engines may rightly step at different places."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(eq=False)
class GraphDraft:
    """What has been generated so far. A body's draft sees the values of its parent: using one of them captures it."""

    choose: Chooser
    dtypes: tuple[DType, ...]
    """Element types of fresh inputs and constants."""
    empty: bool = True
    """Whether fresh shapes may hold an extent of zero."""
    rank: int = 4
    """The largest rank of fresh shapes."""
    parent: GraphDraft | None = None
    smooth: bool = True
    """Whether what a stepping operator gives is a leaf."""
    nodes: list[Node] = field(default_factory=list)
    inputs: list[DraftValue] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    values: list[DraftValue] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    # ------------------------------------------------------------------ names

    def fresh(self, prefix: str) -> str:
        """Return a name that nothing of the whole draft has, parents and bodies included."""
        return f"{prefix}{next(self.numbers)}"

    # ------------------------------------------------------------------ values

    def visible(self) -> list[DraftValue]:
        """Return the values that a node of this draft may read, its own first."""
        return self.values + (self.parent.visible() if self.parent else [])

    def find(self, fits: Callable[[DraftValue], bool]) -> DraftValue | None:
        """Return a visible value that fits, the newest being the simplest choice; None where there is none."""
        found = [v for v in self.visible() if not v.leaf and v.size <= MOST_ELEMENTS and fits(v)]
        return self.choose.pick(found[::-1]) if found else None

    def want(
        self, dtypes: Iterable[DType], shape: tuple[int, ...] | None = None, *, ranks: tuple[int, int] | None = None
    ) -> DraftValue:
        """Return a value of one of those types, of that shape or rank; if there is none, a new input or constant.

        Now and then a new one is made all the same, so that graphs have several inputs.
        """
        low, high = ranks or (0, self.rank)
        kinds = tuple(dtypes)

        def fits(value: DraftValue) -> bool:
            return value.dtype in kinds and low <= value.rank <= high and (shape is None or value.shape == shape)

        found = None if self.choose.integer(0, 5) == 5 else self.find(fits)
        return found or self.add_given(self.choose.pick(kinds), self.shape(low, high) if shape is None else shape)

    def shape(self, low: int = 0, high: int | None = None) -> tuple[int, ...]:
        """Return a shape of a rank between both; extents are small, and zero is rare."""
        rank = self.choose.integer(low, self.rank if high is None else high)
        extents = (2, 3, 1, 4, 2, 3, 5, 0) if self.empty else (2, 3, 1, 4, 5)
        return tuple(self.choose.pick(extents) for _ in range(rank))

    def add_given(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        """Return a new input or constant. A body has no inputs of its own choice: it gets a constant."""
        if self.parent is None and self.choose.integer(0, 3) < 3:
            return self.input(dtype, shape)
        return self.constant(list_draft_values(np.random.default_rng(self.choose.integer(0, 99)), dtype, shape))

    def input(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        value = self._known(self.fresh("x"), dtype, shape, find_value_bound(dtype))
        self.inputs.append(value)
        return value

    def constant(self, array: Any) -> DraftValue:
        """Return a new constant that other operators may compute with too."""
        constant = Constant(np.asarray(array))
        name = self.fresh("c")
        self.constants[name] = constant
        wide = constant.array.astype(np.float64) if constant.array.size else np.zeros(1)
        return self._known(name, constant.dtype, constant.shape, float(np.abs(wide).max()))

    def axes(self, *numbers: int) -> str:
        """Return the name of a new list of int64 that only one operator reads: axes, a shape, starts."""
        return self._private(numbers)

    def axis(self, number: int) -> str:
        """Return the name of a new 0-d int64 that only one operator reads."""
        return self._private(number)

    def _private(self, numbers: int | tuple[int, ...]) -> str:
        name = self.fresh("k")
        self.constants[name] = Constant(np.array(numbers, np.int64))
        return name

    def _known(self, name: str, dtype: DType, shape: tuple[int, ...], bound: float, leaf: bool = False) -> DraftValue:
        value = DraftValue(name, dtype, shape, bound, leaf)
        self.values.append(value)
        return value

    # ------------------------------------------------------------------ nodes

    def node(
        self, op: str, inputs: Sequence[str | DraftValue], *outputs: DraftValue, **attributes: Any
    ) -> tuple[DraftValue, ...]:
        """Add a node and make its outputs known."""
        read = tuple(i.name if isinstance(i, DraftValue) else i for i in inputs)
        self.nodes.append(Node(op, read, tuple(o.name for o in outputs), read_attributes(attributes), name=self.fresh("n")))
        self.values.extend(o for o in outputs if o.name)
        return outputs

    def out(self, dtype: DType, shape: tuple[int, ...], bound: float, *, steps: bool = False) -> DraftValue:
        """Return a value for `node` to define; ``steps`` says that it jumps where what it is computed from does not."""
        return DraftValue(self.fresh("v"), dtype, shape, bound, leaf=steps and self.smooth)

    def body(self) -> GraphDraft:
        """Return a draft for a body, which sees what this one sees now."""
        return GraphDraft(self.choose, self.dtypes, self.empty, self.rank, parent=self, smooth=self.smooth, numbers=self.numbers)

    # ------------------------------------------------------------------ a step back

    def mark(self) -> tuple[int, int, int, int]:
        """Return how much there is; `take_back` returns to it."""
        return len(self.nodes), len(self.inputs), len(self.constants), len(self.values)

    def take_back(self, mark: tuple[int, int, int, int]) -> None:
        """Forget what was added since the mark."""
        nodes, inputs, constants, values = mark
        del self.nodes[nodes:], self.inputs[inputs:], self.values[values:]
        for name in list(self.constants)[constants:]:
            del self.constants[name]

    # ------------------------------------------------------------------ the end

    def function(self, outputs: Sequence[DraftValue], *, name: str = "main", named: bool = False, **fields: Any) -> Function:
        """Return the Function; with ``named``, extents of inputs that have the size of a name carry the name."""
        inputs = tuple(Value(v.name, TensorType(v.dtype, self._named(v.shape) if named else v.shape)) for v in self.inputs)
        results = tuple(Value(v.name, TensorType(v.dtype, (None,) * v.rank if named else v.shape)) for v in outputs)
        return Function(inputs, results, tuple(self.nodes), self.constants, {"": OPSET}, name=name, **fields)

    def _named(self, shape: tuple[int, ...]) -> tuple[int | str, ...]:
        names = {size: name for name, size in SIZES.items()}
        return tuple(names[d] if d in names and self.choose.integer(0, 1) else d for d in shape)


def find_value_bound(dtype: DType) -> float:
    """Return how large the elements of a generated tensor may be."""
    if dtype is DType.BOOL:
        return 1.0
    return 1.0 if dtype.is_float else 4.0


def list_draft_values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return random elements: floats between -1 and 1, small integers, truth values, words."""
    if dtype is DType.STRING:
        return np.asarray(rng.choice(["", "a", "b", "ab"], shape), object)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype.numpy)
    low = 0 if dtype.text.startswith("u") else -4
    return rng.integers(low, 5, shape).astype(dtype.numpy)


def broadcastable(choose: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape that broadcasts to the given one: leading extents dropped, others set to one."""
    kept = shape[choose.integer(0, len(shape)) :] if choose.integer(0, 1) else shape
    return tuple(1 if choose.integer(0, 3) == 3 else d for d in kept)


Recipe: TypeAlias = Callable[[GraphDraft], None]

FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = (DType.INT64, DType.INT32)

# bound of the result, from the bound of what is read; every one of these has a slope of at most 1 or so
_UNARY: dict[str, Callable[[float], float]] = {
    "Relu": lambda b: b,
    "Neg": lambda b: b,
    "Abs": lambda b: b,
    "Tanh": lambda b: 1.0,
    "Sigmoid": lambda b: 1.0,
    "Erf": lambda b: 1.0,
    "Identity": lambda b: b,
    "LeakyRelu": lambda b: b,
    "Softplus": lambda b: b + 1.0,
    "HardSigmoid": lambda b: 1.0,
    "Softsign": lambda b: 1.0,
    "Sin": lambda b: 1.0,
    "Cos": lambda b: 1.0,
}
_FLOAT32_ONLY = frozenset({"Erf", "Softplus", "HardSigmoid", "Softsign", "Sin", "Cos"})
"""Operators for which engines commonly have no float64 kernel."""


_GENTLE = ("Relu", "Neg", "Tanh", "Abs", "Sigmoid")
"""Operators for float32 and float64 alike that every engine has."""


def gentle(draft: GraphDraft, x: DraftValue) -> DraftValue:
    """Add a unary operator that keeps the type, and return its result; for the inside of bodies."""
    op = draft.choose.pick(_GENTLE) if x.dtype.is_float else "Identity"
    return draft.node(op, [x], draft.out(x.dtype, x.shape, _UNARY[op](x.bound)))[0]


def _kinds(draft: GraphDraft, kinds: tuple[DType, ...]) -> tuple[DType, ...]:
    """Return those of the kinds that the draft deals in; the first kind where it deals in none."""
    return tuple(k for k in kinds if k in draft.dtypes) or kinds[:1]


def _float(draft: GraphDraft, **wanted: object) -> DraftValue:
    return draft.want(_kinds(draft, FLOATS), **wanted)  # type: ignore[arg-type]  # passed on as they are


# ---------------------------------------------------------------------- elementwise


def unary(draft: GraphDraft) -> None:
    op = draft.choose.pick(list(_UNARY))
    x = draft.want((DType.FLOAT32,)) if op in _FLOAT32_ONLY else _float(draft)
    draft.node(op, [x], draft.out(x.dtype, x.shape, _UNARY[op](x.bound)))


def clip(draft: GraphDraft) -> None:
    """Clip, one of whose bounds may be left out."""
    x = _float(draft)
    low, high = (draft.constant(x.dtype.numpy.type(value)) for value in (-0.5, 0.5))
    forms: list[list[DraftValue | str]] = [[x, low, high], [x, "", high], [x, low]]
    given = draft.choose.pick(forms)
    draft.node("Clip", given, draft.out(x.dtype, x.shape, max(x.bound, 0.5)))


def binary(draft: GraphDraft) -> None:
    """An arithmetic operator on two values, one of which broadcasts."""
    x = draft.want(_kinds(draft, (*FLOATS, *INTEGERS)))
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    _arithmetic(draft, x, y, x.shape)


def twice(draft: GraphDraft) -> None:
    """An operator that reads the same value in both places."""
    x = draft.want(_kinds(draft, (*FLOATS, *INTEGERS)))
    _arithmetic(draft, x, x, x.shape)


def _arithmetic(draft: GraphDraft, x: DraftValue, y: DraftValue, shape: tuple[int, ...]) -> None:
    bounds = {"Add": x.bound + y.bound, "Sub": x.bound + y.bound, "Mul": x.bound * y.bound}
    if x.dtype.is_float:
        bounds |= {"Max": max(x.bound, y.bound), "Min": max(x.bound, y.bound)}
    op = draft.choose.pick([name for name in bounds if bounds[name] <= LARGEST] or ["Sub"])
    if bounds[op] > LARGEST:
        return
    left, right = (x, y) if draft.choose.integer(0, 1) else (y, x)
    draft.node(op, [left, right], draft.out(x.dtype, shape, bounds[op]))


def variadic(draft: GraphDraft) -> None:
    """Sum of one to four values, some of them the same."""
    x = draft.want((DType.FLOAT32,))
    others = [draft.want((x.dtype,), x.shape) for _ in range(draft.choose.integer(0, 3))]
    bound = x.bound + sum(v.bound for v in others)
    if bound <= LARGEST:
        draft.node("Sum", [x, *others], draft.out(x.dtype, x.shape, bound))


def logic(draft: GraphDraft) -> None:
    x = draft.want((DType.BOOL,))
    op = draft.choose.pick(["Not", "And", "Or", "Xor"])
    others = [] if op == "Not" else [draft.want((DType.BOOL,), broadcastable(draft.choose, x.shape))]
    draft.node(op, [x, *others], draft.out(DType.BOOL, x.shape, 1.0))


def compare_integers(draft: GraphDraft) -> None:
    x = draft.want(INTEGERS)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    draft.node(draft.choose.pick(["Less", "Equal", "Greater"]), [x, y], draft.out(DType.BOOL, x.shape, 1.0))


def where(draft: GraphDraft) -> None:
    x = _float(draft)
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    condition = draft.want((DType.BOOL,), broadcastable(draft.choose, x.shape))
    draft.node("Where", [condition, x, y], draft.out(x.dtype, x.shape, max(x.bound, y.bound)))


def cast(draft: GraphDraft) -> None:
    """A cast that loses nothing, or from float64 to float32."""
    x = draft.want(_kinds(draft, (DType.INT64, DType.INT32, DType.BOOL, *FLOATS)))
    to = draft.choose.pick([DType.FLOAT32, DType.FLOAT64] if x.dtype.is_float else [DType.FLOAT32, DType.INT64, DType.INT32])
    draft.node("Cast", [x], draft.out(to, x.shape, x.bound), to=to.onnx)


# ---------------------------------------------------------------------- reductions, products, windows


def reduce(draft: GraphDraft) -> None:
    x = draft.want(_kinds(draft, FLOATS), ranks=(1, draft.rank))
    axes = [a for a in range(x.rank) if draft.choose.integer(0, 1)] or [x.rank - 1]
    count = math.prod(x.shape[a] for a in axes)
    ops = {"ReduceSum": count * x.bound} | (
        {} if count == 0 else dict.fromkeys(("ReduceMean", "ReduceMax", "ReduceMin"), x.bound)
    )
    op = draft.choose.pick(list(ops))
    if ops[op] > LARGEST:
        return
    keep = draft.choose.integer(0, 1)
    shape = tuple(1 if a in axes else d for a, d in enumerate(x.shape) if keep or a not in axes)
    signed = [a - x.rank if draft.choose.integer(0, 1) else a for a in axes]
    draft.node(op, [x, draft.axes(*signed)], draft.out(x.dtype, shape, max(ops[op], 0.0)), keepdims=keep)


def softmax(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    draft.node("Softmax", [x], draft.out(x.dtype, x.shape, 1.0), axis=draft.choose.integer(0, x.rank - 1))


def cumsum(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if (bound := x.bound * max(x.shape[axis], 1)) <= LARGEST:
        draft.node("CumSum", [x, draft.axis(axis)], draft.out(x.dtype, x.shape, bound))


def matmul(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(2, draft.rank))
    inner = x.shape[-1]
    y = draft.want((x.dtype,), (inner, draft.choose.pick((2, 3, 1, 4))))
    if (bound := x.bound * y.bound * max(inner, 1)) <= LARGEST:
        draft.node("MatMul", [x, y], draft.out(x.dtype, (*x.shape[:-1], y.shape[-1]), bound))


def gemm(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(2, 2))
    rows, inner = x.shape
    columns, transposed = draft.choose.pick((2, 3, 4)), draft.choose.integer(0, 1)
    y = draft.want((x.dtype,), (columns, inner) if transposed else (inner, columns))
    biases = [draft.want((x.dtype,), (columns,))] if draft.choose.integer(0, 1) else []
    if (bound := x.bound * y.bound * max(inner, 1) + sum(b.bound for b in biases)) <= LARGEST:
        draft.node("Gemm", [x, y, *biases], draft.out(x.dtype, (rows, columns), bound), transB=transposed)


def _image(draft: GraphDraft) -> DraftValue:
    """Return a value of rank 4 that windows of three by three fit in."""
    large = draft.find(lambda v: v.dtype is DType.FLOAT32 and v.rank == 4 and min(v.shape) > 0 and min(v.shape[2:]) >= 3)
    shape = tuple(draft.choose.pick(sizes) for sizes in ((1, 2), (2, 1, 3), (4, 3, 5), (4, 3)))
    return large or draft.add_given(DType.FLOAT32, shape)


def conv(draft: GraphDraft) -> None:
    x = _image(draft)
    maps, kernel, pad = draft.choose.pick((2, 1, 3)), draft.choose.pick((3, 1)), draft.choose.integer(0, 1)
    w = draft.want((DType.FLOAT32,), (maps, x.shape[1], kernel, kernel))
    biases = [draft.want((DType.FLOAT32,), (maps,))] if draft.choose.integer(0, 1) else []
    bound = x.bound * w.bound * x.shape[1] * kernel**2 + sum(b.bound for b in biases)
    if bound <= LARGEST:
        shape = (x.shape[0], maps, *(d + 2 * pad - kernel + 1 for d in x.shape[2:]))
        draft.node("Conv", [x, w, *biases], draft.out(x.dtype, shape, bound), pads=[pad] * 4, kernel_shape=[kernel] * 2)


def pool(draft: GraphDraft) -> None:
    x = _image(draft)
    op, stride = draft.choose.pick(["MaxPool", "AveragePool"]), draft.choose.integer(1, 2)
    shape = (*x.shape[:2], *((d - 2) // stride + 1 for d in x.shape[2:]))
    draft.node(op, [x], draft.out(x.dtype, shape, x.bound), kernel_shape=[2, 2], strides=[stride] * 2)


def dropout(draft: GraphDraft) -> None:
    """Dropout outside of training: what it reads, and a mask that may be left out; so may the ratio."""
    x = draft.want((DType.FLOAT32,))
    ratio, training = draft.constant(np.float32(0.5)), draft.constant(np.array(False))
    forms: list[list[DraftValue | str]] = [[x], [x, ratio], [x, "", training]]
    given = draft.choose.pick(forms)
    out, mask = draft.out(x.dtype, x.shape, x.bound), draft.out(DType.BOOL, x.shape, 1.0)
    draft.node("Dropout", given, *draft.choose.pick([(out,), (out, mask)]))


# ---------------------------------------------------------------------- shapes


def _anything(draft: GraphDraft, low: int = 0) -> DraftValue:
    return draft.want(draft.dtypes, ranks=(low, draft.rank))


def transpose(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    order = list(range(x.rank))
    for last in range(x.rank - 1, 0, -1):
        other = draft.choose.integer(0, last)
        order[last], order[other] = order[other], order[last]
    draft.node("Transpose", [x], draft.out(x.dtype, tuple(x.shape[a] for a in order), x.bound), perm=order)


def reshape(draft: GraphDraft) -> None:
    x = _anything(draft)
    if x.size == 0:
        return
    first = draft.choose.pick([d for d in range(1, x.size + 1) if x.size % d == 0])
    shape, asked = draft.choose.pick(
        [((x.size,), (-1,)), ((first, x.size // first), (first, -1)), ((1, first, x.size // first), (1, first, x.size // first))]
    )
    draft.node("Reshape", [x, draft.axes(*asked)], draft.out(x.dtype, shape, x.bound))


def flatten(draft: GraphDraft) -> None:
    x = _anything(draft)
    axis = draft.choose.integer(0, x.rank)
    draft.node("Flatten", [x], draft.out(x.dtype, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])), x.bound), axis=axis)


def unsqueeze(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes, ranks=(0, draft.rank - 1))
    axis = draft.choose.integer(0, x.rank)
    draft.node("Unsqueeze", [x, draft.axes(axis)], draft.out(x.dtype, (*x.shape[:axis], 1, *x.shape[axis:]), x.bound))


def squeeze(draft: GraphDraft) -> None:
    x = draft.find(lambda v: 1 in v.shape)
    if x is not None:
        axis = x.shape.index(1)
        draft.node("Squeeze", [x, draft.axes(axis)], draft.out(x.dtype, x.shape[:axis] + x.shape[axis + 1 :], x.bound))


def expand(draft: GraphDraft) -> None:
    x = _anything(draft)
    shape = (draft.choose.integer(1, 3), *x.shape) if x.rank < draft.rank else x.shape
    draft.node("Expand", [x, draft.axes(*shape)], draft.out(x.dtype, shape, x.bound))


def tile(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    times = [draft.choose.integer(1, 2) for _ in x.shape]
    draft.node(
        "Tile", [x, draft.axes(*times)], draft.out(x.dtype, tuple(d * t for d, t in zip(x.shape, times, strict=True)), x.bound)
    )


def slice_(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)
    start, stop = draft.choose.integer(0, x.shape[axis]), draft.choose.integer(-1, x.shape[axis] + 1)
    kept = len(range(x.shape[axis])[start:stop])
    if kept == 0 and not draft.empty:
        return
    shape = (*x.shape[:axis], kept, *x.shape[axis + 1 :])
    draft.node("Slice", [x, draft.axes(start), draft.axes(stop), draft.axes(axis)], draft.out(x.dtype, shape, x.bound))


def pad(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    before, after = ([draft.choose.integer(0, 1) for _ in x.shape] for _ in range(2))
    shape = tuple(b + d + a for b, d, a in zip(before, x.shape, after, strict=True))
    draft.node("Pad", [x, draft.axes(*before, *after)], draft.out(x.dtype, shape, x.bound))


def gather(draft: GraphDraft) -> None:
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.shape[axis] == 0:
        return
    picked = [draft.choose.integer(-x.shape[axis], x.shape[axis] - 1) for _ in range(draft.choose.integer(1, 3))]
    shape = (*x.shape[:axis], len(picked), *x.shape[axis + 1 :])
    draft.node("Gather", [x, draft.axes(*picked)], draft.out(x.dtype, shape, x.bound), axis=axis)


def shape_operator(draft: GraphDraft) -> None:
    x = _anything(draft, 1)
    draft.node("Shape", [x], draft.out(DType.INT64, (x.rank,), float(max(*x.shape, 1))))


def concat(draft: GraphDraft) -> None:
    """Concat of one to three values, the same one more than once where nothing else fits."""
    x = _anything(draft, 1)
    axis = draft.choose.integer(0, x.rank - 1)

    def fits(v: DraftValue) -> bool:
        others = [pair for i, pair in enumerate(zip(v.shape, x.shape, strict=False)) if i != axis]
        return v.dtype is x.dtype and v.rank == x.rank and all(a == b for a, b in others)

    parts = [x, *(draft.find(fits) or x for _ in range(draft.choose.integer(0, 2)))]
    shape = (*x.shape[:axis], sum(p.shape[axis] for p in parts), *x.shape[axis + 1 :])
    draft.node("Concat", parts, draft.out(x.dtype, shape, max(p.bound for p in parts)), axis=axis)


def split(draft: GraphDraft) -> None:
    """Split into two or three, each an output of its own."""
    x = draft.want(draft.dtypes, ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.shape[axis] < 2:
        return
    first = draft.choose.integer(1, x.shape[axis] - 1)
    sizes = [first, x.shape[axis] - first]
    outs = [draft.out(x.dtype, (*x.shape[:axis], size, *x.shape[axis + 1 :]), x.bound) for size in sizes]
    draft.node("Split", [x, draft.axes(*sizes)], *outs, axis=axis)


# ---------------------------------------------------------------------- what steps


def rounding(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    op = draft.choose.pick(["Round", "Floor", "Ceil"])
    draft.node(op, [x], draft.out(x.dtype, x.shape, x.bound + 1, steps=True))


def cast_to_integers(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    to = draft.choose.pick([DType.INT32, DType.INT64])
    draft.node("Cast", [x], draft.out(to, x.shape, x.bound, steps=True), to=to.onnx)


def threshold(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,))
    y = draft.want((x.dtype,), broadcastable(draft.choose, x.shape))
    draft.node(draft.choose.pick(["Less", "Greater"]), [x, y], draft.out(DType.BOOL, x.shape, 1.0, steps=True))


def arg(draft: GraphDraft) -> None:
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis, keep = draft.choose.integer(0, x.rank - 1), draft.choose.integer(0, 1)
    if x.size == 0:
        return
    shape = (*x.shape[:axis], *([1] if keep else []), *x.shape[axis + 1 :])
    op = draft.choose.pick(["ArgMax", "ArgMin"])
    draft.node(op, [x], draft.out(DType.INT64, shape, max(x.shape), steps=True), axis=axis, keepdims=keep)


def top(draft: GraphDraft) -> None:
    """TopK, whose values are smooth and whose indices step."""
    x = draft.want((DType.FLOAT32,), ranks=(1, draft.rank))
    axis = draft.choose.integer(0, x.rank - 1)
    if x.size == 0:
        return
    k = draft.choose.integer(1, x.shape[axis])
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    values, indices = draft.out(x.dtype, shape, x.bound), draft.out(DType.INT64, shape, max(x.shape), steps=True)
    draft.node("TopK", [x, draft.axes(k)], values, indices, axis=axis)


FAMILIES: dict[str, tuple[Recipe, ...]] = {
    "elementwise": (unary, binary, twice, unary, binary, clip, variadic, logic, compare_integers, where, cast, dropout),
    "reduction": (reduce, softmax, cumsum),
    "product": (matmul, gemm),
    "window": (conv, pool),
    "shape": (transpose, reshape, flatten, unsqueeze, squeeze, expand, tile, slice_, pad, gather, shape_operator, concat, split),
    "stepping": (rounding, cast_to_integers, threshold, arg, top),
}
"""What a generated graph may be made of; control flow, which has bodies, is in `xrt.testing.generators.structured`."""
