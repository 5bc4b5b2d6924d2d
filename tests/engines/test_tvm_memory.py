"""Where the tvm engine's results go: to the caller's buffers where compiled code can write to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines.tvm_running import CONTEXT
from tests.engines.written import function, one, tensor
from xrt.engines import RunOptions
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.executable import RelaxExecutable
from xrt.graph import Function, Node

Array = np.ndarray[Any, Any]


def compiled(f: Function) -> RelaxExecutable:
    executable = Tvm().compile(f, CONTEXT)
    assert isinstance(executable, RelaxExecutable)
    executable.prepare()
    return executable


def random(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def test_buffers_that_compiled_code_cannot_write_to_are_filled() -> None:
    executable, x = compiled(one("Neg", tensor(4, 6), output=tensor(4, 6))), random(4, 6)
    strided = np.zeros((4, 12), np.float32)[:, ::2]
    executable.bind_outputs([strided])(x)
    assert np.array_equal(strided, -x)
    over = x.copy()
    assert executable.run([over.T.copy().T], RunOptions(out=[over]))[0] is over
    assert np.array_equal(over, -x)


def test_a_buffer_that_may_not_be_written_to_is_not() -> None:
    executable, x = compiled(one("Neg", tensor(9), output=tensor(9))), random(9)
    frozen = np.zeros(9, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        executable.bind_outputs([frozen])(x)
    assert not frozen.any()


@pytest.mark.parametrize(
    "outputs",
    [("x", "y"), ("y", "z"), ("y", "c"), ("y", "x")],
    ids=["an input", "twice the same", "a constant", "an input behind it"],
)
def test_what_is_not_computed_by_itself_is_copied(outputs: tuple[str, ...]) -> None:
    f = function(
        Node("Neg", ("x",), ("y",)),
        Node("Identity", ("y",), ("z",)),
        inputs={"x": tensor(100)},
        outputs={name: tensor(100) for name in outputs},
        constants={"c": np.arange(100, dtype=np.float32)},
    )
    executable, x = compiled(f), random(100)
    buffers = [np.zeros(100, np.float32) for _ in outputs]
    assert not executable.supports_io_binding() and list(executable.output_buffer_threshold()) == []
    executable.bind([x], buffers)()
    assert all(np.array_equal(b, r) for b, r in zip(buffers, executable.run([x]), strict=True))
