"""The MLIR of a compile in files, one per phase: ``0.onnx.mlir`` as it is handed over, then IREE's, by number and name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.formats.output import why_not_folder

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["dump_phases", "why_not_dumped"]

_FROM_STDIN = "_stdin_."
"""How the compiler begins the names of its files, after the name of its input."""


def why_not_dumped(place: str) -> str | None:
    """Return why nothing can be written there; None where it can."""
    try:
        return why_not_folder(Path(place).expanduser())
    except RuntimeError as error:  # pathlib's, for a user that it does not find
        return f"there is no such folder: {error}"


@contextmanager
def dump_phases(function: Function, text: str, place: str | None) -> Iterator[Path | None]:
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
