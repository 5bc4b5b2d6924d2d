"""The iree engine: options, reasons, the text for the compiler, the compiler as a process, arrays, numbers, and the suite."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from tests.engines import written
from tests.engines.written import CONTEXT, node, tensor
from xrt.engines import CompileContext
from xrt.engines.iree import Iree, compiler
from xrt.errors import CompileRefused
from xrt.graph import Constant, Function, Node, TensorType
from xrt.passes import infer_shapes
from xrt.testing.suite import EngineSuite

IREE = Iree()


def function(*nodes: Node, **more: Any) -> Function:
    """Return the Function with all types inferred, as IREE needs them."""
    return infer_shapes(written.function(*nodes, **more))


def one(op_type: str, *shapes: TensorType, **more: Any) -> Function:
    return infer_shapes(written.one(op_type, *shapes, **more))


compiled, why = partial(written.compiled, IREE), partial(written.why, IREE)
run = partial(written.run, IREE, is_supported=True)


def test_the_level_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[tuple[str, ...]] = []

    def run(command: list[str], *rest: Any, **more: Any) -> Any:
        results.append(tuple(command))
        return subprocess.CompletedProcess([], 1, b"", b"<stdin>:1:1: error: no")

    monkeypatch.setattr(compiler, "run", run)
    for engine, threads in ((Iree(opt_level=3), 1), (IREE, 2)):
        with pytest.raises(CompileRefused, match=r"^IREE cannot compile it: no$"):
            engine.compile(one("Neg", tensor(2)), CompileContext(threads=threads))
    assert ["--iree-opt-level=O3" in results[0], "--mlir-disable-threading" in results[0]] == [True, True]
    assert ["--iree-opt-level=O2" in results[1], "--mlir-disable-threading" in results[1]] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("handed", [True, False])
def test_any_folder_may_hold_the_temporary_files(handed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler names them in a command line of its own without quoting."""
    folder = tmp_path / 'it\'s "a" $HOME; (b) & c'
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    context = replace(CONTEXT, workdir=folder if handed else None)
    executable = compiled(one("Neg", tensor(2)), context=context)
    np.testing.assert_array_equal(executable.run([np.array([1, 2], np.float32)])[0], [-1, -2])
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_one_that_the_compiler_has_no_rule_for_among_many_has_its_own_reason() -> None:
    nodes = node("Abs", "x", "a"), node("BitCast", "a", "b", to=6), node("Tanh", "a", "y")
    f = function(*nodes, inputs={"x": tensor(5)}, outputs=("b", "y"), opset=26)
    reason = "IREE does not support this BitCast: it has no rule to lower this BitCast"
    assert [IREE.why_not(each, f) for each in f.nodes] == [None, reason, None]


def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    binary = tmp_path / "compiler"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setattr(compiler, "BINARY", binary)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("kill -SEGV $$", 60, "IREE cannot compile it: it crashed (SIGSEGV)"),
        ("kill -40 $$", 60, "IREE cannot compile it: it crashed (signal 40)"),
        ("echo 'LLVM ERROR: no such type' >&2; kill -ABRT $$", 60, "IREE cannot compile it: no such type"),
        ("exit 3", 60, "IREE cannot compile it: it gives no reason"),
        ("while true; do sleep 1; done", 0.5, "IREE's compiler exceeded the time limit of 0.5 s"),
    ],
)
def test_a_crash_and_a_hang_are_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, seconds: float, reason: str
) -> None:
    _fake(tmp_path, monkeypatch, script)
    with pytest.raises(CompileRefused) as refusal:
        Iree(compile_seconds=seconds).compile(one("Neg", tensor(2)), CONTEXT)
    assert str(refusal.value) == reason


@pytest.mark.slow
def test_a_hang_takes_its_children_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, monkeypatch, f"(while ! [ -e {tmp_path}/ended ]; do sleep 0.1; done; touch {tmp_path}/survived) & wait")
    with pytest.raises(CompileRefused):
        Iree(compile_seconds=0.3).compile(one("Neg", tensor(2)), CONTEXT)
    (tmp_path / "ended").touch()
    time.sleep(0.5)
    assert not (tmp_path / "survived").exists()


