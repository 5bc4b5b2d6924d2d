"""Functions written to a directory for a person to look at: as text, ONNX and DOT."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xrt.errors import ModelError
from xrt.formats.dot import to_dot
from xrt.formats.onnx import save
from xrt.formats.output import replace_file

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["write"]


def write(stages: Mapping[str, Function], directory: Path) -> None:
    """Write each Function as ``<stage>.txt``, ``.dot`` and, where ONNX can say it, ``.onnx``; the directory is made.

    Large constants are abbreviated in the text; the ONNX file has them in full.
    """
    directory.mkdir(parents=True, exist_ok=True)
    for stage, function in stages.items():
        stem = directory / re.sub(r"[^\w.-]", "_", stage)
        _write_text(stem.with_name(stem.name + ".txt"), str(function))
        _write_text(stem.with_name(stem.name + ".dot"), to_dot(function))
        try:
            save(function, stem.with_name(stem.name + ".onnx"))
        except ModelError as error:
            _write_text(stem.with_name(stem.name + ".onnx.why-not"), f"{error}\n")


def _write_text(path: Path, text: str) -> None:
    data = text.encode("utf-8", "backslashreplace")
    replace_file(path, lambda file: file.write(data))
