"""Corpus entries, helpers to write them in code, and their text format.

A file holds the Function as text, then inputs and expected outputs as Functions that contain only constants:

    # why: what went wrong once
    function main(x: float32[2]) -> (y: float32[2]) { ... }
    %% inputs
    function values() -> (x: float32[2]) { ... }
    %% expected
    function values() -> (y: float32[2]) { ... }

The text is exact for every element type and can be reviewed as a diff.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from xrt.comparison import Comparison, compare_all
from xrt.errors import ModelError
from xrt.formats.text import parse, to_text
from xrt.graph import Constant, DType, Function, Node, SequenceType, TensorType, Type, Value, read_attributes

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class CorpusEntry:
    name: str
    why: str
    """The defect that the entry reproduces, or the mistake that it detects."""
    function: Function
    inputs: tuple[Any, ...]
    """Read-only arrays; `make_inputs` copies them."""
    expected: tuple[Any, ...]

    def __post_init__(self) -> None:
        # All tests of a process share the entries, so a write must fail at once.
        for value in (*self.inputs, *self.expected):
            _freeze(value)

    def make_inputs(self) -> list[Any]:
        """Copy the inputs into writable arrays with the same strides, as a caller would pass them."""
        return [copy.deepcopy(value) for value in self.inputs]

    def judge(self, results: Sequence[Any]) -> Comparison:
        """Compare results with the expected outputs, within the tolerance of a single operator."""
        return compare_all(list(results), list(self.expected), names=[v.name for v in self.function.outputs])


def _freeze(value: Any) -> None:
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    for item in value if isinstance(value, list) else ():
        _freeze(item)


def f32(*numbers: Any) -> Array:
    """Make a float32 array: of the arguments, or of one argument, which is a number or nested lists."""
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.float32)


def i64(*numbers: Any) -> Array:
    """Make an int64 array, with the same arguments as `f32`."""
    return np.array(numbers[0] if len(numbers) == 1 else numbers, np.int64)


def tensor(text: str) -> TensorType:
    """Parse a tensor type such as ``float32[2,N,?]``; ``?`` is an unknown dim.

    >>> str(tensor("float32[2,N,?]"))
    'float32[2,N,?]'
    """
    dtype, _, dims = text.rstrip("]").partition("[")
    return TensorType(DType.parse(dtype), tuple(_parse_dim(dim) for dim in dims.split(",") if dim))


def _parse_dim(text: str) -> int | str | None:
    if text == "?":
        return None
    return int(text) if text.isdigit() else text


def node(
    op: str, inputs: str, outputs: str, *, name: str = "", control: tuple[str, ...] = (), domain: str = "", **attributes: Any
) -> Node:
    """Make a node from space-separated names of inputs and outputs; ``-`` is an absent optional one."""
    input_names, output_names = (tuple("" if name == "-" else name for name in text.split()) for text in (inputs, outputs))
    return Node(op, input_names, output_names, read_attributes(attributes), domain, name, control)


def graph(
    inputs: Mapping[str, str | Type],
    outputs: Mapping[str, str | Type],
    *nodes: Node,
    constants: Mapping[str, Array] | None = None,
    opset: int = 18,
    aliases: tuple[tuple[str, str], ...] = (),
    ml: int | None = None,
) -> Function:
    """Make a Function. A type is a text for `tensor`, or a Type. ``ml`` is the opset version of ai.onnx.ml."""
    weights = {name: Constant(array) for name, array in (constants or {}).items()}
    opsets = {"": opset} if ml is None else {"": opset, "ai.onnx.ml": ml}
    return Function(_make_values(inputs), _make_values(outputs), nodes, weights, opsets, aliases)


def body(inputs: Mapping[str, str | Type], outputs: Mapping[str, str | Type], *nodes: Node, **fields: Any) -> Function:
    """Make a Function to use as a body of control flow; names that it reads but does not define are captured."""
    return graph(inputs, outputs, *nodes, **fields).replace(name="body")


def _make_values(values: Mapping[str, str | Type]) -> tuple[Value, ...]:
    return tuple(Value(name, tensor(type_) if isinstance(type_, str) else type_) for name, type_ in values.items())


def sequence(text: str) -> SequenceType:
    """Make the type of a sequence of tensors; ``text`` is as for `tensor`."""
    return SequenceType(tensor(text))


_WHY = "# why: "


def write_entry(entry: CorpusEntry, folder: Path) -> Path:
    """Write the entry to ``<name>.txt`` in ``folder``, creating the folder if necessary, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs, expected = (to_text(_make_constants(values)) for values in (entry.inputs, entry.expected))
    text = f"{_WHY}{entry.why}\n{to_text(entry.function)}%% inputs\n{inputs}%% expected\n{expected}"
    path = folder / f"{entry.name}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def _make_constants(arrays: Sequence[Any]) -> Function:
    constants = {f"value{i}": Constant(array) for i, array in enumerate(arrays)}
    return Function((), tuple(Value(name, c.type) for name, c in constants.items()), (), constants, name="values")


def read_entry(path: Path) -> CorpusEntry:
    """Read one entry; raises ModelError if the file does not have the format above."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path.name} is no entry of the corpus: it is not UTF-8 text: {error}") from None
    why, _, rest = text.partition("\n")
    # The rest of each separator's line is a label for readers only.
    parts = [part.partition("\n")[2] for part in f"\n{rest}".split("%% ")]
    if not why.startswith(_WHY) or len(parts) != 3:
        raise ModelError(f"{path.name} is no entry of the corpus; it must begin with {_WHY!r} and have two more parts after it")
    function, inputs, expected = (parse(part) for part in parts)
    return CorpusEntry(path.stem, why.removeprefix(_WHY), function, _read_arrays(inputs), _read_arrays(expected))


def _read_arrays(function: Function) -> tuple[Any, ...]:
    for value in function.outputs:
        if value.name not in function.constants:
            raise ModelError(f"the values of an entry are constants, and {value.name!r} is none")
    return tuple(function.constants[value.name].array for value in function.outputs)


def read_entries(folder: Path) -> tuple[CorpusEntry, ...]:
    """Read all entries of a folder, sorted by file name."""
    return tuple(read_entry(path) for path in sorted(folder.glob("*.txt")))
