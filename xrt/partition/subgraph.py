"""Part of a Function as a Function of its own: what an engine would be handed if those nodes were a region."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xrt.graph import FrozenDict, Function

__all__ = ["extract_subgraph"]


def extract_subgraph(function: Function, places: Sequence[int], name: str = "part") -> Function:
    """Return the nodes at those places as a closed Function, equal to the body of the launch node that a fold makes of them.

    ``places`` ascend. Linear in what is taken, not in the whole, unless it updates state that other nodes read.
    """
    nodes = [function.nodes[place] for place in places]
    made = {name for node in nodes for name in node.defines}
    read = dict.fromkeys(name for node in nodes for name in node.uses if name not in made)
    own = {node.name for node in nodes}
    ends = {value.name for value in function.outputs}
    inputs = [name for name in read if name not in function.constants]
    outputs = [name for node in nodes for name in node.defines if name in ends or _is_read_outside(function, name, own)]
    return Function(
        inputs=tuple(map(function.value, inputs)),
        outputs=tuple(map(function.value, outputs)),
        nodes=tuple(replace(n, control=tuple(c for c in n.control if c in own)) if n.control else n for n in nodes),
        constants=FrozenDict({name: function.constants[name] for name in read if name in function.constants}),
        opsets=function.opsets,
        aliases=_aliases(function, inputs, outputs, own),
        types=FrozenDict({name: function.types[name] for name in made if name in function.types and name not in outputs}),
        name=name,
    )


def _is_read_outside(function: Function, value: str, own: set[str]) -> bool:
    return any(use.node.name not in own for use in function.users(value))


def _aliases(function: Function, inputs: Sequence[str], outputs: Sequence[str], own: set[str]) -> tuple[tuple[str, str], ...]:
    """Return the updates in place that the part makes in any plan, as `xrt.partition.fold` has them.

    Those are the ones of inputs that nothing else reads, and all of them where nothing runs after the part, such as updates of
    parameters: it waits for whatever else reads its state.
    """
    if not function.aliases:
        return ()
    given, made = set(inputs).difference(value.name for value in function.outputs), set(outputs)
    found = [(before, after) for before, after in function.aliases if before in given and after in made]
    shared = {before for before, _ in found if _is_read_outside(function, before, own)}
    if shared and not _is_last(function, set(inputs), outputs, own):
        return tuple(pair for pair in found if pair[0] not in shared)
    return tuple(found)


def _is_last(function: Function, inputs: set[str], outputs: Sequence[str], own: set[str]) -> bool:
    """Whether nothing runs after the part: no node reads or waits for it, or updates what it reads. Linear in the whole."""
    if any(_is_read_outside(function, name, own) for name in outputs):
        return False
    if any(not own.isdisjoint(node.control) for node in function.nodes if node.name not in own):
        return False
    return all(before not in inputs or after in outputs for before, after in function.aliases)
