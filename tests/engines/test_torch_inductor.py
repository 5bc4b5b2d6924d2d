"""The torch engine's mode ``inductor``: what it declines, what a compile leaves behind, and what its libraries compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.sample import list_models, run_together
from tests.engines import written
from tests.engines.test_forked import status_of
from tests.engines.test_torch import INT, TORCH
from tests.engines.written import Array, function, node, one, tensor
from xrt.engines import CompileContext, Executable
from xrt.engines.torch import Torch
from xrt.engines.torch.inductor import why_no_cxx_compiler
from xrt.errors import CompileRefused
from xrt.graph import DType, Function, TensorType
from xrt.passes import infer_shapes
from xrt.processes import list_descendants
from xrt.testing import ResultWord

INDUCTOR = Torch("inductor")


why = partial(written.why, INDUCTOR)


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("MatMul", tensor("N", 3), tensor(3, "M"), output=tensor("N", "M")), ""),
        (one("Conv", tensor(1, 3, 8, 8), tensor(4, 3, 3, 3), output=tensor(1, 4, 6, 6)), ""),
        (
            one("NonZero", tensor(4), output=tensor(1, None, dtype=INT)),
            "mode=inductor does not support this NonZero: the sizes of its results are known only at run time",
        ),
        (
            one("Reshape", tensor(4, 3), tensor(1, dtype=INT), output=tensor(12)),
            "mode=inductor does not support this Reshape: it reads values that are known only at run time",
        ),
        (
            one("Identity", TensorType(DType.FLOAT32), output=TensorType(DType.FLOAT32)),
            "mode=inductor needs the rank of 'x0'",
        ),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    before = dict(os.environ)
    assert why(f) == reason
    assert dict(os.environ) == before and capfd.readouterr().err == ""


def test_without_a_compiler_the_mode_declines_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    f = one("Neg", tensor(2), output=tensor(2))
    monkeypatch.setenv("CXX", "no-such-compiler")
    why_no_cxx_compiler.cache_clear()
    try:
        reason = "mode=inductor compiles C++, and there is no no-such-compiler: install it, or name another by the variable CXX"
        assert why(f) == reason == TORCH.missing_features()
        with pytest.raises(CompileRefused, match=r"^mode=inductor compiles C"):
            INDUCTOR.compile(f, CompileContext())
        assert TORCH.why_not(f.nodes[0], f) is None
    finally:
        monkeypatch.undo()
        why_no_cxx_compiler.cache_clear()


def test_the_report_of_missing_features_does_not_import_the_tracer() -> None:
    program = (
        "import sys; from xrt.engines.torch import Torch; Torch('inductor').missing_features(); print('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "False\n"


WEIGHTS = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32) / 16


def region() -> Function:
    nodes = (
        node("MatMul", "x w", "a"),
        node("Erf", "a", "e"),
        node("Mul", "a e", "g"),
        node("Softmax", "g", "y"),
        node("Identity", "x", "same"),
        node("Identity", "w", "weights"),
        node("Reciprocal", "x", "r"),
    )
    outputs = ("y", "same", "weights", "r")
    return infer_shapes(function(*nodes, inputs={"x": tensor("N", 256)}, outputs=outputs, constants={"w": WEIGHTS}))


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Executable, CompileContext]]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        context = CompileContext(threads=2)
        before = dict(os.environ)
        executable = INDUCTOR.compile(region(), context)
        assert dict(os.environ) == before
    assert [*home.rglob("*")] == [], "a compile leaves nothing behind"
    assert list_descendants(os.getpid()) == [], "and no process"
    yield executable, context
    executable.close()


def given(rows: int) -> Array:
    return np.random.default_rng(rows).standard_normal((rows, 256)).astype(np.float32)


def check(executable: Executable, x: Array) -> None:
    expected = TORCH.compile(region(), CompileContext(threads=2)).run([x])
    for result, due in zip(executable.run([x]), expected, strict=True):
        np.testing.assert_allclose(result, due, rtol=1e-4, atol=1e-6)


Compiled = tuple[Executable, CompileContext]


@pytest.mark.full
class TestCompiled:
    @pytest.mark.parametrize("rows", [0, 1, 2, 3, 64])
    def test_one_library_serves_all_sizes(self, compiled: Compiled, rows: int) -> None:
        check(compiled[0], given(rows))

    def test_arrays_of_all_layouts(self, compiled: Compiled) -> None:
        check(compiled[0], given(512).reshape(256, 512).T[::-2])

    def test_outputs_are_fresh(self, compiled: Compiled) -> None:
        x = given(3)
        first, second = (compiled[0].run([x]) for _ in range(2))
        arrays = [x, *first, *second]
        assert not any(np.shares_memory(a, b) for i, a in enumerate(arrays) for b in arrays[:i])

    def test_what_is_saved_is_loaded(self, compiled: Compiled, tmp_path: Path) -> None:
        executable, context = compiled
        data = bytes(INDUCTOR.save(executable, context))
        again = INDUCTOR.load(memoryview(data), region(), CompileContext(threads=2, workdir=tmp_path))
        assert not [*tmp_path.iterdir()]
        check(again, given(5))
        again.close()

    def test_threads_run_it_at_once(self, compiled: Compiled) -> None:
        inputs = [given(rows) for rows in range(2, 14)]
        due = [compiled[0].run([x])[0] for x in inputs]
        with ThreadPoolExecutor(len(inputs)) as pool:
            results = list(pool.map(lambda x: compiled[0].run([x])[0], inputs))
        assert all(map(np.array_equal, results, due))

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python 3.12 warns of threads where there is a fork
    def test_a_forked_child_computes(self, compiled: Compiled) -> None:
        compiled[0].run([given(512)])
        assert status_of(lambda: check(compiled[0], given(512))) == 0


@pytest.mark.full
def test_each_operator_is_right_in_a_library_of_many() -> None:
    """A library takes minutes to make, and more than ten seconds of that whatever is in it: 80 operators share one."""
    outcomes = [outcome for cases in list_models((INDUCTOR,), most=80) for outcome in run_together(INDUCTOR, cases)]
    assert [str(outcome) for outcome in outcomes if outcome.word is ResultWord.FAILED] == []
    assert sum(outcome.word is ResultWord.PASSED for outcome in outcomes) >= 120
