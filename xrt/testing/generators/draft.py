"""A Function while it is being generated.

A recipe adds one operator to it, or a few that belong together: it finds or makes the operands, and defines values whose types
and bounds it knows. What steps (rounding, comparing floats, choosing an index) is marked, so that nothing is computed from it
where engines are compared.

Everything random is asked of a `Chooser`, so the same recipes serve hypothesis, which shrinks what it chose, and a
seeded generator, which needs no library. Shapes are concrete while a graph is drafted; some extents are named at the end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np

from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

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

    def want_of(self, kinds: Iterable[DType], low: int = 0, high: int | None = None) -> DraftValue:
        """Return a value of a rank between both and of one of those types that the draft has, else of the first."""
        kinds = tuple(kinds)
        ranks = (low, self.rank if high is None else high)
        return self.want(tuple(kind for kind in kinds if kind in self.dtypes) or kinds[:1], ranks=ranks)

    def want_for(self, x: DraftValue) -> DraftValue:
        """Return a value of the same type that broadcasts to ``x``."""
        return self.want((x.dtype,), broadcastable(self.choose, x.shape))

    def like(self, x: DraftValue, bound: float, *, steps: bool = False) -> DraftValue:
        """Return a value for `node` to define, of the type and shape of ``x``."""
        return self.out(x.dtype, x.shape, bound, steps=steps)

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
        return DraftValue(self.fresh("v"), dtype, shape, bound, leaf=steps)

    def body(self) -> GraphDraft:
        """Return a draft for a body, which sees what this one sees now."""
        return GraphDraft(self.choose, self.dtypes, self.empty, self.rank, parent=self, numbers=self.numbers)

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
INTEGERS = tuple(map(DType.parse, ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")))
