"""Buffers of the caller's, where an engine's own library computes into some of them: what XRT sees is the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.engines.written import function, node, tensor
from xrt.engines import CompileContext, Executable, GraphCompiler, RunOptions
from xrt.engines.openvino import OpenVino
from xrt.engines.openvino.executable import COPY_TO
from xrt.engines.ort import Ort
from xrt.engines.ort.executable import BIND_FROM
from xrt.errors import InputError, RunFailed


@dataclass(frozen=True)
class Filling:
    """An engine, and how many columns it takes for its library to be given the buffer."""

    engine: GraphCompiler
    large: int

    def compiled(self, columns: int) -> Executable:
        """Return what computes the larger of each number and zero, and its negative."""
        type_ = tensor(2, columns)
        nodes = [node("Relu", "x", "y"), node("Neg", "x", "z")]
        made = function(*nodes, inputs={"x": type_}, outputs={"y": type_, "z": type_}, opset=21)
        executable = self.engine.compile(made, CompileContext(threads=2))
        executable.prepare()
        return executable


FILLING = pytest.mark.parametrize("filling", [Filling(Ort(), BIND_FROM), Filling(OpenVino(), COPY_TO)], ids=["ort", "openvino"])


def drawn(columns: int) -> Any:
    return np.random.default_rng(0).standard_normal((2, columns)).astype(np.float32)


@FILLING
@pytest.mark.parametrize("buffer", [np.empty((2, 3)), np.empty((1, 3), np.float32), np.empty(6, np.float32)])
def test_a_buffer_of_another_type_or_shape_is_refused(filling: Filling, buffer: np.ndarray[Any, Any]) -> None:
    with pytest.raises(InputError) as error:
        filling.compiled(3).run([drawn(3)], RunOptions(out=[buffer, None]))
    assert str(error.value) == (
        f"a buffer given in out= is {buffer.dtype}{list(buffer.shape)}, and the output is float32[2, 3]; "
        "give one just like it, or None"
    )


@FILLING
def test_a_closed_executable_says_so_and_leaves_its_results(filling: Filling) -> None:
    executable, x = filling.compiled(3), drawn(3)
    y, z = executable.run([x])
    executable.close()
    assert np.array_equal(y, np.maximum(x, 0))
    for options in (RunOptions(), RunOptions(out=[y, z])):
        with pytest.raises(RunFailed, match="the executable is closed"):
            executable.run([x], options)
