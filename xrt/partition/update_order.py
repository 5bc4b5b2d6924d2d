"""The order of regions in which updates of state come after whatever else reads it, as far as values allow it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from heapq import heappop, heappush

__all__ = ["schedule_updates"]


def schedule_updates(successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]]) -> list[int]:
    """Return the position of each number in an order that keeps the edges and as many waits as it finds.

    ``successors`` has, by number, the numbers that come after it, each once; they hang together without a cycle. ``waits`` has
    those for which a number should wait. Where waits and edges make a cycle some waits are given up; first those of the numbers
    from which the others of the cycle follow. O((n + edges + waits) log n).
    """
    order, is_complete = _sort(successors, waits, [0] * len(successors))
    if not is_complete:
        order, _ = _sort(successors, waits, _rank_cycles(successors, waits))
    positions = [0] * len(successors)
    for position, number in enumerate(order):
        positions[number] = position
    return positions


def _sort(  # noqa: C901, PLR0912
    successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]], ranks: Sequence[int]
) -> tuple[list[int], bool]:
    """Return the numbers in order, and whether all waits are kept; where none can go on, one of the least rank does."""
    waiters: dict[int, list[int]] = {}
    missing, awaited = [0] * len(successors), [0] * len(successors)
    for edges in successors:
        for later in edges:
            missing[later] += 1
    for number, earlier in waits.items():
        awaited[number] = len(earlier)
        for one in earlier:
            waiters.setdefault(one, []).append(number)
    released = [number for number, count in enumerate(missing) if not count]
    held: list[tuple[int, int]] = []
    order: list[int] = []
    done = [False] * len(successors)
    is_complete = True
    while released or held:
        if released:
            number = released.pop()
            if awaited[number]:
                heappush(held, (ranks[number], number))
                continue
        else:
            number = heappop(held)[1]
            is_complete = is_complete and done[number]
        if done[number]:
            continue  # its waits ended after it was held
        done[number] = True
        order.append(number)
        for later in successors[number]:
            missing[later] -= 1
            if not missing[later]:
                released.append(later)
        for waiter in waiters.get(number, ()):
            awaited[waiter] -= 1
            if not awaited[waiter] and not missing[waiter] and not done[waiter]:
                released.append(waiter)
    return order, is_complete


def _rank_cycles(successors: Sequence[Collection[int]], waits: Mapping[int, Collection[int]]) -> list[int]:
    """Return for each number the position of its strongly connected component, in an order that keeps what is between them.

    Kosaraju's algorithm over the edges and waits. Linear.
    """
    after = [list(later) for later in successors]
    for number, earlier in waits.items():
        for one in earlier:
            after[one].append(number)
    before: list[list[int]] = [[] for _ in after]
    for number, later in enumerate(after):
        for one in later:
            before[one].append(number)
    ranks = [-1] * len(after)
    for rank, number in enumerate(reversed(_list_finished(after))):
        waiting = [number] if ranks[number] < 0 else []
        while waiting:
            one = waiting.pop()
            if ranks[one] < 0:
                ranks[one] = rank
                waiting += before[one]
    return ranks


def _list_finished(after: Sequence[Sequence[int]]) -> list[int]:
    """Return the numbers in the order in which a depth-first search is done with them."""
    order: list[int] = []
    seen = [False] * len(after)
    for root in range(len(after)):
        path = [] if seen[root] else [(root, iter(after[root]))]
        seen[root] = True
        while path:
            number, rest = path[-1]
            new = next((one for one in rest if not seen[one]), None)
            if new is None:
                order.append(number)
                path.pop()
            else:
                seen[new] = True
                path.append((new, iter(after[new])))
    return order
