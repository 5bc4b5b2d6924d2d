"""Explain why Inductor does not support a node that has a kernel: no compiler, or the kernel cannot be traced.

A kernel can be traced if the operators it calls and the shapes of its results do not depend on data.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from xrt.engines.toolkit.known_issues import KnownIssue, always, match_known_issue
from xrt.engines.torch.dtypes import get_torch_dtype, summarize_error
from xrt.engines.torch.inductor.compiler import why_no_compiler
from xrt.engines.torch.program import TensorProgram, make_program
from xrt.graph import Dim, Function, Node, TensorType, Type
from xrt.graph.node import DOMAIN
from xrt.operators import as_function, is_training

_DRAWS = "mode=inductor does not draw random numbers: its C++ has no form for a generator"
GAPS: tuple[KnownIssue, ...] = (
    KnownIssue(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli", "Multinomial"),
        always,
        _DRAWS,
        ("test_bernoulli_seed",),
    ),
    KnownIssue(
        ("DFT", "STFT"),
        always,
        "mode=inductor does not take Fourier transforms: its C++ has no form for complex numbers",
        ("test_dft", "test_stft"),
    ),
    KnownIssue(("Det",), always, "mode=inductor does not take Det: its C++ has no form for it", ("test_det_2d",)),
    KnownIssue(("Dropout",), is_training, _DRAWS, ("test_training_dropout_default",)),
)
_FOLDER = "TORCHINDUCTOR_CACHE_DIR"


def why_not(node: Node, function: Function) -> str | None:
    """Explain why Inductor does not support a node that has a kernel; None if it does."""
    if reason := why_no_compiler():
        return reason
    if node.domain == DOMAIN:
        return "mode=inductor leaves operators of PyTorch's own to mode=eager"
    for name in (*node.uses, *filter(None, node.outputs)):
        type_ = function.get_type(name)
        if not isinstance(type_, TensorType):
            return f"mode=inductor compiles tensors alone, and {name!r} is {type_}"
        if type_.shape is None:
            return f"mode=inductor needs the number of dimensions of {name!r}"
    return match_known_issue(GAPS, node, function) or _why_not_traced(as_function(node, function))


@lru_cache(maxsize=4096)
def _why_not_traced(isolated: Function) -> str | None:
    """`why_not_traced` without a trace in the environment.

    The first trace creates Inductor's folder and stores its name in a variable. Set the variable to an existing folder and
    remove it afterwards, so that the caller's own compiles use their usual folder.
    """
    is_set = _FOLDER in os.environ
    if not is_set:
        os.environ[_FOLDER] = tempfile.gettempdir()
    try:
        return why_not_traced(isolated)
    finally:
        if not is_set:
            os.environ.pop(_FOLDER, None)


HINTS = (5, 7, 11, 13, 17, 19, 23, 29)
"""Sizes of symbolic dims while tracing: distinct, and neither 0 nor 1, which PyTorch specializes."""


class SizeHints(dict[str, int]):
    """A size per symbol, chosen on first use; each unknown dimension gets another one."""

    def choose(self, dim: Dim) -> int:
        """The size to trace a dimension with: its extent, or a hint per symbol."""
        if isinstance(dim, int):
            return dim
        symbol = f"?{len(self)}" if dim is None else dim
        return self.setdefault(symbol, HINTS[len(self) % len(HINTS)] + len(self) // len(HINTS) * 31)

    def make_example(self, type_: Type | None) -> torch.Tensor:
        """A tensor of zeros of the type."""
        assert isinstance(type_, TensorType)  # checked by `why_not`
        assert type_.shape is not None
        return torch.zeros([self.choose(dim) for dim in type_.shape], dtype=get_torch_dtype(type_.dtype))


class ProgramModule(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A program as a module whose buffers are its constants, which a compiler may fold and pack."""

    def __init__(self, program: TensorProgram) -> None:
        super().__init__()
        self.program = program
        self.slots = [slot for slot, value in enumerate(program.template) if isinstance(value, torch.Tensor)]
        for slot in self.slots:
            self.register_buffer(f"constant{slot}", program.template[slot])

    def forward(self, *inputs: Any) -> tuple[Any, ...]:
        """Compute the outputs; constants and inputs among them are copied."""
        template = list(self.program.template)
        for slot in self.slots:
            template[slot] = getattr(self, f"constant{slot}")
        return tuple(replace(self.program, template=tuple(template))(inputs))


_UNKNOWN = {
    DataDependentOutputException: "it reads numbers that only a call shows",
    DynamicOutputShapeException: "it gives results whose sizes only a call shows",
}


def why_not_traced(isolated: Function) -> str | None:
    """Explain why the single node of a Function cannot be traced; None if it can."""
    (node,) = isolated.nodes
    hints = SizeHints()
    shapes = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    try:
        program = make_program(isolated)
        with _suppress_log(), FakeTensorMode(shape_env=shapes, allow_non_fake_inputs=True) as mode, torch.no_grad():
            inputs = [_make_fake(mode, value.type, hints) for value in isolated.inputs]
            template = [
                mode.from_tensor(slot, static_shapes=True) if isinstance(slot, torch.Tensor) else slot
                for slot in program.template
            ]
            replace(program, template=tuple(template))(inputs)
    except Exception as error:  # noqa: BLE001  # PyTorch raises many kinds of errors here
        cause = error.__cause__ or error
        return f"mode=inductor does not take this {node.op}: {_UNKNOWN.get(type(cause)) or summarize_error(cause)}"
    if shapes.replacements:
        return f"mode=inductor does not take this {node.op}: what it does depends on sizes that only a call shows"
    return None


@contextmanager
def _suppress_log() -> Iterator[None]:
    """Suppress PyTorch's log of failed traces, which are expected here."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _make_fake(mode: FakeTensorMode, type_: Type | None, hints: SizeHints) -> torch.Tensor:
    assert isinstance(type_, TensorType)
    assert type_.shape is not None
    if type_.is_static:
        return mode.from_tensor(hints.make_example(type_), static_shapes=True)
    kinds = [DimDynamic.STATIC if isinstance(dim, int) else DimDynamic.DYNAMIC for dim in type_.shape]
    return mode.from_tensor(hints.make_example(type_), symbolic_context=StatelessSymbolicContext(kinds))
