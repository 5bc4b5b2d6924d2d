"""Corpus entries in files: a Function as text, and as Functions that only hold constants, its inputs and what must come.

    # why: what went wrong once
    function main(x: float32[2]) -> (y: float32[2]) { ... }
    %% inputs
    function values() -> (x: float32[2]) { ... }
    %% expected
    function values() -> (y: float32[2]) { ... }

The file is plain text, exact for every element type, and its difference can be reviewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.errors import ModelError
from xrt.formats.text import parse, to_text
from xrt.graph import Constant, Function, Value

if TYPE_CHECKING:
    from xrt.testing.corpus.entry import CorpusEntry  # whose package reads entries from files

__all__ = ["read_entries", "read_entry", "write_entry"]

_WHY = "# why: "


def write_entry(entry: CorpusEntry, folder: Path) -> Path:
    """Write the entry to ``<name>.txt`` in a folder, which is made where it is not there, and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs, expected = (to_text(_held(values)) for values in (entry.inputs, entry.expected))
    text = f"{_WHY}{entry.why}\n{to_text(entry.function)}%% inputs\n{inputs}%% expected\n{expected}"
    path = folder / f"{entry.name}.txt"
    path.write_text(text, encoding="utf-8")
    return path


def _held(arrays: Sequence[Any]) -> Function:
    constants = {f"value{i}": Constant(array) for i, array in enumerate(arrays)}
    return Function((), tuple(Value(name, c.type) for name, c in constants.items()), (), constants, name="values")


def read_entry(path: Path) -> CorpusEntry:
    """Read one entry; raises ModelError where the file is not of the form above."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ModelError(f"{path.name} is no entry of the corpus: it is not UTF-8 text: {error}") from None
    why, _, rest = text.partition("\n")
    parts = [part.partition("\n")[2] for part in f"\n{rest}".split("%% ")]
    if not why.startswith(_WHY) or len(parts) != 3:
        raise ModelError(f"{path.name} is no entry of the corpus; it must begin with {_WHY!r} and have two more parts after it")
    from xrt.testing.corpus.entry import CorpusEntry

    function, inputs, expected = (parse(part) for part in parts)
    return CorpusEntry(path.stem, why.removeprefix(_WHY), function, _arrays(inputs), _arrays(expected))


def _arrays(held: Function) -> tuple[Any, ...]:
    for value in held.outputs:
        if value.name not in held.constants:
            raise ModelError(f"the values of an entry are constants, and {value.name!r} is none")
    return tuple(held.constants[value.name].array for value in held.outputs)


def read_entries(folder: Path) -> tuple[CorpusEntry, ...]:
    """Read every entry of a folder, in the order of their names."""
    return tuple(read_entry(path) for path in sorted(folder.glob("*.txt")))
