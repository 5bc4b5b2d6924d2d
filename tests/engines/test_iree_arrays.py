"""The iree engine's executables: arrays in and out, weights, and threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.engines.iree_running import CONTEXT, IREE, compiled, function, negation
from tests.engines.written import tensor
from xrt.engines import RunOptions
from xrt.graph import Constant, Function, Node

# ---------------------------------------------------------------------- arrays in and out


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 4, 16, 36])
def test_any_alignment_is_taken(offset: int) -> None:
    raw = np.zeros(256, np.uint8)
    start = (offset - raw.ctypes.data) % 64
    x = raw[start : start + 96].view(np.float32).reshape(4, 6)
    x[:] = np.arange(24).reshape(4, 6)
    assert x.ctypes.data % 64 == offset
    assert np.array_equal(negation().run([x])[0], -x)
    buffer = raw[start + 96 : start + 192].view(np.float32).reshape(4, 6)
    (y,) = negation().run([x], RunOptions(out=[buffer]))
    assert y is buffer and np.array_equal(buffer, -x)


# ---------------------------------------------------------------------- weights, saving


def weighted() -> Function:
    w = np.random.default_rng(0).random((64, 32), dtype=np.float32)
    return function(Node("MatMul", ("x", "w"), ("y",)), inputs={"x": tensor(3, 64)}, constants={"w": w})


@pytest.mark.slow
def test_weights_are_handed_over_and_not_compiled_in(tmp_path: Path) -> None:
    f = weighted()
    x = np.random.default_rng(1).random((3, 64), dtype=np.float32)
    executable = compiled(f)
    (y,) = executable.run([x])
    assert np.allclose(y, x @ f.constants["w"].array, rtol=1e-5)
    saved = bytes(IREE.save(executable, CONTEXT))
    assert f.constants["w"].array[:4].tobytes() not in saved
    other = f.replace(constants={"w": Constant(np.ones((64, 32), np.float32))})
    loaded = IREE.load(memoryview(saved), other, CONTEXT)
    loaded.prepare()
    assert np.allclose(loaded.run([x])[0], x.sum(1, keepdims=True) * np.ones(32), rtol=1e-5)
    assert [use.name for use in executable.memory() or ()] == ["workspace"]


# ---------------------------------------------------------------------- threads


@pytest.mark.slow
def test_a_pool_has_as_many_workers_as_the_budget() -> None:
    code = (
        "from pathlib import Path; from xrt.engines.iree.executable import get_device\n"
        "def workers(): return sum('iree-worker' in (t / 'comm').read_text() for t in Path('/proc/self/task').iterdir())\n"
        "get_device(1); first = workers(); get_device(3); import time\n"
        "while workers() < 3: time.sleep(0.01)\n"  # a thread has its name when it begins to run
        "print(first, workers())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_the_process_ends_well_whatever_is_still_held(device: str) -> None:
    code = (
        "import warnings; import numpy as np, xrt\n"
        "warnings.simplefilter('ignore', xrt.errors.BudgetWarning)\n"  # the machine may have one core
        "class Net(xrt.Graph):\n"
        "    def build(self, x): return xrt.ops.Neg(x)\n"
        f"m = xrt.XRTModule(Net(), engine='iree{{device={device}}}', strict=True, threads=2)\n"
        "kept = [m(np.ones((4, 4), 'float32')) for _ in range(3)]\n"
        "print(kept[0].sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-16.0\n", "")