@pytest.mark.slow
def test_the_compiler_is_never_loaded_into_the_process() -> None:
    code = (
        "import sys, xrt.engines.contract.registry as r; assert 'iree.runtime' not in sys.modules;"
        "r.create('iree'); assert 'iree.runtime' in sys.modules and 'iree.compiler' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_weights_are_handed_over_and_not_compiled_in(tmp_path: Path) -> None:
    w, x = (np.random.default_rng(seed).random(shape, np.float32) for seed, shape in enumerate([(64, 32), (3, 64)]))
    f = function(node("MatMul", "x w", "y"), inputs={"x": tensor(3, 64)}, constants={"w": w})
    executable = compiled(f)
    (y,) = executable.run([x])
    assert np.allclose(y, x @ w, rtol=1e-5)
    saved = bytes(IREE.save(executable, CONTEXT))
    assert w[:4].tobytes() not in saved
    other = f.replace(constants={"w": Constant(np.ones((64, 32), np.float32))})
    loaded = IREE.load(memoryview(saved), other, CONTEXT)
    loaded.prepare()
    assert np.allclose(loaded.run([x])[0], x.sum(1, keepdims=True) * np.ones(32), rtol=1e-5)
    assert [use.name for use in executable.memory() or ()] == ["workspace"]


@pytest.mark.slow
def test_a_pool_has_as_many_workers_as_the_budget() -> None:
    code = (
        "from pathlib import Path; from xrt.engines.iree.executable import get_device\n"
        "def workers(): return sum('iree-worker' in (t / 'comm').read_text() for t in Path('/proc/self/task').iterdir())\n"
        "get_device(1); first = workers(); get_device(3); import time\n"
        "while workers() < 3: time.sleep(0.01)\n"  # a thread has its name when it begins to run
        "print(first, workers())"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert completed.stdout.split() == ["0", "3"]


@pytest.mark.slow
@pytest.mark.parametrize("size", [4, 600], ids=["the calling thread", "a pool"])
def test_the_process_ends_well_whatever_is_still_held(size: int) -> None:
    code = (
        "import warnings; import numpy as np, xrt\n"
        "warnings.simplefilter('ignore', xrt.errors.BudgetWarning)\n"  # the machine may have one core
        "class Net(xrt.Graph):\n"
        "    def build(self, x): return xrt.ops.Neg(x)\n"
        "m = xrt.XRTModule(Net(), engine='iree', strict=True, threads=2)\n"
        f"kept = [m(np.ones(({size}, {size}), 'float32')) for _ in range(3)]\n"
        "print(kept[0].mean())"
    )
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (completed.returncode, completed.stdout, completed.stderr) == (0, "-1.0\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0, 3.0, 4.0])
def test_powers_are_products(exponent: float) -> None:
    f = function(node("Pow", "x e", "y"), inputs={"x": tensor(3)}, constants={"e": np.array(exponent, np.float32)})
    x = np.array([-2, 3, 0.5] if exponent >= 1 else [4, 9, 0.25], np.float32)
    assert np.allclose(run(f, x)[0], x**exponent, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["reflect", "wrap"])
def test_an_edge_is_mirrored_or_repeated_along_chosen_axes(mode: Literal["reflect", "wrap"]) -> None:
    constants = {"pads": np.array([16, 1, 0, 2]), "axes": np.array([-1, 0])}
    f = function(node("Pad", "x pads - axes", "y", mode=mode), inputs={"x": tensor(4, 20)}, constants=constants, opset=19)
    x = np.arange(80, dtype=np.float32).reshape(4, 20)
    assert np.array_equal(run(f, x)[0], np.pad(x, ((1, 2), (16, 0)), mode))


@pytest.mark.slow
@pytest.mark.parametrize(("pads", "size"), [((1, 1, 1, 1), 2), ((1, 1, 1, 1), 3), ((0, 0, 0, 0), 5), ((0, 2, 0, 0), 3)])
def test_a_window_that_fits_once_does_not_read_what_is_behind_it(pads: tuple[int, ...], size: int) -> None:
    conv = node("Conv", "x w", "y", strides=(3, 3), pads=pads)
    f = function(conv, inputs={"x": tensor(1, 1, size, size)}, constants={"w": np.ones((1, 1, 3, 3), np.float32)})
    x = np.arange(1, size * size + 1, dtype=np.float32).reshape(1, 1, size, size)
    seen = np.pad(x, ((0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])))[..., :3, :3]
    assert run(f, x)[0].tolist() == [[[[seen.sum()]]]]


@pytest.mark.slow
@pytest.mark.sample(40, plain=12)
class TestIree(EngineSuite):
    engine = "iree"
    test_conformance = None  # run in tests/conformance
    test_node_tests_with_symbolic_dims = None
