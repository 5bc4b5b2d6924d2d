"""Gradient accumulation: gradients of several calls are summed in state, and the last of them changes the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from xrt.builder.record_op import emit
from xrt.graph import DType, State, TensorType

if TYPE_CHECKING:
    from xrt.builder.builder import Builder
    from xrt.builder.tensor import Tensor

__all__ = ["CALLS", "StateRecorder", "accumulate"]

CALLS = "optimizer.calls"
"""Name of the state that counts the calls since parameters changed."""


@dataclass(eq=False)
class StateRecorder:
    """Records the next values of states."""

    builder: Builder
    changes: Tensor | None = None
    """Whether the call changes what is recorded from now on; None: every call does."""
    states: list[State] = field(default_factory=list)

    def add(self, name: str, before: Tensor, after: Tensor) -> None:
        """Record the next value of an input that is state; it stays bit for bit where the call changes nothing."""
        following = after if self.changes is None else emit("Where", self.changes, after, before)
        self.builder.output(following, f"{name}_next")
        self.states.append(State(name, f"{name}_next"))


def accumulate(
    recorder: StateRecorder, tensors: Mapping[str, Tensor], gradients: Mapping[str, Tensor], count: int
) -> dict[str, Tensor]:
    """Return the mean of the gradients of so many calls, by parameter; the last of the calls changes what is recorded later."""
    builder = recorder.builder
    before = builder.input(CALLS, TensorType(DType.INT64, ()))
    is_last = emit("Equal", before + 1, np.array(count))
    recorder.add(CALLS, before, emit("Where", is_last, np.array(0), before + 1))
    means = {}
    for name, gradient in gradients.items():
        held = builder.input(f"{name}.gradient", tensors[name].type)
        with builder.scope(f"{name}/accumulation"):
            total = held + gradient
            means[name] = total / count
            recorder.add(f"{name}.gradient", held, emit("Where", is_last, np.array(0, total.dtype.numpy), total))
    recorder.changes = is_last
    return means
