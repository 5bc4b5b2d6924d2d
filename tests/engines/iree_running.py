"""Functions for the iree engine, and compiling them on it."""

from __future__ import annotations

from functools import cache
from typing import Any

from tests.engines import written
from tests.engines.written import tensor
from xrt.engines import CompileContext, Executable
from xrt.engines.iree import Iree
from xrt.graph import Function, Node, TensorType
from xrt.passes import infer_shapes

IREE = Iree()
CONTEXT = CompileContext(threads=2)


def function(*nodes: Node, **more: Any) -> Function:
    """Return the Function with all types inferred, as IREE needs them."""
    return infer_shapes(written.function(*nodes, **more))


def one(op_type: str, *shapes: TensorType, **more: Any) -> Function:
    return infer_shapes(written.one(op_type, *shapes, **more))


def compiled(f: Function, engine: Iree = IREE, context: CompileContext = CONTEXT) -> Executable:
    executable = engine.compile(f, context)
    executable.prepare()
    return executable


@cache
def negation() -> Executable:
    """A compile costs half a second; most tests need no more than this one."""
    return compiled(one("Neg", tensor(4, 6)))


def why(f: Function) -> str:
    return IREE.why_not(f.nodes[-1], f) or ""
