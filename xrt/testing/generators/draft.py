"""A Function under construction by the generator.

A recipe adds one operator, or a few that belong together. It selects or creates the operands, and adds the results with their
types and bounds. No node reads the results of discontinuous operators (rounding, float comparison, argmax): engines may rightly
differ there, and the difference would spread.

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
"""The symbolic dims of generated Functions, and their sizes in the draft."""
MAX_ELEMENTS = 20_000
"""Values with more elements are not selected as operands, because sizes multiply quickly."""
MAX_MAGNITUDE = 1e3
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
    """A `Chooser` that draws from a seed, without hypothesis.

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
    """The nodes and values generated so far. A node in the draft of a body may also read, and so capture, values of `parent`."""

    choose: Chooser
    dtypes: tuple[DType, ...]
    """Element types of new inputs and constants."""
    empty: bool = True
    """Whether new shapes may have dims of 0."""
    rank: int = 4
    """Maximum rank of new shapes."""
    parent: GraphDraft | None = None
    nodes: list[Node] = field(default_factory=list)
    inputs: list[DraftValue] = field(default_factory=list)
    constants: dict[str, Constant] = field(default_factory=dict)
    values: list[DraftValue] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def make_name(self, prefix: str) -> str:
        """Make a name that is unique in the whole draft, including parents and bodies."""
        return f"{prefix}{next(self.numbers)}"

    def list_visible(self) -> list[DraftValue]:
        """List the values that a node of this draft may read: the values of the draft, then those of its parents."""
        return self.values + (self.parent.list_visible() if self.parent else [])

    def pick_visible(self, fits: Callable[[DraftValue], bool]) -> DraftValue | None:
        """Choose among the visible values that satisfy ``fits``; None if there is no such value."""
        # The newest first, because shrinking prefers the first option: reduced graphs are chains, which are easy to read.
        fitting = [v for v in self.list_visible() if not v.leaf and v.size <= MAX_ELEMENTS and fits(v)]
        return self.choose.pick(fitting[::-1]) if fitting else None

    def pick_operand(
        self, dtypes: Iterable[DType], shape: tuple[int, ...] | None = None, *, ranks: tuple[int, int] | None = None
    ) -> DraftValue:
        """Choose a visible value of one of the types, with the given shape or rank range, or create an input or constant.

        Sometimes creates one although a visible value fits, so that graphs have several inputs.
        """
        low, high = ranks or (0, self.rank)
        allowed = tuple(dtypes)

        def fits(value: DraftValue) -> bool:
            return value.dtype in allowed and low <= value.rank <= high and (shape is None or value.shape == shape)

        # 5, the largest number, creates a source: shrinking prefers small numbers, and so graphs with few inputs.
        operand = None if self.choose.integer(0, 5) == 5 else self.pick_visible(fits)
        return operand or self.add_source(self.choose.pick(allowed), self.choose_shape(low, high) if shape is None else shape)

    def pick_operand_of(self, supported: Sequence[DType], low: int = 0, high: int | None = None) -> DraftValue:
        """Pick an operand of rank ``low`` to ``high``. Its type is in ``supported`` and `dtypes`, or else the first supported."""
        dtypes = tuple(dtype for dtype in supported if dtype in self.dtypes) or supported[:1]
        return self.pick_operand(dtypes, ranks=(low, self.rank if high is None else high))

    def pick_broadcastable(self, x: DraftValue) -> DraftValue:
        return self.pick_operand((x.dtype,), choose_broadcastable_shape(self.choose, x.shape))

    def make_like(self, x: DraftValue, bound: float, *, is_discontinuous: bool = False) -> DraftValue:
        return self.make_output(x.dtype, x.shape, bound, is_discontinuous=is_discontinuous)

    def choose_shape(self, low: int = 0, high: int | None = None) -> tuple[int, ...]:
        """Choose a shape with a rank from ``low`` to ``high``; dims are at most 5 and rarely 0."""
        rank = self.choose.integer(low, self.rank if high is None else high)
        # Shrinking prefers the first sizes. 2 and 3 are more likely, because they are the sizes of symbolic dims.
        sizes = (2, 3, 1, 4, 2, 3, 5, 0) if self.empty else (2, 3, 1, 4, 5)
        return tuple(self.choose.pick(sizes) for _ in range(rank))

    def add_source(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        """Add a new input or constant; in a body always a constant, since the control flow node determines the inputs."""
        if self.parent is None and self.choose.integer(0, 3) < 3:
            return self.input(dtype, shape)
        # Choose a seed, since choosing each element would exceed the number of choices that hypothesis allows.
        return self.constant(list_draft_values(np.random.default_rng(self.choose.integer(0, 99)), dtype, shape))

    def input(self, dtype: DType, shape: tuple[int, ...]) -> DraftValue:
        """Add an input; `list_draft_values` generates values within its bound."""
        value = self._add_value(self.make_name("x"), dtype, shape, 1.0 if dtype is DType.BOOL or dtype.is_float else 4.0)
        self.inputs.append(value)
        return value

    def constant(self, array: Any) -> DraftValue:
        constant = Constant(np.asarray(array))
        name = self.make_name("c")
        self.constants[name] = constant
        floats = constant.array.astype(np.float64) if constant.array.size else np.zeros(1)
        return self._add_value(name, constant.dtype, constant.shape, float(np.abs(floats).max()))

    def int64_values(self, value: int | Sequence[int]) -> str:
        """Add an int64 constant for a single node, such as axes, a shape or starts; return its name."""
        # Not added to `values`, because other nodes must not compute with axes or shapes.
        name = self.make_name("k")
        self.constants[name] = Constant(np.array(value, np.int64))
        return name

    def _add_value(self, name: str, dtype: DType, shape: tuple[int, ...], bound: float, leaf: bool = False) -> DraftValue:
        value = DraftValue(name, dtype, shape, bound, leaf)
        self.values.append(value)
        return value

    def node(
        self, op: str, inputs: Sequence[str | DraftValue], *outputs: DraftValue, **attributes: Any
    ) -> tuple[DraftValue, ...]:
        input_names = tuple(i.name if isinstance(i, DraftValue) else i for i in inputs)
        self.nodes.append(
            Node(op, input_names, tuple(o.name for o in outputs), read_attributes(attributes), name=self.make_name("n"))
        )
        self.values.extend(o for o in outputs if o.name)  # an optional output without a name does not exist
        return outputs

    def make_output(self, dtype: DType, shape: tuple[int, ...], bound: float, *, is_discontinuous: bool = False) -> DraftValue:
        """Make an output for `node`. No node may read the result of a discontinuous operator."""
        return DraftValue(self.make_name("v"), dtype, shape, bound, leaf=is_discontinuous)

    def body(self) -> GraphDraft:
        return GraphDraft(self.choose, self.dtypes, self.empty, self.rank, parent=self, numbers=self.numbers)

    def get_mark(self) -> tuple[int, int, int, int]:
        """Return the numbers of nodes, inputs, constants and values, which `undo` restores."""
        return len(self.nodes), len(self.inputs), len(self.constants), len(self.values)

    def undo(self, mark: tuple[int, int, int, int]) -> None:
        """Remove everything that was added since `get_mark` returned ``mark``. Names are not used again."""
        nodes, inputs, constants, values = mark
        del self.nodes[nodes:], self.inputs[inputs:], self.values[values:]
        for name in list(self.constants)[constants:]:
            del self.constants[name]

    def function(self, outputs: Sequence[DraftValue], *, name: str = "main", symbolic: bool = False, **fields: Any) -> Function:
        """Build the Function. With ``symbolic``, some dims of the sizes in `SIZES` become symbolic in the inputs."""
        inputs = tuple(Value(v.name, TensorType(v.dtype, self._name_dims(v.shape) if symbolic else v.shape)) for v in self.inputs)
        # With symbolic inputs, outputs have unknown dims: the draft knows their sizes only for concrete inputs.
        results = tuple(Value(v.name, TensorType(v.dtype, (None,) * v.rank if symbolic else v.shape)) for v in outputs)
        return Function(inputs, results, tuple(self.nodes), self.constants, {"": OPSET}, name=name, **fields)

    def _name_dims(self, shape: tuple[int, ...]) -> tuple[int | str, ...]:
        names = {size: name for name, size in SIZES.items()}
        return tuple(names[d] if d in names and self.choose.integer(0, 1) else d for d in shape)


def list_draft_values(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Generate random elements: floats in [-1, 1), integers up to 4, booleans, or short strings."""
    if dtype is DType.STRING:
        return np.asarray(rng.choice(["", "a", "b", "ab"], shape), object)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if dtype.is_float:
        return np.asarray(rng.uniform(-1, 1, shape)).astype(dtype.numpy)
    return rng.integers(0 if dtype.text.startswith("u") else -4, 5, shape).astype(dtype.numpy)


def choose_broadcastable_shape(choose: Chooser, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Choose a shape that broadcasts to ``shape``: drop leading dims, and set others to 1."""
    dims = shape[choose.integer(0, len(shape)) :] if choose.integer(0, 1) else shape
    return tuple(1 if choose.integer(0, 3) == 3 else d for d in dims)


Recipe: TypeAlias = Callable[[GraphDraft], None]

FLOATS = (DType.FLOAT32, DType.FLOAT64)
INTEGERS = tuple(map(DType.parse, ("int64", "int32", "int8", "uint8", "int16", "uint16", "uint32", "uint64")))
