"""One entry of the corpus, and short words to write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xrt.comparison import Comparison, compare_all
from xrt.graph import Constant, DType, Function, Node, SequenceType, TensorType, Type, Value, read_attributes

__all__ = ["Array", "CorpusEntry", "body", "f32", "graph", "i64", "node", "tensor"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CorpusEntry:
    """A model, inputs, the outputs that must come, and what makes it worth keeping."""

    name: str
    why: str
    """What went wrong once, or what is easily got wrong."""
    function: Function
    inputs: tuple[Any, ...]
    """Read-only; `given` makes copies."""
    expected: tuple[Any, ...]

    def __post_init__(self) -> None:
        for value in (*self.inputs, *self.expected):
            _freeze(value)

    def make_inputs(self) -> list[Any]:
        """Return the inputs as a caller would pass them: fresh arrays of the same strides, which a call may update."""
        return [_copied(value) for value in self.inputs]

    def judge(self, results: Sequence[Any]) -> Comparison:
        """Compare results with the expected ones, within the tolerance of one operator."""
        return compare_all(list(results), list(self.expected), names=[v.name for v in self.function.outputs])


def _freeze(value: Any) -> None:
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    for item in value if isinstance(value, list) else ():
        _freeze(item)


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    if isinstance(value, dict):
        return dict(value)
    return value.copy(order="K") if isinstance(value, np.ndarray) else value


def f32(*numbers: Any) -> Array:
    """Return a float32 array; one number alone, which may be a list, is the whole of it."""
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def i64(*numbers: Any) -> Array:
    """Return an int64 array, as `f32` does."""
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int64)


def tensor(text: str) -> TensorType:
    """Return the type that ``float32[2,N,?]`` spells.

    >>> str(tensor("float32[2,N,?]"))
    'float32[2,N,?]'
    """
    kind, _, rest = text.rstrip("]").partition("[")
    return TensorType(DType.parse(kind), tuple(_dim(d) for d in rest.split(",") if d))


def _dim(text: str) -> int | str | None:
    return None if text == "?" else int(text) if text.isdigit() else text


def node(
    op: str, inputs: str, outputs: str, *, name: str = "", control: tuple[str, ...] = (), domain: str = "", **attributes: Any
) -> Node:
    """Return a node whose inputs and outputs are words; a left-out one is ``-``."""
    read, made = (tuple("" if word == "-" else word for word in text.split()) for text in (inputs, outputs))
    return Node(op, read, made, read_attributes(attributes), domain, name, control)


def graph(
    inputs: Mapping[str, str | Type],
    outputs: Mapping[str, str | Type],
    *nodes: Node,
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    aliases: tuple[tuple[str, str], ...] = (),
    ml: int | None = None,
) -> Function:
    """Return a Function whose values have types as `tensor` spells them; a sequence's or an optional's is given as it is.

    ``ml`` is the version of ai.onnx.ml, where the nodes are of that domain.
    """
    held = {name: Constant(array) for name, array in (constants or {}).items()}
    opsets = {"": opset} if ml is None else {"": opset, "ai.onnx.ml": ml}
    return Function(_typed(inputs), _typed(outputs), nodes, held, opsets, aliases)


def body(inputs: Mapping[str, str | Type], outputs: Mapping[str, str | Type], *nodes: Node, **fields: Any) -> Function:
    """Return a Function to be a body; what it reads and does not define, it captures."""
    return graph(inputs, outputs, *nodes, **fields).replace(name="body")


def _typed(values: Mapping[str, str | Type]) -> tuple[Value, ...]:
    return tuple(Value(name, tensor(type_) if isinstance(type_, str) else type_) for name, type_ in values.items())


def sequence(text: str) -> SequenceType:
    """Return the type of a list of tensors that `tensor` spells."""
    return SequenceType(tensor(text))
