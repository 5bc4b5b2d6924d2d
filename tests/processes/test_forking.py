"""A forked child closes nothing that its parent made, waits for none of its locks, and can end as any process does."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import os, sys, threading, time, warnings
import numpy as np, onnx, xrt
from xrt.cache import CompileCache

warnings.simplefilter("ignore")
engine, ends = sys.argv[1], sys.argv[2]
X = np.ones((4, 64), "float32")
CACHE = CompileCache(capacity=2)  # more are closed, in the background

def make(seed):
    weights = ", ".join(map(str, np.random.default_rng(seed).random(64)))
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[n,64] x) => (float[n,1] y)'
        '<float[64,1] w = {%s}> { y = MatMul(x, w) }' % weights
    )
    module = xrt.XRTModule(model, engine=engine, threads=2, cache=CACHE)
    assert module(X).shape == (4, 1)
    return module

kept = [make(seed) for seed in range(5)][-2:]
held = threading.Event()

def hold():
    with kept[0].programs.specializations._lock, kept[0].dispatcher._lock, CACHE._lock:
        held.set()
        time.sleep(3600)

threading.Thread(target=hold, daemon=True).start()
assert held.wait(60)
pid = os.fork()
if pid == 0:
    for module in kept:
        assert module(X).shape == (4, 1)
        assert module(np.ones((5, 64), "float32")).shape == (5, 1)
    for seed in range(100, 103):
        make(seed)
    for module in kept:
        module.close()
    del kept, module
    CACHE.clear()
    time.sleep(0.2)  # what is to be closed, is closed
    os._exit(0) if ends == "at once" else sys.exit(0)
print("child", os.waitpid(pid, 0)[1])
os._exit(0)
"""


@pytest.mark.slow
@pytest.mark.sample(2)
@pytest.mark.parametrize(
    ("engine", "ends"),
    [
        *((engine, "as others do") for engine in ("toy", "ort", "openvino", "torch", "xla", "iree")),
        ("ort{execution_mode=parallel, inter_op_threads=2}", "as others do"),
        ("tvm", "at once"),
    ],
)
def test_a_child_goes_on_and_ends(engine: str, ends: str) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, engine, ends], capture_output=True, text=True, timeout=240, check=False)
    assert "child 0" in done.stdout.splitlines(), done.stderr


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_is_free_in_a_child(kind: str) -> None:
    script = (
        f"import os, threading; from xrt.forking import renew_after_fork; lock = renew_after_fork(threading.{kind}()); "
        "threading.Thread(target=lock.acquire).start(); pid = os.fork(); "
        "os._exit(not lock.acquire(timeout=5)) if pid == 0 else print(os.waitpid(pid, 0)[1])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "0\n"


def test_a_child_frees_no_value_of_its_parent_though_it_has_no_hash() -> None:
    """A dataclass that compares by value has no hash, and two equal ones are two."""
    script = """
import os
from dataclasses import dataclass
from xrt.forking import leave_to_parent

@dataclass
class Executable:
    name: str
    def __del__(self):
        os.write(1, f"freed in {'parent' if os.getpid() == parent else 'child'}\\n".encode())

parent = os.getpid()
values = [Executable("x"), Executable("x")]
for value in values:
    leave_to_parent(value)
del value
child = os.fork()
values.clear()
if child:
    os.waitpid(child, 0)
else:
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines() == ["freed in parent"] * 2


def test_a_closed_model_without_streams_leaves_openvino_to_the_child() -> None:
    """With one thread it has no pool, whose threads a child would lack."""
    script = """
import os, numpy as np, xrt
from xrt.cache import CompileCache
from xrt.testing.corpus.entry import graph, node

def call(op):
    function, cache = graph({"x": "float32[3]"}, {"y": "float32[3]"}, node(op, "x", "y")), CompileCache()
    with xrt.XRTModule(function, engine="openvino", strict=True, threads=1, cache=cache) as module:
        module(np.ones(3, "float32"))
    cache.clear()

call("Relu")
child = os.fork()
if child:
    print(os.waitpid(child, 0)[1])
else:
    call("Exp")
    os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout == "0\n", done.stderr
