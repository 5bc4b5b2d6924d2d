"""The MLIR of a compile in files, one per phase: ``0.onnx.mlir`` as it is handed over, then IREE's, by number and name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xrt.graph import Function

__all__ = ["dumping"]

_FROM_STDIN = "_stdin_."
"""How the compiler begins the names of its files, after the name of its input."""


@contextmanager
def dumping(function: Function, text: str, place: str | None) -> Iterator[Path | None]:
    """Write the module into a folder of the Function's own; yield the folder for the compiler's phases, None for no place.

    What it wrote is left there whether the compile succeeds or not.
    """
    if place is None:
        yield None
        return
    name = re.sub(r"\W+", "_", function.name)
    folder = Path(place).expanduser() / f"{name}-{function.fingerprint[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "0.onnx.mlir").write_text(text, encoding="utf-8")
    try:
        yield folder
    finally:
        for file in folder.glob(f"{_FROM_STDIN}*"):
            file.rename(folder / file.name.removeprefix(_FROM_STDIN))
