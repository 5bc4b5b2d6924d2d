"""The number of threads changes no bit of a result; nor does a lesser instruction set change more than the rounding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.engines import written
from tests.engines.native_running import library
from tests.engines.written import Array, over_arrays
from xrt.engines import CompileContext
from xrt.engines.toy import Toy
from xrt.graph import Function

RNG = np.random.default_rng(0)
WIDE = RNG.standard_normal((150, 3001)).astype(np.float32)
PLANES = RNG.standard_normal((2, 30, 57, 61)).astype(np.float32)
WEIGHTS = PLANES[0, :, None, :3, :3].copy()
AXES = {axis: np.array(axis, np.int64) for axis in ((0,), (1,), (0, 1))}

CASES: dict[str, tuple[Function, list[Array]]] = {
    "chain": (over_arrays("Gelu", [WIDE]), [WIDE]),
    "softmax": (over_arrays("Softmax", [WIDE]), [WIDE]),
    "softmax of columns": (over_arrays("Softmax", [WIDE], {"axis": 0}), [WIDE]),
    "layer norm": (over_arrays("LayerNormalization", [WIDE, WIDE[0].copy()]), [WIDE, WIDE[0].copy()]),
    **{f"sum over {a}": (over_arrays("ReduceSum", [WIDE, x], constants=(1,)), [WIDE]) for a, x in AXES.items()},
    "transpose": (over_arrays("Transpose", [WIDE]), [WIDE]),
    "pool": (over_arrays("AveragePool", [PLANES], {"kernel_shape": [3, 3], "strides": [2, 1]}), [PLANES]),
    "depthwise": (over_arrays("Conv", [PLANES, WEIGHTS], {"group": 30}), [PLANES, WEIGHTS]),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_threads_change_nothing(name: str) -> None:
    function, inputs = CASES[name]
    alone, shared = (written.compiled(Toy(native="on"), function, CompileContext(threads=threads)) for threads in (1, 3))
    for _ in range(3):
        np.testing.assert_array_equal(shared.run(inputs)[0], alone.run(inputs)[0])


VARIANTS = ("avx512", "avx2", "base")


@pytest.mark.sample(7)
@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_instruction_set_passes_the_same_tests(variant: str) -> None:
    """In a process of its own: the choice is made once. One that this processor lacks runs the best that it has."""
    best = library().version.partition("-")[2]
    if VARIANTS.index(variant) <= VARIANTS.index(best):
        return  # `best` is what the other tests ran on
    files = [str(Path(__file__).with_name(f"test_native_{what}.py")) for what in ("elementwise", "kernels")]
    environment = {**os.environ, "XRT_NATIVE_ISA": variant}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]
    completed = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert completed.returncode == 0, completed.stdout[-3000:]
    wanted = [sys.executable, "-c", "from xrt.engines import native; print(native.find_library().version)"]
    assert subprocess.run(wanted, env=environment, capture_output=True, text=True, check=True).stdout.strip() == f"1-{variant}"
