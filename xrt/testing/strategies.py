"""Generated Functions as hypothesis strategies. Apart from `suite`, only this module needs hypothesis; import it by name.

    from hypothesis import given
    from xrt.testing.strategies import functions

    @given(functions())
    def test_something(function): ...

Every Function is valid: `onnx.checker` accepts it and the reference engine runs it (XRT's tests check both).
`make_random_inputs(function, seed)` generates inputs for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

from hypothesis import strategies as st

from xrt.testing.generate import EVERYTHING, Form, draft_function, make_random_inputs

if TYPE_CHECKING:
    from xrt.graph import Function

__all__ = ["EVERYTHING", "Form", "functions", "labels", "make_random_inputs"]

T = TypeVar("T")


class _DrawnChoices:
    """A `Chooser` that draws from hypothesis, so that a failing Function is shrunk."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def pick(self, options: Sequence[T]) -> T:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))


@st.composite
def functions(draw: st.DrawFn, form: Form = EVERYTHING) -> Function:
    """Strategy for valid Functions of a form."""
    return draft_function(_DrawnChoices(draw), form)


@st.composite
def labels(draw: st.DrawFn, function: Function) -> tuple[int, ...]:
    """Strategy for partitions of a Function: one label per node, where equal labels are a region.

    No label is smaller than that of a node on which its node depends, so the regions can run in the order of their labels. Every
    partition with an acyclic graph of regions has such labels: number the regions in topological order.
    """
    chosen_labels: list[int] = []
    index = {node.name: i for i, node in enumerate(function.nodes)}
    for node in function.nodes:
        before = [function.producer_index(name) for name in node.uses] + [index[name] for name in node.control]
        min_label = max((chosen_labels[i] for i in before if i is not None), default=0)
        chosen_labels.append(min_label + draw(st.integers(0, 2)))
    return tuple(chosen_labels)
