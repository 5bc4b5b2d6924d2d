"""The xla engine's executables: arrays in and out, saving, threads, and what is left of JAX to the user."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.engines.written import function, one, tensor
from tests.engines.xla_running import CONTEXT, INT, XLA, compiled, placed, run
from xrt.engines import Executable
from xrt.errors import CompileRefused
from xrt.graph import Function, Node, read_attributes

# ---------------------------------------------------------------------- arrays in and out


@pytest.mark.parametrize("size", [4, 100_000])
def test_an_updated_input_may_be_computed_into_and_is_never_spoilt(size: int) -> None:
    f = function(Node("Add", ("x", "x"), ("y",)), inputs={"x": tensor(size)}, outputs={"y": tensor(size)}, aliases=(("x", "y"),))
    executable = compiled(f)
    for offset in (0, 4):
        x = placed(size, offset=offset)
        x[:] = 3
        (y,) = executable.run([x])
        assert (y == 6).all() and ((x == 3).all() or np.shares_memory(x, y))


@pytest.mark.parametrize(("size", "is_moved"), [(1000, False), (100_000, True)])
def test_a_large_input_is_handed_over_where_the_library_reads_it_in_place(size: int, is_moved: bool) -> None:
    """Elsewhere XLA would copy it in a thread of its own, and compute in another one while the caller waits."""
    executable = compiled(one("Neg", tensor(size), output=tensor(size)))
    handed = []
    call = executable.program.call
    executable.program = replace(executable.program, call=lambda x, *others: handed.append(x) or call(x, *others))
    for offset in (0, 16):
        x = placed(size, offset=offset)
        x[:] = np.arange(size)
        assert (executable.run([x])[0] == -x).all()
        assert (handed[-1] is x) == (offset == 0 or not is_moved)
        assert handed[-1].ctypes.data % 64 == (0 if is_moved else offset)


# ---------------------------------------------------------------------- saved and loaded


def loaded(f: Function) -> Executable:
    data = XLA.save(compiled(f), CONTEXT)
    executable = XLA.load(memoryview(data), f, CONTEXT)
    executable.prepare()
    return executable


def test_a_saved_executable_runs_without_being_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import engine

    w = np.random.default_rng(0).random((64, 64)).astype(np.float32)
    nodes = (
        Node("MatMul", ("x", "w"), ("y",)),
        Node("Cast", ("n",), ("m",), read_attributes({"to": 1})),
        Node("Add", ("y", "m"), ("z",)),
    )
    f = function(
        *nodes,
        inputs={"x": tensor(2, 64), "n": tensor(64, dtype=INT)},
        outputs={"z": tensor(2, 64)},
        constants={"w": w},
        types={"y": tensor(2, 64), "m": tensor(64)},
    )
    x, n = np.ones((2, 64), np.float32), np.arange(64) + 2**33
    executable = compiled(f)
    data = bytes(XLA.save(executable, CONTEXT))
    assert not data.startswith(b"\x80"), "a pickle"
    monkeypatch.setattr(engine, "compile_program", pytest.fail)
    again = XLA.load(memoryview(data), f, CONTEXT)
    assert np.array_equal(again.run([x, n])[0], executable.run([x, n])[0])
    assert bytes(XLA.save(again, CONTEXT)) == data


def test_bytes_that_are_no_executable_are_refused() -> None:
    with pytest.raises(CompileRefused, match=r"^XLA cannot load 'main': "):
        XLA.load(memoryview(b"nothing of the kind"), one("Relu", tensor(2), output=tensor(2)), CONTEXT)


# ---------------------------------------------------------------------- threads, and the process around


WORK = """
import json, sys, time
from pathlib import Path
import numpy as np, xrt
def list_times():
    stats = {}
    for task in Path("/proc/self/task").iterdir():
        name, _, fields = (task / "stat").read_text().rpartition(")")
        stats[task.name] = (name.partition("(")[2], int(fields.split()[11]))
    return stats
class Net(xrt.Graph):
    def build(self, x): return xrt.ops.MatMul(x, x)
m, x = xrt.XRTModule(Net(), engine="xla", strict=True, threads=int(sys.argv[1])), np.ones((512, 512), np.float32)
m(x)
before, wall, processor = list_times(), time.perf_counter(), time.process_time()
for _ in range(120):
    m(x)
wall, processor = time.perf_counter() - wall, time.process_time() - processor
worked = [name for task, (name, ticks) in list_times().items() if ticks > before.get(task, (name, 0))[1]]
print(json.dumps({"wall": wall, "processor": processor, "pool": worked.count("tf_XLAEigen")}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_a_budget_bounds_the_threads_that_work(threads: int) -> None:
    """In a process of its own, where nothing else works; what else the machine does can only lower the processor's share."""
    told = json.loads(
        subprocess.run([sys.executable, "-c", WORK, str(threads)], check=True, capture_output=True, text=True).stdout
    )
    assert told["processor"] <= 1.1 * threads * told["wall"]
    assert told["pool"] <= threads


QUIET = """
import os, sys
import jax, numpy as np, xrt
before = dict(jax.config.values)
environment = dict(os.environ)
class Net(xrt.Graph):
    def build(self, x): return xrt.ops.Relu(x)
m = xrt.XRTModule(Net(), engine="xla", strict=True)
m(np.ones(3)); m(np.ones(3, "int64").astype("float32"))
assert dict(jax.config.values) == before and dict(os.environ) == environment
from jax._src import xla_bridge
assert not xla_bridge.backends_are_initialized(), "a client of the user's was made"
assert jax.numpy.ones(3, "float32").dtype == "float32" and jax.numpy.arange(2).dtype == "int32"
"""


@pytest.mark.slow
def test_nothing_of_the_users_jax_is_changed_or_started() -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", QUIET], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.slow
def test_what_the_user_has_set_does_not_change_a_result() -> None:
    import jax

    f = function(
        Node("Add", ("x", "n"), ("y",)),
        inputs={"x": tensor(2, 2, dtype=INT), "n": tensor(2, dtype=INT)},
        outputs={"y": tensor(2, 2, dtype=INT)},
    )
    x, n = np.full((2, 2), 2**40), np.arange(2)
    with jax.enable_x64(False), jax.numpy_rank_promotion("raise"), jax.disable_jit(True), jax.debug_nans(True):
        assert np.array_equal(run(f, x, n)[0], x + n)
        assert np.isnan(run(one("Sqrt", tensor(1), output=tensor(1)), np.array([-1], np.float32))[0]).all()
