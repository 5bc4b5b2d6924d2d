"""Passes as values, and the pipeline that a module runs before it partitions: both print, compare and can be listed."""

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
    """A transformation of a Function into one that computes the same. Its fields are its options.

    Derive from it, give it a `name` and write `run`, which returns the Function itself where nothing changes.
    """

    name: ClassVar[str] = ""
    """What a pipeline is written and printed with: ``fold-constants``."""

    def run(self, function: Function) -> Function:
        """Return the transformed Function."""
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
    """Write the Gradient nodes of ai.onnx.preview.training by other operators: see `expand_gradient_nodes`."""

    name: ClassVar[str] = "expand-gradient-nodes"

    def run(self, function: Function) -> Function:
        if "ai.onnx.preview.training" not in function.opsets:
            return function
        from xrt.passes.gradient.differentiation import expand_gradient_nodes  # for models with such nodes alone

        expanded = expand_gradient_nodes(function)
        return function if expanded is function else infer_shapes(expanded)


@dataclass(frozen=True)
class InlineConstantControlFlow(Pass):
    """Inline an If with a constant condition and a Loop of at most one turn, and infer the types again where it did."""

    name: ClassVar[str] = "inline-constant-control-flow"

    def run(self, function: Function) -> Function:
        inlined = inline_constant_control_flow(function)
        return function if inlined is function else infer_shapes(inlined)


@dataclass(frozen=True)
class FoldConstants(Pass):
    """Compute the nodes that depend on constants alone, until nothing changes: see `fold_constants`.

    A Function without bodies needs one turn. In one with bodies, types that follow from a turn may allow another.
    """

    name: ClassVar[str] = "fold-constants"
    evaluate: Evaluate
    """Computes a one-node Function without inputs."""
    is_kept: IsKept | None = None
    """Which DequantizeLinear of constants stay; None for none."""

    def run(self, function: Function) -> Function:
        while (folded := fold_constants(function, self.evaluate, self.is_kept)) is not function:
            if not any(node.bodies for node in folded.nodes):
                return folded
            function = infer_shapes(folded)
            if function is folded:
                break
        return function


@dataclass(frozen=True)
class DropDeadNodes(Pass):
    """Drop what no output needs: see `drop_dead_nodes`."""

    name: ClassVar[str] = "drop-dead-nodes"

    def run(self, function: Function) -> Function:
        return drop_dead_nodes(function)


PASSES = {one.name: one for one in (InferShapes, ExpandGradientNodes, InlineConstantControlFlow, FoldConstants, DropDeadNodes)}
"""The passes that a pipeline may name."""


@dataclass(frozen=True)
class Pipeline:
    """Passes that run one after the other.

    >>> print(Pipeline((InlineConstantControlFlow(), DropDeadNodes())))
    inline-constant-control-flow, drop-dead-nodes
    """

    passes: tuple[Pass, ...]

    def run(self, function: Function, observe: Callable[[Pass, Function], object] | None = None) -> Function:
        """Return the Function after all passes; ``observe`` receives each pass with the Function after it."""
        for one in self.passes:
            function = one.run(function)
            if observe is not None:
                observe(one, function)
        return function

    @classmethod
    def parse(cls, text: str, evaluate: Evaluate) -> Pipeline:
        """Return the pipeline that a list of names with commas describes. ``evaluate`` computes what is folded.

        Raises OptionError for a name that no pass has.
        """
        made = []
        for name in filter(None, map(str.strip, text.split(","))):
            if name not in PASSES:
                raise OptionError(f"there is no pass {name!r}.{did_you_mean(name, PASSES)} There is: {', '.join(PASSES)}")
            kind = PASSES[name]
            wants = any(field.name == "evaluate" for field in dataclasses.fields(kind))
            made.append(kind(evaluate) if wants else kind())  # type: ignore[call-arg]  # of the class that has the field
        return cls(tuple(made))

    def __iter__(self) -> Iterator[Pass]:
        return iter(self.passes)

    def __len__(self) -> int:
        return len(self.passes)

    def __str__(self) -> str:
        return ", ".join(map(str, self.passes))


def make_pipeline(evaluate: Evaluate | None, is_kept: IsKept | None = None) -> Pipeline:
    """Return the pipeline of a module; without ``evaluate`` it folds no constants. The Function's types are inferred already."""
    folding = (FoldConstants(evaluate, is_kept),) if evaluate is not None else ()
    return Pipeline((ExpandGradientNodes(), InlineConstantControlFlow(), *folding, DropDeadNodes()))
