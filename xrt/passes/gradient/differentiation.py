"""`xrt.gradient`: a Function with the gradients of a value as further outputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from xrt.errors import ModelError, did_you_mean
from xrt.graph import Function
from xrt.graph.gc_pause import pause_gc
from xrt.passes.dead_code_elimination import drop_dead_nodes
from xrt.passes.gradient import rules  # noqa: F401  # they register themselves
from xrt.passes.gradient.expansions import read_before_expansion
from xrt.passes.gradient.preparation import prepare
from xrt.passes.gradient.recording import continue_function
from xrt.passes.gradient.sweep import Sweep, find_active
from xrt.passes.gradient.table import may_have_gradient
from xrt.passes.gradient.tensors import fill_like, zeros_like
from xrt.passes.pipeline import Pass

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor

__all__ = ["Gradient", "gradient"]


@dataclass(frozen=True)
class Gradient(Pass):
    """Append gradients to the outputs: see `gradient`. Its fields are the arguments of that."""

    name: ClassVar[str] = "gradient"
    of: tuple[str, ...] = ()
    with_respect_to: tuple[str, ...] = ()
    seeds: bool = False

    def run(self, function: Function) -> Function:
        return gradient(function, of=self.of or None, with_respect_to=self.with_respect_to or None, seeds=self.seeds)


def gradient(
    function: Function,
    *,
    of: str | Sequence[str] | None = None,
    with_respect_to: str | Sequence[str] | None = None,
    seeds: bool = False,
) -> Function:
    """Return the Function with gradients as further outputs, by reverse-mode differentiation.

    ``of`` names a value, usually the loss; without it the Function must have one output. ``with_respect_to`` names inputs,
    constants (weights) or inner values of floating point; without it these are the inputs of floating point. The outputs
    ``<name>_gradient`` follow the Function's own in that order; a name that is taken gets a number. A value that ``of`` does not
    depend on has a gradient of zeros. Of a tensor, and of several values, the gradient is that of the sum of all elements.

    ``seeds=True`` adds an input ``<name>_seed`` for each value of ``of``, by which its gradient is multiplied: the product of a
    vector and the Jacobian. Applied to its own result, the pass gives second derivatives.

    Operators that have no rule are replaced by their definition. What an If, a Loop or a Scan computes in its body is computed
    again in the body of its gradient; of a Loop and a Scan the carried values of every turn are kept. At a kink the gradient is
    one of those next to it, or between them. Raises ModelError that names the node where an operator on the path has no gradient,
    and for names that are no values of floating point. Linear.
    """
    targets = _names(of) or tuple(value.name for value in function.outputs)
    if of is None and len(targets) != 1:
        known, first = ", ".join(targets) or "none", next(iter(targets), "NAME")
        raise ModelError(f"function {function.name!r} has {len(targets)} outputs ({known}); name one: of={first!r}")
    wanted = _names(with_respect_to) or tuple(
        value.name for value in function.inputs if value.type is not None and may_have_gradient(value.type)
    )
    with pause_gc(function.size):
        return _differentiated(prepare(function, targets, wanted), targets, wanted, seeds)


def _names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names or ())


def _differentiated(function: Function, targets: Sequence[str], wanted: Sequence[str], seeds: bool) -> Function:
    builder, tensors = continue_function(function)
    for what, names in (("of", targets), ("with_respect_to", wanted)):
        for name in names:
            _check_differentiable(what, name, tensors.get(name), function)
    sweep = Sweep(builder, tensors, find_active(function.nodes, wanted, tensors))
    with builder:
        for name in targets:
            sweep.add(name, _seed(builder, tensors[name], seeds))
        sweep.run(function.nodes)
        for value in function.outputs:
            builder.output(tensors[value.name])
        for name in wanted:
            found = sweep.sum(name)
            with builder.scope(f"{name}/gradient"):
                total = zeros_like(tensors[name]) if found is None else found
            builder.output(total, _free_name(builder, f"{name}_gradient"))
    result = builder.function()
    result = read_before_expansion(result)
    return drop_dead_nodes(result.replace(aliases=function.aliases, doc=function.doc, metadata=function.metadata))


def _check_differentiable(what: str, name: str, tensor: Tensor | None, function: Function) -> None:
    if tensor is None:
        known = list(function.value_names())
        raise ModelError(f"{what} names {name!r}, which is no value of function {function.name!r}.{did_you_mean(name, known)}")
    if tensor.type is None or not may_have_gradient(tensor.type):
        shown = "a value of unknown type" if tensor.type is None else str(tensor.type)
        raise ModelError(f"{what} names {name!r}, which is {shown}; only values of floating point have a gradient")


def _seed(builder: Builder, tensor: Tensor, is_input: bool) -> Tensor:
    if not is_input:
        with builder.scope(f"{tensor.name}/gradient"):
            return fill_like(tensor, 1)
    name = _free_name(builder, f"{tensor.name}_seed")
    return builder.input(name, tensor.type)


def _free_name(builder: Builder, base: str) -> str:
    """Return the name, numbered where it is taken; it is not taken by that."""
    name, count = base, 1
    while name in builder.names:
        count += 1
        name = f"{base}_{count}"
    return name
