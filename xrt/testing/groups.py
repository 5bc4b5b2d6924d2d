"""The groups of tests that the installed ``onnx`` package holds, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from xrt.errors import OptionError, did_you_mean
from xrt.testing.cases import ConformanceCase, matches, node_cases
from xrt.testing.onnx_models import load_light_cases, load_stored_cases

__all__ = ["GROUPS", "group_cases"]

GROUPS: Mapping[str, Callable[[], Sequence[ConformanceCase]]] = MappingProxyType(
    {
        "node": node_cases,
        **{name: partial(load_stored_cases, name) for name in ("simple", "pytorch-operator", "pytorch-converted")},
        "light": load_light_cases,
    }
)
"""What makes the cases of each group. Those of ``node`` are one operator each, or the expansion of one; the others are models."""


def group_cases(
    groups: Sequence[str] = (), pattern: str = "*", *, shard: tuple[int, int] = (0, 1)
) -> tuple[ConformanceCase, ...]:
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
    chosen = [node_cases(pattern) if name == "node" else make() for name, make in GROUPS.items() if name in (groups or GROUPS)]
    return tuple(case for cases in chosen for case in cases if matches(case.name, pattern))[index::count]
