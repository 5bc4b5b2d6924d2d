"""The call that is timed: alone it makes its results anew, between others it leaves them in memory that is there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from xrt.engines import Executable, RunOptions
from xrt.runtime import make_timed_call

X = np.arange(6, dtype=np.float32).reshape(2, 3)


class Counting(Executable):
    """Adds one, and counts the results that it made memory for."""

    def __init__(self, *, binds: bool) -> None:
        self._binds = binds
        self.made = 0
        self.written: list[Any] = []

    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        self.made += 1
        return [inputs[0] + 1]

    def bind(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[[], None]:
        assert all(array.flags.c_contiguous for array in (*inputs, *outputs))
        self.written = list(outputs)
        return lambda: np.add(inputs[0], 1, out=outputs[0])

    def supports_io_binding(self) -> bool:
        return self._binds


def test_alone_each_call_makes_its_results() -> None:
    executable = Counting(binds=True)
    call = make_timed_call(executable, [X])
    for _ in range(3):
        call()
    assert (executable.made, executable.written) == (3, [])


@pytest.mark.parametrize("x", [X, X.T], ids=["in order", "turned"])
def test_between_others_results_lie_where_they_lay(x: Any) -> None:
    executable = Counting(binds=True)
    call = make_timed_call(executable, [x], like=[np.zeros_like(x)])
    for _ in range(3):
        call()
    assert executable.made == 0
    assert [array.tolist() for array in executable.written] == [(x + 1).tolist()]


def test_an_engine_that_cannot_is_timed_as_it_is() -> None:
    executable = Counting(binds=False)
    make_timed_call(executable, [X], like=[X])()
    assert executable.made == 1
    values = Counting(binds=True)
    make_timed_call(values, [X], like=[[X]])()  # a sequence has no memory to be left in
    assert values.made == 1


@pytest.mark.parametrize("result", [np.array(["a"], object), np.zeros((0, 3), np.float32)], ids=["text", "no elements"])
def test_what_no_program_lays_down_is_timed_as_it_is(result: Any) -> None:
    executable = Counting(binds=True)
    make_timed_call(executable, [X], like=[X, result])()
    assert (executable.made, executable.written) == (1, [])
