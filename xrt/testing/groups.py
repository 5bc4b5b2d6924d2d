"""The groups of tests that the installed ``onnx`` package holds, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from xrt.errors import OptionError, did_you_mean
from xrt.testing.cases import Case, matches, node_cases
from xrt.testing.stored import light_cases, stored_cases

__all__ = ["GROUPS", "cases_of"]

GROUPS: Mapping[str, Callable[[], Sequence[Case]]] = MappingProxyType(
    {
        "node": node_cases,
        **{name: partial(stored_cases, name) for name in ("simple", "pytorch-operator", "pytorch-converted")},
        "light": light_cases,
    }
)
"""What makes the cases of each group. Those of ``node`` are one operator each, or the expansion of one; the others are models."""


def cases_of(groups: Sequence[str] = (), pattern: str = "*", *, shard: tuple[int, int] = (0, 1)) -> tuple[Case, ...]:
    """Return the cases of the groups (of all, when none is named) whose names match, or the i-th of n shares of them.

    A share takes every n-th case, so that it has some of every group and of every family of operators. Raises
    OptionError for a group or a share that there is not.
    """
    for name in groups:
        if name not in GROUPS:
            raise OptionError(f"there is no group {name!r}.{did_you_mean(name, GROUPS)} There is: {', '.join(GROUPS)}")
    index, count = shard
    if not 0 <= index < count:
        raise OptionError(f"a share is (i, n) with i from 0 to n-1; got {shard!r}")
    chosen = [make for name, make in GROUPS.items() if name in (groups or GROUPS)]
    return tuple(case for make in chosen for case in make() if matches(case.name, pattern))[index::count]
