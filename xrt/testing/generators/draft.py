"""A Function under construction by the generator.

A recipe adds one operator, or a few that belong together: it selects or creates the operands, and defines the results with their
types and bounds. Results of discontinuous operators (rounding, float comparison, argmax) are marked, so that no other node
reads them: engines may rightly differ there, and the difference would spread.

All random choices come from a `Chooser`, so the same recipes work with hypothesis, which can shrink them, and with a seeded
generator. Shapes are concrete while a graph is drafted; some sizes become symbolic dims at the end.
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
"""The opset of all recipes: the first in which all reductions have their axes as an input."""
SIZES = {"N": 3, "M": 2}
"""The sizes of the symbolic dims of generated Functions."""
MAX_ELEMENTS = 20_000
"""Larger values are not selected as operands, because sizes multiply quickly."""
LARGEST = 1e3
"""Recipes keep the magnitude of results below this, so that products do not overflow and tolerances remain meaningful."""


class Chooser(Protocol):
    """The source of random choices."""

    def pick(self, options: Sequence[T]) -> T:
        """Choose one of the options; shrinking prefers the first."""
        ...  # pragma: no cover

    def integer(self, low: int, high: int) -> int:
        """Choose an integer from ``low`` to ``high``, inclusive; shrinking prefers ``low``."""
        ...  # pragma: no cover


class SeededChooser:
    """Random choices from a seed, without hypothesis.

    >>> SeededChooser(0).integer(1, 6) == SeededChooser(0).integer(1, 6)
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
    """A value of a draft, with concrete shape."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    bound: float
    """Upper bound for the magnitude of its elements."""
    leaf: bool = False
    """True if no node may read it, because its operator is discontinuous and engines may rightly differ."""

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


@dataclass(eq=False)
class GraphDraft:
    """The nodes and values generated so far. The draft of a body sees the values of its parent; reading one captures it."""

    choose: Chooser
    dtypes: tuple[DType, ...]
    """Element types of new inputs and constants."""
    empty: bool = True
    """Whether new shapes may have dims of 0."""
    rank: int = 4
    """The largest rank of new shapes."""
    parent: GraphDraft | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[DraftValue] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    values: list[DraftValue] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    # ------------------------------------------------------------------ names

    def fresh(self, prefix: str) -> str:
        """Make a name that is unique in the whole draft, including parents and bodies."""
        return f"{prefix}{next(self.numbers)}"

    # ------------------------------------------------------------------ values

    def visible(self) -> list[DraftValue]:
        """The values that a node of this draft may read: those of the draft, then those of its parents."""
        return self.values + (self.parent.visible() if self.parent else [])

    def find(self, fits: Callable[[DraftValue], bool]) -> DraftValue | None:
        """Choose among the visible values that satisfy ``fits``, preferring the newest; None if there is none."""
        # The newest first, because shrinking prefers the first option: reduced graphs are chains, which are easy to read.
        fitting = [v for v in self.visible() if not v.leaf and v.size <= MAX_ELEMENTS and fits(v)]
        return self.choose.pick(fitting[::-1]) if fitting else None

    def want(
        self, dtypes: Iterable[DType], shape: tuple[int, ...] | None = None, *, ranks: tuple[int, int] | None = None
    ) -> DraftValue:
        """Choose a visible value of one of the types, with the given shape or rank range, or create an input or constant.

        Sometimes creates one although a visible value fits, so that graphs have several inputs.
        """
        low, high = ranks or (0, self.rank)
        kinds = tuple(dtypes)

        def fits(value: DraftValue) -> bool:
            return value.dtype in kinds and low <= value.rank <= high and (shape is None or value.shape == shape)

        # The largest number creates one: shrinking prefers small numbers, and so graphs with few inputs.
        operand = None if self.choose.integer(0, 5) == 5 else self.find(fits)
        return operand or self.add_source(self.choose.pick(kinds), self.shape(low, high) if shape is None else shape)

    def want_of(self, kinds: Iterable[DType], low: int = 0, high: int | None = None) -> DraftValue:
        """Like `want`, for the element types in ``kinds`` that are among `dtypes`, or else the first of ``kinds``.

        The rank is from ``low`` to ``high``.
        """
        kinds = tuple(kinds)
        ranks = (low, self.rank if high is None else high)
        return self.want(tuple(kind for kind in kinds if kind in self.dtypes) or kinds[:1], ranks=ranks)

    def want_for(self, x: DraftValue) -> DraftValue:
        """Choose or create a value of the same type that broadcasts to ``x``."""
        return self.want((x.dtype,), broadcastable(self.choose, x.shape))

    def like(self, x: DraftValue, bound: float, *, steps: bool = False) -> DraftValue:
        """Make an output for `node` with the type and shape of ``x``."""
        return self.out(x.dtype, x.shape, bound, steps=steps)

    def shape(self, low: int = 0, high: int | None = None) -> tuple[int, ...]:
        """Choose a shape with a rank from ``low`` to ``high``; dims are at most 5 and rarely 0."""
        rank = self.choose.integer(low, self.rank if high is None else high)
        # Ordered by what shrinking should prefer; 2 and 3 twice, because they are the sizes of symbolic dims.
        extents = (2, 3, 1, 4, 2, 3, 5, 0) if self.empty else (2, 3, 1, 4, 5)
        return tuple(self.choose.pick(extents) for _ in range(rank))

    def add_source(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        """Add a new input or constant; in a body always a constant, since its operator determines the inputs."""
        if self.parent is None and self.choose.integer(0, 3) < 3:
            return self.input(dtype, shape)
        # Few seeds, chosen as a number: elements that are drawn one by one would exhaust hypothesis' choices.
        return self.constant(list_draft_values(np.random.default_rng(self.choose.integer(0, 99)), dtype, shape))

    def input(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        value = self._add_value(self.fresh("x"), dtype, shape, find_value_bound(dtype))
        self.inputs.append(value)
        return value

    def constant(self, array: Any) -> DraftValue:
        """Add a constant that any node may read."""
        constant = Constant(np.asarray(array))
        name = self.fresh("c")
        self.constants[name] = constant
        floats = constant.array.astype(np.float64) if constant.array.size else np.zeros(1)
        return self._add_value(name, constant.dtype, constant.shape, float(np.abs(floats).max()))

    def int64_list(self, *elements: int) -> str:
        """Add a 1-d int64 constant for a single node, such as axes, a shape or starts. Return its name."""
        return self.int64_constant(elements)

    def int64_constant(self, value: int | tuple[int, ...]) -> str:
        """Add an int64 constant for a single node, 0-d for an int and 1-d for a tuple. Return its name."""
        # Not among the values: other nodes must not compute with axes or shapes.
        name = self.fresh("k")
        self.constants[name] = Constant(np.array(value, np.int64))
        return name

    def _add_value(self, name: str, dtype: DType, shape: tuple[int, ...], bound: float, leaf: bool = False) -> DraftValue:
        value = DraftValue(name, dtype, shape, bound, leaf)
        self.values.append(value)
        return value

    # ------------------------------------------------------------------ nodes

    def node(
        self, op: str, inputs: Sequence[str | DraftValue], *outputs: DraftValue, **attributes: Any
    ) -> tuple[DraftValue, ...]:
        """Add a node, and make its outputs available to other nodes."""
        input_names = tuple(i.name if isinstance(i, DraftValue) else i for i in inputs)
        self.nodes.append(
            Node(op, input_names, tuple(o.name for o in outputs), read_attributes(attributes), name=self.fresh("n"))
        )
        self.values.extend(o for o in outputs if o.name)  # an optional output without a name does not exist
        return outputs

    def out(self, dtype: DType, shape: tuple[int, ...], bound: float, *, steps: bool = False) -> DraftValue:
        """Make an output for `node`; ``steps`` marks the result of a discontinuous operator, which no node may read."""
        return DraftValue(self.fresh("v"), dtype, shape, bound, leaf=steps)

    def body(self) -> GraphDraft:
        """Create a draft for the body of a control flow node. Its nodes may read the values of this draft."""
        return GraphDraft(self.choose, self.dtypes, self.empty, self.rank, parent=self, numbers=self.numbers)

    # ------------------------------------------------------------------ undo

    def mark(self) -> tuple[int, int, int, int]:
        """Return the numbers of nodes, inputs, constants and values, which `undo` restores."""
        return len(self.nodes), len(self.inputs), len(self.constants), len(self.values)

    def undo(self, mark: tuple[int, int, int, int]) -> None:
        """Remove everything that was added since `mark` returned this state."""
        # The counter of names is not reset: a gap is harmless, a name with two meanings is not.
        nodes, inputs, constants, values = mark
        del self.nodes[nodes:], self.inputs[inputs:], self.values[values:]
        for name in list(self.constants)[constants:]:
            del self.constants[name]

    # ------------------------------------------------------------------ result

    def function(self, outputs: Sequence[DraftValue], *, name: str = "main", symbolic: bool = False, **fields: Any) -> Function:
        """Build the Function. With ``symbolic``, some dims of the sizes in `SIZES` become symbolic in the inputs."""
        inputs = tuple(Value(v.name, TensorType(v.dtype, self._name_dims(v.shape) if symbolic else v.shape)) for v in self.inputs)
        # Outputs have unknown dims then: the draft knows their sizes only for its concrete inputs.
        results = tuple(Value(v.name, TensorType(v.dtype, (None,) * v.rank if symbolic else v.shape)) for v in outputs)
        return Function(inputs, results, tuple(self.nodes), self.constants, {"": OPSET}, name=name, **fields)

    def _name_dims(self, shape: tuple[int, ...]) -> tuple[int | str, ...]:
        names = {size: name for name, size in SIZES.items()}
        return tuple(names[d] if d in names and self.choose.integer(0, 1) else d for d in shape)


def find_value_bound(dtype: DType) -> float:
    """Upper bound for the magnitude of generated inputs."""
    return 1.0 if dtype is DType.BOOL or dtype.is_float else 4.0


def list_draft_values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Generate random elements: floats in [-1, 1), small integers, booleans, or short strings."""
    if dtype is DType.STRING:
        return np.asarray(rng.choice(["", "a", "b", "ab"], shape), object)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype.numpy)
    return rng.integers(0 if dtype.text.startswith("u") else -4, 5, shape).astype(dtype.numpy)


def broadcastable(choose: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Choose a shape that broadcasts to ``shape``: leading dims dropped, others set to 1."""
    dims = shape[choose.integer(0, len(shape)) :] if choose.integer(0, 1) else shape
    return tuple(1 if choose.integer(0, 3) == 3 else d for d in dims)


Recipe: TypeAlias = Callable[[GraphDraft], None]

FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = tuple(map(DType.parse, ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")))
