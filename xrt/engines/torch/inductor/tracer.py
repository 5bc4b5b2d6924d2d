"""Whether the kernel of a node can be traced: tried with tensors that have types and sizes, and no numbers.

Not to be imported but by `support`, which keeps what the import does to the process's environment from being seen.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from xrt.engines.torch.errors import summarize_error
from xrt.engines.torch.inductor.examples import SizeHints
from xrt.engines.torch.program import make_program
from xrt.graph import Function, TensorType, Type

__all__ = ["why_not_traced"]

_UNKNOWN = {
    DataDependentOutputException: "it reads numbers that only a call shows",
    DynamicOutputShapeException: "it gives results whose sizes only a call shows",
}


def why_not_traced(one: Function) -> str | None:
    """Return why the one node of a Function cannot be traced; None when it can."""
    (node,) = one.nodes
    hints = SizeHints()
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    try:
        program = make_program(one)
        with _quiet(), FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode, torch.no_grad():
            inputs = [_fake(mode, value.type, hints) for value in one.inputs]
            template = [
                mode.from_tensor(slot, static_shapes=True) if isinstance(slot, torch.Tensor) else slot
                for slot in program.template
            ]
            replace(program, template=tuple(template))(inputs)
    except Exception as error:  # noqa: BLE001  # torch has many errors for what it does not trace
        cause = error.__cause__ or error
        return f"mode=inductor does not take this {node.op}: {_UNKNOWN.get(type(cause)) or summarize_error(cause)}"
    if shapes.replacements:
        return f"mode=inductor does not take this {node.op}: what it does depends on sizes that only a call shows"
    return None


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from writing a traceback of what it cannot trace: that is the reason here, and no error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _fake(mode: FakeTensorMode, type_: Type | None, hints: SizeHints) -> torch.Tensor:
    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    if type_.is_static:
        return mode.from_tensor(hints.make_example(type_), static_shapes=True)
    kinds = [DimDynamic.STATIC if isinstance(dim, int) else DimDynamic.DYNAMIC for dim in type_.shape]
    return mode.from_tensor(hints.make_example(type_), symbolic_context=StatelessSymbolicContext(kinds))
