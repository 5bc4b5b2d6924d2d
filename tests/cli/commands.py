"""Models as files, and the lockfiles of commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from xrt.formats import onnx
from xrt.graph import DType, TensorType
from xrt.testing.corpus.entry import graph, node

Command: TypeAlias = Callable[..., tuple[int, str, str]]
"""Takes arguments; returns the exit code, standard output and standard error."""
NEVER = "9900%"
"""What no plan becomes slower by, however busy the machine is."""
BUDGET = ("--budget", "40s", "--gate", "1s")


def write_model(path: Path, shape: tuple[Any, ...], *operators: str) -> str:
    """Write a model of operators in a row, from x to y, and return its path."""
    type_, names = TensorType(DType.FLOAT32, shape), ["x", *(f"v{place}" for place in range(1, len(operators))), "y"]
    nodes = [node(op, names[place], names[place + 1], name=op.lower()) for place, op in enumerate(operators)]
    onnx.save(graph({"x": type_}, {"y": type_}, *nodes), path)
    return str(path)


def alter_lock(lock: Path, change: Any) -> str:
    """Change what a lockfile says, and return its path."""
    facts = json.loads(lock.read_text())
    change(facts)
    lock.write_text(json.dumps(facts))
    return str(lock)
