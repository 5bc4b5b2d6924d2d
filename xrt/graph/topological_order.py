"""The one topological order of a Function's nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from xrt.errors import ModelError

if TYPE_CHECKING:
    from xrt.graph.node import Node

__all__ = ["canonical_order"]


def canonical_order(nodes: Sequence[Node], producer: Mapping[str, int], outputs: Sequence[str]) -> list[int]:
    """Return the nodes' indices in depth-first post-order from the outputs.

    Each node is visited after the nodes that it reads from (inputs in order, then captures, then control predecessors),
    so the order depends on how the graph hangs together and not on how it was listed or named. Nodes that no output
    needs follow in the order of their listing. Raises ModelError that names a cycle, or a control predecessor that is
    not there. Linear in nodes and edges.
    """
    before = _predecessors(nodes, producer)
    order: list[int] = []
    state = bytearray(len(nodes))  # 0 unseen, 1 on the path, 2 done
    roots = [producer[name] for name in outputs if name in producer]
    for root in (*roots, *range(len(nodes))):
        if state[root]:
            continue
        state[root] = 1
        path = [(root, iter(before[root]))]
        while path:
            node, rest = path[-1]
            for earlier in rest:
                if state[earlier] == 0:
                    state[earlier] = 1
                    path.append((earlier, iter(before[earlier])))
                    break
                if state[earlier] == 1:
                    raise _cycle([n for n, _ in path], earlier, nodes)
            else:
                path.pop()
                state[node] = 2
                order.append(node)
    return order


def _predecessors(nodes: Sequence[Node], producer: Mapping[str, int]) -> list[list[int]]:
    by_name: dict[str, int] | None = None
    before = []
    for node in nodes:
        mine = [producer[name] for name in node.uses if name in producer]
        if node.control:
            if by_name is None:
                by_name = {n.name: i for i, n in enumerate(nodes)}
            for name in node.control:
                if name not in by_name:
                    raise ModelError(f"node {node.name!r} must run after node {name!r}, which is not in the function")
                mine.append(by_name[name])
        before.append(mine)
    return before


def _cycle(path: list[int], back_to: int, nodes: Sequence[Node]) -> ModelError:
    loop = [nodes[i] for i in path[path.index(back_to) :]]
    shown = " -> ".join(f"{n.name} ({n.op})" for n in (*loop[:6], loop[0]))
    return ModelError(f"the graph has a cycle of {len(loop)} node(s): {shown}; a function must be acyclic")
