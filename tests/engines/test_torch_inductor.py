"""The torch engine's mode ``inductor``: what it declines, what a compile leaves behind, and what its libraries compute."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.conformance.sample import join
from tests.engines.test_forked import status_of
from tests.engines.test_torch import INT, TORCH
from tests.engines.written import Array, function, one, tensor
from xrt import passes
from xrt.engines import CompileContext, Executable
from xrt.engines.contract import registry
from xrt.engines.torch import Torch
from xrt.engines.torch.inductor import why_no_compiler
from xrt.errors import CompileRefused, OptionError
from xrt.graph import Constant, DType, Function, Node, TensorType
from xrt.graph.node import list_names, rename_function
from xrt.processes import list_descendants
from xrt.testing.cases import ConformanceCase, node_cases

INDUCTOR = Torch("inductor")


def why(f: Function) -> str:
    return INDUCTOR.why_not(f.nodes[-1], f) or ""


def test_the_mode_is_an_option() -> None:
    assert registry.create("torch{mode=inductor}") == INDUCTOR and INDUCTOR.spec == "torch{mode=inductor}"
    with pytest.raises(
        OptionError, match=r"mode of engine 'torch' must be one of eager, inductor; got 'inducter'\. Did you mean 'inductor'\?"
    ):
        Torch("inducter")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("MatMul", tensor("N", 3), tensor(3, "M"), output=tensor("N", "M")), ""),
        (one("Conv", tensor(1, 3, 8, 8), tensor(4, 3, 3, 3), output=tensor(1, 4, 6, 6)), ""),
        (
            one("NonZero", tensor(4), output=tensor(1, None, dtype=INT)),
            "mode=inductor does not take this NonZero: it gives results whose sizes only a call shows",
        ),
        (
            one("Reshape", tensor(4, 3), tensor(1, dtype=INT), output=tensor(12)),
            "mode=inductor does not take this Reshape: it reads numbers that only a call shows",
        ),
        (
            one("Identity", TensorType(DType.FLOAT32), output=TensorType(DType.FLOAT32)),
            "mode=inductor needs the number of dimensions of 'x0'",
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
    why_no_compiler.cache_clear()
    try:
        reason = "mode=inductor compiles C++, and there is no no-such-compiler: install it, or name another by the variable CXX"
        assert why(f) == reason == TORCH.missing_features()
        with pytest.raises(CompileRefused, match=r"^mode=inductor compiles C"):
            INDUCTOR.compile(f, CompileContext())
        assert TORCH.why_not(f.nodes[0], f) is None
    finally:
        monkeypatch.undo()
        why_no_compiler.cache_clear()


def test_the_report_of_missing_features_does_not_import_the_tracer() -> None:
    program = (
        "import sys; from xrt.engines.torch import Torch; Torch('inductor').missing_features(); print('sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout == "False\n"


# ---------------------------------------------------------------------- a compiled region

WEIGHTS = np.random.default_rng(0).standard_normal((256, 96)).astype(np.float32) / 16


def region() -> Function:
    nodes = (
        Node("MatMul", ("x", "w"), ("a",)),
        Node("Erf", ("a",), ("e",)),
        Node("Mul", ("a", "e"), ("g",)),
        Node("Softmax", ("g",), ("y",)),
        Node("Identity", ("x",), ("same",)),
        Node("Identity", ("w",), ("weights",)),
        Node("Reciprocal", ("x",), ("r",)),
    )
    wide = tensor("N", 96)
    f = function(
        *nodes,
        inputs={"x": tensor("N", 256)},
        outputs={"y": wide, "same": tensor("N", 256), "weights": tensor(256, 96), "r": tensor("N", 256)},
        constants={"w": WEIGHTS},
    )
    return f.replace(types=dict.fromkeys("aeg", wide))


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
whole = [pytest.mark.full]


class TestCompiled:
    pytestmark = whole

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

    @pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e-40, -0.0], ids=str)
    def test_numbers_that_are_none_and_small_ones(self, compiled: Compiled, number: float) -> None:
        x = given(4)
        x[1, 5] = number
        with np.errstate(all="ignore"):
            check(compiled[0], x)
        assert compiled[0].run([x])[1].tobytes() == x.tobytes()

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


# ---------------------------------------------------------------------- tests of onnx, many in one library

AT_ONCE = 80
"""Cases in one library: it takes minutes to make, and more than ten seconds of that whatever is in it."""


def prepare(case: ConformanceCase) -> Function | None:
    """Return what Inductor takes of a case, its whole numbers constant where it only takes it so; None where it takes it not."""
    if any(not isinstance(value, np.ndarray) for value in case.inputs):
        return None
    f = passes.infer_shapes(case.function).replace(aliases=())
    numbers = {
        v.name: Constant(x) for v, x in zip(f.inputs, case.inputs, strict=True) if x.dtype == np.int64 and x.size <= 8 and v.name
    }
    fixed = f.replace(inputs=tuple(v for v in f.inputs if v.name not in numbers), constants={**f.constants, **numbers})
    for form in (f, passes.infer_shapes(fixed)):
        if form.inputs and all(INDUCTOR.why_not(node, form) is None for node in form.nodes):
            return form
    return None


def sample() -> list[tuple[ConformanceCase, Function]]:
    """Return a case of each set of operators: its first that Inductor takes."""
    chosen: dict[tuple[str, ...], tuple[ConformanceCase, Function]] = {}
    for case in node_cases():
        if case.operators not in chosen and (f := prepare(case)) is not None:
            chosen[case.operators] = case, f
    return [*chosen.values()]


def merge(functions: Sequence[Function]) -> Function:
    """Join Functions side by side, with a prefix for the names of each."""
    prefixed = []
    for i, part in enumerate(functions):
        names = {name: f"g{i}_{name}" for name in list_names(part) if name}
        prefixed.append(rename_function(part, names, names))
    return join(prefixed)


def find_wrong(cases: Sequence[tuple[ConformanceCase, Function]]) -> list[str]:
    """Return the names of cases that fail, with what is wrong; those of a library that is not made are tried in halves."""
    try:
        executable = INDUCTOR.compile(passes.infer_shapes(merge([f for _, f in cases])), CompileContext(threads=2))
    except CompileRefused as refused:
        if len(cases) == 1:
            return [f"{cases[0][0].name}: {refused}"]
        return [wrong for half in (cases[::2], cases[1::2]) for wrong in find_wrong(half)]
    values = [{v.name: x for v, x in zip(c.function.inputs, c.inputs, strict=True)} for c, _ in cases]
    results = list(executable.run([value[v.name].copy() for value, (_, f) in zip(values, cases, strict=True) for v in f.inputs]))
    executable.close()
    wrong = []
    for case, f in cases:
        compared = case.judge(results[: len(f.outputs)])
        del results[: len(f.outputs)]
        wrong += [] if compared else [f"{case.name}: {compared}"]
    return wrong


@pytest.mark.full
def test_a_sample_of_the_tests_of_onnx() -> None:
    groups: defaultdict[Any, list[tuple[ConformanceCase, Function]]] = defaultdict(list)
    for case, f in sample():
        groups[tuple(sorted(f.opsets.items()))].append((case, f))
    parts = [cases[i : i + AT_ONCE] for cases in groups.values() for i in range(0, len(cases), AT_ONCE)]
    assert sum(map(len, parts)) >= 170
    assert [wrong for part in parts for wrong in find_wrong(part)] == []
