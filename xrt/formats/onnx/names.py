"""Names that nothing in a Function bears yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["FreshNames"]


class FreshNames:
    """Makes value names that are new to a whole Function, bodies included: ONNX lets no body shadow an outer name."""

    def __init__(self, function: Function) -> None:
        self._taken = set(_all_names(function))

    def take(self, name: str) -> str:
        """Return the name itself where it is new, and one like it elsewhere."""
        if name in self._taken:
            return self.like(name)
        self._taken.add(name)
        return name

    def like(self, name: str) -> str:
        """Return a new name that shows where it comes from."""
        count = 2
        while (fresh := f"{name}_{count}") in self._taken:
            count += 1
        self._taken.add(fresh)
        return fresh


def _all_names(function: Function) -> list[str]:
    names = [*function.value_names(), *function.captures]
    for node in function.nodes:
        for body in node.bodies:
            names += _all_names(body)
    return names
