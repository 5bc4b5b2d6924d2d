"""The iree engine: its options, its reasons, the text that it hands over, and the compiler as a process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engines.evidence import unknown_evidence
from tests.engines.iree_running import CONTEXT, IREE, compiled, function, one, why
from tests.engines.written import tensor
from xrt.engines import CompileContext
from xrt.engines.iree import Iree, compiler
from xrt.engines.iree.export import export_module
from xrt.engines.iree.tables import ISSUES
from xrt.errors import CompileRefused, OptionError
from xrt.graph import DType, Function, Node, read_attributes

# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"opt_level": 4}, "opt_level of engine 'iree' must be an integer from 0 to 3; got 4"),
        ({"opt_level": True}, "opt_level of engine 'iree' must be an integer from 0 to 3; got True"),
        ({"compile_seconds": 0}, "compile_seconds of engine 'iree' must be a positive number; got 0"),
        ({"compile_seconds": "1"}, "compile_seconds of engine 'iree' must be a positive number; got '1'"),
        (
            {"device": "local-tusk"},
            "device of engine 'iree' must be one of auto, local-sync, local-task; got 'local-tusk'. Did you mean 'local-task'?",
        ),
    ],
    ids=str,
)
def test_impossible_options_are_reported(option: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError) as error:
        Iree(**option)
    assert str(error.value) == told


def test_versions_of_all_that_decides_on_the_code() -> None:
    parts = IREE.version().split(", ")
    assert [part.split()[0] for part in parts] == ["iree-base-compiler", "iree-base-runtime"]
    assert all(part.split()[1].startswith("3.") for part in parts)


def test_the_level_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(command: list[str], *rest: Any, **more: Any) -> Any:
        asked.append(tuple(command))
        return subprocess.CompletedProcess([], 1, b"", b"<stdin>:1:1: error: no")

    monkeypatch.setattr(compiler, "run", run)
    for engine, threads in ((Iree(opt_level=3), 1), (IREE, 2)):
        with pytest.raises(CompileRefused, match=r"^IREE cannot compile it: no$"):
            engine.compile(one("Neg", tensor(2)), CompileContext(threads=threads))
    assert ["--iree-opt-level=O3" in asked[0], "--mlir-disable-threading" in asked[0]] == [True, True]
    assert ["--iree-opt-level=O2" in asked[1], "--mlir-disable-threading" in asked[1]] == [True, False]


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
def test_the_phases_are_written_to_a_folder_that_is_named_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Iree(dump_dir="dumped").compile(one("Neg", tensor(2)), CONTEXT)
    assert list(tmp_path.glob("dumped/*/12.vm.mlir"))


@pytest.mark.slow
def test_the_mlir_of_every_phase_is_written_on_request(tmp_path: Path) -> None:
    f = one("Relu", tensor(2, 3)).replace(name="block 1/relu")
    Iree(dump_dir=str(tmp_path)).compile(f, CONTEXT)
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("block_1_relu-")
    files = sorted(file.name for file in folder.iterdir())
    assert {"0.onnx.mlir", "1.input.mlir", "6.flow.mlir", "10.executable-targets.mlir", "12.vm.mlir"} <= set(files)
    assert 'torch.operator "onnx.Relu"' in (folder / "0.onnx.mlir").read_text()
    assert "linalg.generic" in (folder / "1.input.mlir").read_text()
    assert "llvm.func" in (folder / "10.executable-targets.mlir").read_text()


# ---------------------------------------------------------------------- the text


def test_a_function_as_mlir() -> None:
    f = function(
        Node("Gemm", ("x", "w", ""), ("g",), read_attributes({"alpha": 0.5, "transB": 1})),
        Node("Clip", ("g", "", "high"), ("y",)),
        inputs={"x": tensor(2, 8)},
        constants={"w": np.ones((9, 8), np.float32), "high": np.array(1.5, np.float32)},
    )
    meta = "{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 13 : si64}"
    assert export_module(f).splitlines() == [
        "module {",
        '  util.global private @weight0 = #flow.parameter.named<"weights"::"0"> : tensor<9x8xf32>',
        f"  func.func @main(%v0: !torch.vtensor<[2,8],f32>, %out0: !torch.tensor<[2,9],f32>) attributes {meta} {{",
        "    %weight0 = util.global.load @weight0 : tensor<9x8xf32>",
        "    %v1 = torch_c.from_builtin_tensor %weight0 : tensor<9x8xf32> -> !torch.vtensor<[9,8],f32>",
        "    %none = torch.constant.none",
        (
            '    %v2 = torch.operator "onnx.Constant"() {torch.onnx.value = dense<"0x0000C03F"> : tensor<f32>}'
            " : () -> !torch.vtensor<[],f32>"
        ),
        (
            '    %v3 = torch.operator "onnx.Gemm"(%v0, %v1, %none)'
            " {torch.onnx.alpha = 0x3F000000 : f32, torch.onnx.transB = 1 : si64}"
            " : (!torch.vtensor<[2,8],f32>, !torch.vtensor<[9,8],f32>, !torch.none) -> !torch.vtensor<[2,9],f32>"
        ),
        (
            '    %v4 = torch.operator "onnx.Clip"(%v3, %none, %v2)'
            " : (!torch.vtensor<[2,9],f32>, !torch.none, !torch.vtensor<[],f32>) -> !torch.vtensor<[2,9],f32>"
        ),
        "    torch.overwrite.tensor.contents %v4 overwrites %out0 : !torch.vtensor<[2,9],f32>, !torch.tensor<[2,9],f32>",
        "    return",
        "  }",
        "}",
    ]


def test_equal_functions_give_equal_text_whatever_their_names() -> None:
    def made(x: str, w: str, y: str) -> str:
        node = Node("Add", (x, w), (y,))
        return export_module(function(node, inputs={x: tensor(100)}, outputs=(y,), constants={w: np.ones(100, np.float32)}))

    assert made("x", "w", "y") == made("a b", 'quoted "name"', "%0")


def test_what_has_no_words_is_a_refusal_with_the_reason() -> None:
    f = function(Node("Identity", ("x",), ("y",)), inputs={"x": tensor(2, dtype=DType.STRING)})
    with pytest.raises(CompileRefused, match=r"^IREE cannot take 'main': a value of type string\[2\] has no type in MLIR"):
        IREE.compile(f, CONTEXT)
    f = one("Relu", tensor(None, 3))
    with pytest.raises(CompileRefused, match=r"^IREE cannot take 'main': the shape of 'x0' is not known before the run$"):
        IREE.compile(f, CONTEXT)


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Relu", tensor(None, 3)), "the shape of 'x0' is not known before the run"),
        (one("Relu", tensor(2, dtype=DType.INT4)), "'x0' is int4, which XRT does not export to IREE"),
        (one("Relu", tensor(0, 3)), "'x0' is float32[0,3], which has no elements and so no memory to pass"),
        (one("NonZero", tensor(3)), "the shape of 'y' is not known before the run"),
        (
            one("RandomNormalLike", tensor(3)),
            "RandomNormalLike draws random numbers, and IREE does not follow ONNX's distribution",
        ),
        (one("BitCast", tensor(3), opset=26, to=6), "IREE cannot take this BitCast: it has no rule to lower this BitCast"),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    assert why(f) == reason


def test_bodies_and_other_domains_are_declined() -> None:
    body = function(Node("Relu", ("x",), ("z",)), inputs={}, outputs=("z",))
    node = Node("If", ("c",), ("y",), read_attributes({"then_branch": body, "else_branch": body}))
    f = function(node, inputs={"c": tensor(dtype=DType.BOOL), "x": tensor(2)})
    assert why(f) == "If has a body, and XRT exports only straight-line code to IREE"
    f = function(Node("FusedConv", ("x",), ("y",), domain="com.microsoft"), inputs={"x": tensor(2)})
    assert why(f) == "IREE's compiler has rules for ONNX's own operators, not for those of 'com.microsoft'"


@pytest.mark.slow
def test_one_that_fails_among_many_has_its_own_reason() -> None:
    texts = [_question("Abs", "a"), _question("NoSuch", "b"), _question("Tanh", "c")]
    assert compiler.lower_module(texts, ["a", "b", "c"]) == [None, "it has no rule to lower this NoSuch", None]


def _question(op_type: str, name: str) -> str:
    signature = "(!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>"
    meta = "{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 18 : si64}"
    head = f"func.func @{name}(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> attributes {meta}"
    lines = f'%y = torch.operator "onnx.{op_type}"(%x) : {signature}\nreturn %y : !torch.vtensor<[2],f32>'
    return f"module {{\n{head} {{\n{lines}\n}}\n}}\n"


@pytest.mark.slow
def test_every_gap_names_evidence_that_exists() -> None:
    assert all(gap.ops and gap.reason and gap.evidence for gap in ISSUES)
    assert unknown_evidence(ISSUES) == []


# ---------------------------------------------------------------------- the compiler as a process


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
        ("echo 'LLVM ERROR: no such type' >&2; kill -ABRT $$", 60, "IREE cannot compile it: no such type"),
        ("exit 3", 60, "IREE cannot compile it: it gives no reason"),
        ("while true; do sleep 1; done", 0.5, "IREE's compiler did not end within 0.5 s"),
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
