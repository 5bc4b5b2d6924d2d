"""Passes as frozen dataclasses, and the pipeline that a module runs before partitioning."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xrt.errors import OptionError, did_you_mean
from xrt.passes.constant_folding import fold_constants
from xrt.passes.inlining import drop_dead_nodes, inline_constant_control_flow
from xrt.passes.shape_inference import infer_shapes

if TYPE_CHECKING:
    from xrt.graph import Function
    from xrt.passes.constant_folding import Evaluate, IsKept

__all__ = [
    "PASSES",
    "DropDeadNodes",
    "ExpandGradientNodes",
    "FoldConstants",
    "InferShapes",
    "InlineConstantControlFlow",
    "Pass",
    "Pipeline",
    "make_pipeline",
]


@dataclass(frozen=True)
class Pass:
    """A transformation of a Function into an equivalent one. Its fields are its options.

    To add a pass, derive from this class, set `name` and implement `run`, which returns `function` itself if nothing changes.
    """

    name: ClassVar[str] = ""
    """The name in a pipeline description, such as ``fold-constants``."""

    def run(self, function: Function) -> Function:
        """Transform `function`."""
        raise NotImplementedError(f"{type(self).__name__} has no run()")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class InferShapes(Pass):
    """Infer the types of all values: see `infer_shapes`."""

    name: ClassVar[str] = "infer-shapes"

    def run(self, function: Function) -> Function:
        return infer_shapes(function)


@dataclass(frozen=True)
class ExpandGradientNodes(Pass):
    """Replace the Gradient nodes of ai.onnx.preview.training: see `expand_gradient_nodes`."""

    name: ClassVar[str] = "expand-gradient-nodes"

    def run(self, function: Function) -> Function:
        if "ai.onnx.preview.training" not in function.opsets:
            return function
        from xrt.passes.gradient.differentiation import expand_gradient_nodes  # imported only if needed

        expanded = expand_gradient_nodes(function)
        # The new nodes have no types yet.
        return function if expanded is function else infer_shapes(expanded)


@dataclass(frozen=True)
class InlineConstantControlFlow(Pass):
    """Inline an If with a constant condition or a Loop of at most one iteration, then infer types again."""

    name: ClassVar[str] = "inline-constant-control-flow"

    def run(self, function: Function) -> Function:
        inlined = inline_constant_control_flow(function)
        # Values of an inlined body become more precise in their new context.
        return function if inlined is function else infer_shapes(inlined)


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Evaluate nodes that depend on constants only, until nothing changes: see `fold_constants`."""

    name: ClassVar[str] = "fold-constants"
    evaluate: Evaluate
    """Evaluates a one-node Function without inputs."""
    is_kept: IsKept | None = None
    """Selects DequantizeLinear nodes of constants that must not be folded; None selects none."""

    def run(self, function: Function) -> Function:
        # One round suffices without bodies. With bodies, the types inferred after a round may allow another.
        while (folded := fold_constants(function, self.evaluate, self.is_kept)) is not function:
            if not any(node.bodies for node in folded.nodes):
                return folded
            function = infer_shapes(folded)
            if function is folded:
                break
        return function


@dataclass(frozen=True)
class DropDeadNodes(Pass):
    """Remove nodes that no output depends on: see `drop_dead_nodes`."""

    name: ClassVar[str] = "drop-dead-nodes"

    def run(self, function: Function) -> Function:
        return drop_dead_nodes(function)


PASSES = {one.name: one for one in (InferShapes, ExpandGradientNodes, InlineConstantControlFlow, FoldConstants, DropDeadNodes)}
"""Passes by the name that a pipeline description uses."""


@dataclass(frozen=True)
class Pipeline:
    """Passes that run in sequence.

    >>> print(Pipeline((InlineConstantControlFlow(), DropDeadNodes())))
    inline-constant-control-flow, drop-dead-nodes
    """

    passes: tuple[Pass, ...]

    def run(self, function: Function, observe: Callable[[Pass, Function], object] | None = None) -> Function:
        """Run all passes; call `observe` with each pass and its result."""
        for one in self.passes:
            function = one.run(function)
            if observe is not None:
                observe(one, function)
        return function

    @classmethod
    def parse(cls, text: str, evaluate: Evaluate) -> Pipeline:
        """Build a pipeline from comma-separated pass names. `evaluate` is the evaluator for constant folding.

        Raises OptionError for an unknown name.
        """
        made = []
        for name in filter(None, map(str.strip, text.split(","))):
            if name not in PASSES:
                raise OptionError(f"there is no pass {name!r}.{did_you_mean(name, PASSES)} There is: {', '.join(PASSES)}")
            kind = PASSES[name]
            wants = any(field.name == "evaluate" for field in dataclasses.fields(kind))
            made.append(kind(evaluate) if wants else kind())  # type: ignore[call-arg]  # only classes with that field
        return cls(tuple(made))

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __str__(self) -> str:
        return ", ".join(map(str, self.passes))


def make_pipeline(evaluate: Evaluate | None, is_kept: IsKept | None = None) -> Pipeline:
    """The default pipeline of a module, for a Function with inferred types. Without `evaluate` no constants are folded."""
    folding = (FoldConstants(evaluate, is_kept),) if evaluate is not None else ()
    return Pipeline((ExpandGradientNodes(), InlineConstantControlFlow(), *folding, DropDeadNodes()))
