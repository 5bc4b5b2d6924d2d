"""The tvm engine: its options, its reasons, what it hands over by reference, and threads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.tirx import PrimFunc

from tests.engines.evidence import unknown_evidence
from tests.engines.tvm_running import CONTEXT, run, why
from tests.engines.written import function, one, tensor
from xrt.engines import CompileContext
from xrt.engines.tvm import Tvm
from xrt.engines.tvm.tables import ISSUES
from xrt.errors import CompileRefused, OptionError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes

# ---------------------------------------------------------------------- options


@pytest.mark.parametrize("level", [-1, 4, True, "3", 2.0])
def test_an_impossible_level_is_reported(level: Any) -> None:
    with pytest.raises(OptionError) as error:
        Tvm(opt_level=level)
    assert str(error.value) == f"opt_level of engine 'tvm' must be an integer from 0 to 3; got {level!r}"


def test_an_unknown_processor_is_reported_with_its_neighbour() -> None:
    with pytest.raises(OptionError) as error:
        Tvm(mcpu="x86-64-v33")
    assert str(error.value).startswith("tvm: mcpu='x86-64-v33' is not a processor that LLVM knows. Did you mean 'x86-64-v")


def test_a_processor_whose_code_this_one_cannot_run_is_reported() -> None:
    with pytest.raises(OptionError, match=r"^tvm: mcpu='diamondrapids' asks for .*amx.*, which this processor does not have$"):
        Tvm(mcpu="diamondrapids")


@pytest.mark.slow
def test_the_level_decides_on_fusion(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.tvm import pipeline

    functions: list[int] = []
    build = pipeline.relax.build

    def counting(module: Any, *rest: Any, **options: Any) -> Any:
        loops = [name.name_hint for name, f in module.functions.items() if isinstance(f, PrimFunc)]
        functions.append(sum(not name.endswith("_over_0") for name in loops))
        return build(module, *rest, **options)

    monkeypatch.setattr(pipeline.relax, "build", counting)
    chain = [Node(op, (f"v{k}",), (f"v{k + 1}",)) for k, op in enumerate(("Abs", "Sqrt", "Neg"))]
    f = function(*chain, inputs={"v0": tensor(8)}, outputs={"v3": tensor(8)}, types={"v1": tensor(8), "v2": tensor(8)})
    x = np.arange(8, dtype=np.float32)
    for level in (0, 3):
        assert np.allclose(run(f, x, engine=Tvm(opt_level=level))[0], -np.sqrt(x))
    assert functions == [3, 1]


@pytest.mark.slow
def test_code_for_an_older_processor_runs() -> None:
    x = np.linspace(-1, 1, 64, dtype=np.float32)
    assert np.allclose(run(one("Relu", tensor(64), output=tensor(64)), x, engine=Tvm(mcpu="x86-64-v2"))[0], np.maximum(x, 0))


def test_versions_of_all_that_decides_on_the_code() -> None:
    assert [part.split()[0] for part in Tvm().version().split(", ")] == ["tvm", "llvm", "tvm-ffi"]


def test_it_says_that_it_does_not_measure() -> None:
    assert Tvm().remarks(one("Relu", tensor(2))) == ("untuned: loops follow fixed rules, not measurements on this processor",)


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (
            one("LpNormalization", tensor(2)),
            "TVM cannot take this LpNormalization: The following operators are not supported for frontend ONNX: LpNormalization",
        ),
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Relu", tensor(None, 3)), "the shape of 'x0' is not known before the run"),
        (one("Relu", tensor(2, dtype=DType.INT4)), "'x0' is int4, which TVM does not compute in on a CPU"),
        (one("Identity", tensor(2, dtype=DType.STRING)), "'x0' is string, which TVM does not compute in on a CPU"),
        (one("Relu", tensor(0, 3)), "'x0' is float32[0,3], which has no elements, and TVM's loops need one"),
        (one("NonZero", tensor(3)), "the shape of what NonZero returns is not known to TVM before the run"),
        (
            one("Reshape", tensor(4), tensor(2, dtype=DType.INT64)),
            "TVM needs the 'shape' of Reshape as a constant, and here it is known only at run time",
        ),
        (
            one("ReduceSum", tensor(4), tensor(1, dtype=DType.INT64)),
            "TVM needs the 'axes' of ReduceSum as a constant, and here it is known only at run time",
        ),
        (
            one("Relu", tensor(4), output=tensor(5)),
            "TVM takes the result of this Relu for float32[4], where ONNX says float32[5]",
        ),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    assert why(f) == reason


def test_a_value_of_unknown_type_and_another_domain_are_declined() -> None:
    f = function(Node("Relu", ("x",), ("y",)), inputs={"x": None}, outputs={"y": None})
    assert why(f) == "the type of 'x' is not known before the run"
    fused = Node("FusedConv", ("x",), ("y",), domain="com.microsoft")
    f = function(fused, inputs={"x": tensor(2)}, outputs={"y": None})
    assert why(f) == (
        "TVM's importer does not tell operator domains apart, so that com.microsoft.FusedConv could mean another operator"
    )


def test_bodies_are_declined() -> None:
    body = function(Node("Relu", ("x",), ("z",)), inputs={}, outputs={"z": tensor(2)})
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}))
    f = function(node, inputs={"c": tensor(dtype=DType.BOOL), "x": tensor(2)}, outputs={"y": tensor(2)})
    assert why(f) == "If has a body, and XRT exports only straight-line code to TVM"


def test_outputs_that_nobody_reads_are_not_asked_for() -> None:
    node = Node("Dropout", ("x",), ("y", "mask"))
    used = function(node, inputs={"x": tensor(2)}, outputs={"y": tensor(2), "mask": tensor(2, dtype=DType.BOOL)})
    unused = function(node, inputs={"x": tensor(2)}, outputs={"y": tensor(2)})
    assert why(used).startswith("TVM takes the result of this Dropout")
    assert why(unused) == ""


def test_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.tvm import support

    monkeypatch.setattr(support, "import_function", pytest.fail)
    f = one("Relu", tensor(3, 1, 4, 1, 5), output=tensor(3, 1, 4, 1, 5))
    monkeypatch.undo()
    assert why(f) == ""
    monkeypatch.setattr(support, "import_function", pytest.fail)
    assert why(f.replace(name="other")) == ""


@pytest.mark.slow
def test_every_defect_names_evidence_that_exists() -> None:
    assert all(defect.ops and defect.reason and defect.evidence for defect in ISSUES)
    assert unknown_evidence(ISSUES) == []


def test_what_fails_late_is_a_refusal_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.tvm import engine

    def broken(*_: Any) -> Any:
        raise ValueError("  Check failed: (a == b) is false: the loops\n  are odd.\nStack trace:\n  File x")

    monkeypatch.setattr(engine, "build", broken)
    with pytest.raises(CompileRefused) as error:
        Tvm().compile(one("Relu", tensor(2), output=tensor(2)), CONTEXT)
    assert str(error.value) == "TVM cannot compile 'main': the loops"
    assert isinstance(error.value.__cause__, ValueError)


@pytest.mark.slow
def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert why(one("LpNormalization", tensor(7)))
    assert why(one("Pad", tensor(7), tensor(2, dtype=DType.INT64)))
    indices = np.array([1, -1])
    node = Node("Gather", ("x", "i"), ("y",))
    run(function(node, inputs={"x": tensor(3)}, outputs={"y": tensor(2)}, constants={"i": indices}), np.ones(3, np.float32))
    power = Node("Pow", ("x", "e"), ("y",))
    cube = function(power, inputs={"x": tensor(3)}, outputs={"y": tensor(3)}, constants={"e": np.array(3, np.float32)})
    assert run(cube, np.array([1, 2, -3], np.float32))[0].tolist() == [1, 8, -27]
    assert why(one("ReduceMax", tensor(3, dtype=DType.BOOL), output=tensor(1, dtype=DType.BOOL), opset=20)) == (
        "TVM cannot take this ReduceMax: Cannot decide min_value for typeT.bool"
    )
    assert capfd.readouterr() == ("", "")


# ---------------------------------------------------------------------- arrays in and out


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 4, 16, 36])
def test_any_alignment_is_taken_as_it_is(offset: int) -> None:
    raw = np.zeros(4096 + 64, np.uint8)
    start = (offset - raw.ctypes.data) % 64
    x = raw[start : start + 4096].view(np.float32)
    x[:] = np.arange(1024) - 512
    assert x.ctypes.data % 64 == offset
    assert np.array_equal(run(one("Relu", tensor(1024), output=tensor(1024)), x)[0], np.maximum(x, 0))


# ---------------------------------------------------------------------- threads


def test_one_thread_makes_serial_loops() -> None:
    import tvm

    x = np.ones((512, 512), np.float32)
    executable = Tvm().compile(one("Relu", tensor(512, 512), output=tensor(512, 512)), CompileContext(threads=1))
    executable.run([x])
    assert tvm.get_global_func("runtime.NumThreads")() == 1


@pytest.mark.slow
def test_torch_may_not_be_needed_and_tvm_comes_late() -> None:
    code = "import sys, xrt.engines.contract.registry; assert not {m.partition('.')[0] for m in sys.modules} & {'tvm', 'tvm_ffi'}"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_function_without_code_is_not_saved(tmp_path: Path) -> None:
    shape = TensorType(DType.FLOAT32, (1,))
    held = {"c": Constant(np.float32(3)), "axes": Constant(np.zeros(1, np.int64))}
    f = Function((), (Value("y", shape),), (Node("Unsqueeze", ("c", "axes"), ("y",)),), held, {"": 18})
    executable = Tvm().compile(f, CONTEXT)
    try:
        with pytest.raises(CompileRefused, match=r"^TVM writes no object file of a module of kind '\w+', which has no code$"):
            Tvm().save(executable, CompileContext(workdir=tmp_path))
    finally:
        executable.close()
