"""From a graph of AOTAutograd to a Function, and from its results to outputs with the strides and shared memory of PyTorch's.

Compiled code that runs after the graph knows the strides that PyTorch has traced, and which outputs are views of one memory. A
view is made in each call, of the tensor whose memory it shows; a tensor whose axes are in another order in memory is
transposed by the Function, so that nothing is copied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch._prims_common import compute_elementwise_output_logical_to_physical_perm, is_contiguous_or_false

from xrt.builder import Builder
from xrt.builder.record_op import emit
from xrt.errors import ModelError
from xrt.frontends.torch.capture import Leaf
from xrt.frontends.torch.lower import Lowering
from xrt.frontends.torch.symbols import Symbols
from xrt.passes import drop_dead_nodes

if TYPE_CHECKING:
    from torch.fx import GraphModule
    from torch.fx import Node as Call

    from xrt.graph import Function

__all__ = ["LoweredGraph", "lower_graph"]


@dataclass(frozen=True, slots=True)
class LoweredGraph:
    """A Function, with how its inputs and outputs belong to those of the graph that it was made of."""

    function: Function
    inputs: tuple[int, ...]
    """Which placeholder of the graph each input of the Function is."""
    axes: tuple[tuple[int, ...], ...]
    """Of each output of the Function the axes in the order that the graph's tensor has them in, () where it is the same."""
    leaves: tuple[Leaf, ...]
    """The outputs of the graph."""
    viewed: tuple[int, ...]
    """Which outputs of the graph are views instead."""
    views: Callable[..., Sequence[torch.Tensor]] | None
    """Returns these of the values of ``bases``; None where there are none."""
    bases: tuple[Leaf, ...]


def lower_graph(graph: GraphModule, fixed: Mapping[int, torch.Tensor]) -> LoweredGraph:
    """Return the graph as a Function; ``fixed`` has tensors, by the placeholder, that become constants.

    Raises ModelError where it cannot be lowered.
    """
    builder = Builder("graph")
    lowering = Lowering(builder, Symbols({}), keeps_generator=True)
    placeholders = [call for call in graph.graph.nodes if call.op == "placeholder"]
    given: list[int] = []
    with builder:
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if _is_effect_token(call):
                lowering.values[call] = None
            elif index in fixed and isinstance(fake, torch.Tensor) and fake.shape == fixed[index].shape:
                lowering.values[call] = lowering.add_constant(call.name, fixed[index])
            elif isinstance(fake, torch.Tensor):
                lowering.values[call] = lowering.add_input(call.name, fake)
                given.append(index)
        for index, call in enumerate(placeholders):
            fake = call.meta.get("val")
            if isinstance(fake, torch.SymInt | torch.SymFloat):
                if not fake.node.expr.is_number and fake.node.expr not in lowering.symbols.sources:
                    lowering.add_input(call.name, fake)
                    given.append(index)
                lowering.values[call] = lowering.symbols.number(fake)
            elif call not in lowering.values:
                lowering.values[call] = fake
        lowering.run(graph.graph, graph)
        (results,) = next(call.args for call in graph.graph.nodes if call.op == "output")
        outputs = _Outputs(lowering, placeholders)
        viewed, views, bases = _make_views(results, outputs)
        leaves = tuple(Leaf("value") if index in viewed else outputs.add(call) for index, call in enumerate(results))
    return LoweredGraph(drop_dead_nodes(builder.function()), tuple(given), tuple(outputs.axes), leaves, viewed, views, bases)


def _is_effect_token(placeholder: Call) -> bool:
    """Whether AOTAutograd keeps calls in order by this input: it is traced as an empty tensor and None at run time."""
    return any(
        getattr(user.target, "__name__", "") == "with_effects" and user.args[0] is placeholder for user in placeholder.users
    )


@dataclass(slots=True)
class _Outputs:
    """The outputs of a Function in the making: each value is added once; an input, a number or None is none."""

    lowering: Lowering
    placeholders: list[Call]
    axes: list[tuple[int, ...]] = field(default_factory=list)
    _leaves: dict[Call, Leaf] = field(default_factory=dict)

    def add(self, call: Any) -> Leaf:
        if not isinstance(call, torch.fx.Node):
            return Leaf("value", value=call)
        if call not in self._leaves:
            self._leaves[call] = self._add(call)
        return self._leaves[call]

    def _add(self, call: Call) -> Leaf:
        if call in self.placeholders:
            return Leaf("input", self.placeholders.index(call))
        value, fake = self.lowering.values[call], call.meta.get("val")
        if value is None or isinstance(value, bool | int | float):
            return Leaf("value", value=value)
        is_number = not isinstance(fake, torch.Tensor)
        order = () if is_number else _find_memory_order(fake) or ()
        self.axes.append(tuple(order.index(axis) for axis in range(len(order))))
        tensor = value.scalar if is_number else emit("Transpose", value, perm=order) if order else value
        self.lowering.builder.output(tensor, f"output_{len(self.axes)}")
        return Leaf("output", len(self.axes) - 1, is_number=is_number)


# ---------------------------------------------------------------------- views


def _make_views(calls: Sequence[Any], outputs: _Outputs) -> tuple[tuple[int, ...], Callable[..., Any] | None, tuple[Leaf, ...]]:
    """Return which outputs are views, what makes them, and of what; a view that is contiguous and the only one is none."""
    used = Counter(map(_get_storage, dict.fromkeys(calls)))
    sources: dict[int, Call] = {}
    for index, call in enumerate(calls):
        base = _find_base(call) if _get_storage(call) is not None else call
        if base is call or (base not in outputs.placeholders and _find_memory_order(base.meta["val"]) is None):
            continue
        if base in outputs.placeholders or used[_get_storage(call)] > 1 or not is_contiguous_or_false(call.meta["val"]):
            sources[index] = base
    numbers = [call for call in outputs.placeholders if isinstance(call.meta.get("val"), torch.SymInt)]
    if not sources:
        return (), None, ()
    made, read = _make_view_graph([calls[index] for index in sources], [*dict.fromkeys(sources.values()), *numbers])
    return tuple(sources), made.forward, tuple(map(outputs.add, read))


def _find_base(call: Call) -> Call:
    """Return the call that made the memory of a call's tensor: the call itself, unless that is a view."""
    while (parent := _find_parent(call, _get_storage(call))) is not None:
        call = parent
    return call


def _find_parent(call: Call, storage: object) -> Call | None:
    for one in call.all_input_nodes:
        if _get_storage(one) == storage:
            return one
        if isinstance(one.meta.get("val"), list | tuple) and (found := _find_parent(one, storage)) is not None:
            return found  # through an operator that returns several views
    return None


def _get_storage(call: Any) -> object:
    fake = call.meta.get("val") if isinstance(call, torch.fx.Node) else None
    return fake.untyped_storage()._cdata if isinstance(fake, torch.Tensor) and fake.layout is torch.strided else None


def _find_memory_order(fake: torch.Tensor) -> tuple[int, ...] | None:
    """Return the axes of a tensor in the order of its memory, () where that is theirs, None where the memory has gaps."""
    if is_contiguous_or_false(fake):
        return ()
    order, _ = compute_elementwise_output_logical_to_physical_perm(fake)
    return tuple(order) if is_contiguous_or_false(fake.permute(*order)) else None


def _make_view_graph(views: Sequence[Call], inputs: Sequence[Call]) -> tuple[GraphModule, list[Call]]:
    """Return calls as a graph of their own, and the calls that it is given: tensors, and numbers that the Function computes.

    A number that is read from a tensor (``item``) is such an input. Raises ModelError for a view that reads another tensor.
    """
    graph = torch.fx.Graph()
    made = {call: graph.placeholder(call.name) for call in inputs}
    known = {_get_storage(call) for call in inputs}

    def is_given(call: Call) -> bool:
        reads = [one for one in call.all_input_nodes if isinstance(one.meta.get("val"), torch.Tensor)]
        return isinstance(call.meta.get("val"), _NUMBER) and any(one not in made for one in reads)

    def copy(call: Call) -> Call:
        if call in made:
            return made[call]
        if is_given(call):
            with graph.inserting_before(first):
                made[call] = graph.placeholder(call.name)
            return made[call]
        if call.op != "call_function" or (isinstance(call.meta.get("val"), torch.Tensor) and _get_storage(call) not in known):
            raise ModelError(f"an output is a part of a tensor that {call.name} chooses, and no engine gives a view")
        made[call] = graph.node_copy(call, copy)
        return made[call]

    first = graph.output(())
    with graph.inserting_before(first):
        first.args = ([copy(call) for call in views],)
    return torch.fx.GraphModule({}, graph), [call for call, one in made.items() if one.op == "placeholder"]


_NUMBER = (torch.SymInt, torch.SymFloat, torch.SymBool)
