"""The iree engine: its options, its reasons, the text that it hands over, memory, and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from xrt.engines import CompileContext, Executable, RunOptions, registry
from xrt.engines.iree import Iree, capability, compiler
from xrt.engines.iree.devices import device_of, is_small
from xrt.engines.iree.gaps import GAPS
from xrt.engines.iree.lowering import prepared
from xrt.engines.iree.mlir import module_of, parameters_of
from xrt.errors import CompileRefused, OptionError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, attributes_of
from xrt.passes import infer_shapes
from xrt.testing.cases import node_cases
from xrt.testing.corpus import CORPUS

Array = np.ndarray[Any, Any]
IREE = Iree()
CONTEXT = CompileContext(threads=2)


def tensor(*shape: int | str, dtype: DType = DType.FLOAT32) -> TensorType:
    return TensorType(dtype, shape)


def function(
    *nodes: Node,
    inputs: dict[str, TensorType | None],
    outputs: tuple[str, ...] = ("y",),
    constants: dict[str, Array] | None = None,
    opset: int = 18,
) -> Function:
    made = Function(
        tuple(Value(name, type_) for name, type_ in inputs.items()),
        tuple(Value(name) for name in outputs),
        nodes,
        {name: Constant(array) for name, array in (constants or {}).items()},
        {"": opset},
    )
    return infer_shapes(made)


def one(op_type: str, *shapes: TensorType, opset: int = 18, **attributes: Any) -> Function:
    names = [f"x{k}" for k in range(len(shapes))]
    node = Node(op_type, tuple(names), ("y",), attributes_of(attributes))
    return function(node, inputs=dict(zip(names, shapes, strict=True)), opset=opset)


def compiled(f: Function, engine: Iree = IREE, context: CompileContext = CONTEXT) -> Executable:
    executable = engine.compile(f, context)
    executable.prepare()
    return executable


@cache
def negation() -> Executable:
    """A compile costs half a second; most tests need no more than this one."""
    return compiled(one("Neg", tensor(4, 6)))


def why(f: Function) -> str:
    return IREE.why_not(f.nodes[-1], f) or ""


# ---------------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("option", "told"),
    [
        ({"opt_level": 4}, "iree: opt_level must be 0, 1, 2 or 3; got 4"),
        ({"opt_level": True}, "iree: opt_level must be 0, 1, 2 or 3; got True"),
        ({"compile_seconds": 0}, "iree: compile_seconds must be more than 0; got 0"),
        ({"compile_seconds": "1"}, "iree: compile_seconds must be more than 0; got '1'"),
        (
            {"device": "local-tusk"},
            "iree: device must be one of auto, local-sync, local-task; got 'local-tusk'. Did you mean 'local-task'?",
        ),
    ],
    ids=str,
)
def test_impossible_options_are_told(option: dict[str, Any], told: str) -> None:
    with pytest.raises(OptionError) as error:
        Iree(**option)
    assert str(error.value) == told


def test_the_spec_makes_it_again() -> None:
    engine = Iree(opt_level=1, device="local-task", compile_seconds=9.5, dump_dir="/tmp/x")
    assert registry.create(engine.spec) == engine
    assert IREE.spec == "iree"


def test_versions_of_all_that_decides_on_the_code() -> None:
    parts = IREE.version().split(", ")
    assert [part.split()[0] for part in parts] == ["iree-base-compiler", "iree-base-runtime"]
    assert all(part.split()[1].startswith("3.") for part in parts)


def test_the_level_reaches_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def run(text: str, flags: tuple[str, ...], *rest: Any) -> Any:
        asked.append(flags)
        return subprocess.CompletedProcess([], 1, b"", b"<stdin>:1:1: error: no")

    monkeypatch.setattr(compiler, "_run", run)
    for engine, threads in ((Iree(opt_level=3), 1), (IREE, 2)):
        with pytest.raises(CompileRefused, match=r"^IREE cannot compile it: no$"):
            engine.compile(one("Neg", tensor(2)), CompileContext(threads=threads))
    assert ["--iree-opt-level=O3" in asked[0], "--mlir-disable-threading" in asked[0]] == [True, True]
    assert ["--iree-opt-level=O2" in asked[1], "--mlir-disable-threading" in asked[1]] == [True, False]


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
        Node("Gemm", ("x", "w", ""), ("g",), attributes_of({"alpha": 0.5, "transB": 1})),
        Node("Clip", ("g", "", "high"), ("y",)),
        inputs={"x": tensor(2, 8)},
        constants={"w": np.ones((9, 8), np.float32), "high": np.array(1.5, np.float32)},
    )
    meta = "{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 13 : si64}"
    assert module_of(f).splitlines() == [
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
        return module_of(function(node, inputs={x: tensor(100)}, outputs=(y,), constants={w: np.ones(100, np.float32)}))

    assert made("x", "w", "y") == made("a b", 'quoted "name"', "%0")


def test_what_has_no_words_is_a_refusal_with_the_reason() -> None:
    f = function(Node("Identity", ("x",), ("y",)), inputs={"x": tensor(2, dtype=DType.STRING)})
    with pytest.raises(CompileRefused, match=r"^IREE cannot take 'main': a value of type string\[2\] has no type in MLIR"):
        IREE.compile(f, CONTEXT)
    f = one("Relu", tensor("n", 3))
    with pytest.raises(CompileRefused, match=r"^IREE cannot take 'main': the shape of 'x0' is not known before the run$"):
        IREE.compile(f, CONTEXT)


# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Relu", tensor("N", 3)), "the shape of 'x0' is not known before the run"),
        (one("Relu", tensor(2, dtype=DType.INT4)), "'x0' is int4, which IREE is not handed"),
        (one("Relu", tensor(0, 3)), "'x0' is float32[0,3], which has no elements, and no memory to hand over"),
        (one("NonZero", tensor(3)), "the shape of 'y' is not known before the run"),
        (
            one("RandomNormalLike", tensor(3)),
            "RandomNormalLike draws numbers by chance, and IREE draws others than ONNX asks for",
        ),
        (one("BitCast", tensor(3), opset=26, to=6), "IREE cannot take this BitCast: it has no rule to lower this BitCast"),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    assert why(f) == reason


def test_bodies_and_other_domains_are_declined() -> None:
    body = function(Node("Relu", ("x",), ("z",)), inputs={}, outputs=("z",))
    node = Node("If", ("c",), ("y",), attributes_of({"then_branch": body, "else_branch": body}))
    f = function(node, inputs={"c": tensor(dtype=DType.BOOL), "x": tensor(2)})
    assert why(f) == "If has a body, and XRT hands IREE straight-line code only"
    f = function(Node("FusedConv", ("x",), ("y",), domain="com.microsoft"), inputs={"x": tensor(2)})
    assert why(f) == "IREE's compiler has rules for ONNX's own operators, not for those of 'com.microsoft'"


def test_all_kinds_of_a_function_are_asked_about_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def lowered(texts: list[str], names: list[str]) -> list[str | None]:
        asked.append(len(texts))
        return [None] * len(texts)

    monkeypatch.setattr(capability, "lowered", lowered)
    monkeypatch.setattr(capability, "_memory", capability._Memory())
    chain = [Node(op, (f"v{k}",), (f"v{k + 1}",)) for k, op in enumerate(("Ceil", "Erf", "Ceil", "Round", "NoSuch"))]
    f = function(*chain, inputs={"v0": tensor(3, 1, 4)}, outputs=("v5",))
    assert [IREE.why_not(node, f) for node in f.nodes[:4]] == [None] * 4
    assert asked == [3]
    assert IREE.why_not(f.nodes[0], f.replace(name="other")) is None
    assert asked == [3]


def test_one_that_fails_among_many_has_its_own_reason() -> None:
    texts = [_question("Abs", "a"), _question("NoSuch", "b"), _question("Tanh", "c")]
    assert compiler.lowered(texts, ["a", "b", "c"]) == [None, "it has no rule to lower this NoSuch", None]


def _question(op_type: str, name: str) -> str:
    signature = "(!torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32>"
    meta = "{torch.onnx_meta.ir_version = 10 : si64, torch.onnx_meta.opset_version = 18 : si64}"
    head = f"func.func @{name}(%x: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],f32> attributes {meta}"
    lines = f'%y = torch.operator "onnx.{op_type}"(%x) : {signature}\nreturn %y : !torch.vtensor<[2],f32>'
    return f"module {{\n{head} {{\n{lines}\n}}\n}}\n"


@pytest.mark.slow
def test_every_gap_names_evidence_that_exists() -> None:
    known = {case.name for case in node_cases()} | {f"{entry.name} of the corpus" for entry in CORPUS}
    assert all(gap.ops and gap.reason and gap.evidence for gap in GAPS)
    assert [name for gap in GAPS for name in gap.evidence if name not in known] == []


# ---------------------------------------------------------------------- the compiler as a process


def _fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    binary = tmp_path / "compiler"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    monkeypatch.setattr(compiler, "BINARY", binary)


@pytest.mark.parametrize(
    ("script", "seconds", "reason"),
    [
        ("kill -SEGV $$", 60, "IREE cannot compile it: it crashed (SIGSEGV)"),
        ("echo 'LLVM ERROR: no such type' >&2; kill -ABRT $$", 60, "IREE cannot compile it: no such type"),
        ("exit 3", 60, "IREE cannot compile it: it said nothing"),
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


def test_a_hang_takes_its_children_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path, monkeypatch, f"(while ! [ -e {tmp_path}/ended ]; do sleep 0.1; done; touch {tmp_path}/survived) & wait")
    with pytest.raises(CompileRefused):
        Iree(compile_seconds=0.3).compile(one("Neg", tensor(2)), CONTEXT)
    (tmp_path / "ended").touch()
    time.sleep(0.5)
    assert not (tmp_path / "survived").exists()


def test_the_compiler_is_never_loaded_into_the_process() -> None:
    code = (
        "import sys, xrt.engines.registry as r; assert 'iree.runtime' not in sys.modules;"
        "r.create('iree'); assert 'iree.runtime' in sys.modules and 'iree.compiler' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# ---------------------------------------------------------------------- arrays in and out


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bfloat16"])
def test_types_of_numbers(dtype: str) -> None:
    type_ = DType.parse(dtype)
    x = np.arange(8).astype(type_.numpy)
    (y,) = compiled(one("Add", tensor(8, dtype=type_), tensor(8, dtype=type_))).run([x, x])
    assert y.dtype == x.dtype and np.array_equal(y, x + x)


def test_booleans_and_scalars() -> None:
    f = function(
        Node("Greater", ("x", "z"), ("g",)),
        Node("Not", ("b",), ("n",)),
        Node("And", ("g", "n"), ("y",)),
        inputs={"x": tensor(), "z": tensor(), "b": tensor(dtype=DType.BOOL)},
        outputs=("y", "g"),
    )
    two, one_, no = np.float32(2)[...], np.array(1, np.float32), np.array(False)
    y, g = compiled(f).run([two, one_, no])
    assert all(isinstance(a, np.ndarray) and a.shape == () and a.dtype == np.bool_ and bool(a) for a in (y, g))


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


def test_strided_and_read_only_inputs() -> None:
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    frozen = base.copy()
    frozen.flags.writeable = False
    for x in (base, np.asfortranarray(base), np.repeat(base, 2, axis=0)[::2], frozen):
        assert np.array_equal(negation().run([x])[0], -base)
        assert np.array_equal(negation().direct()(x)[0], -base)
    assert np.array_equal(frozen, base)


def test_read_only_arrays_of_a_type_that_numpy_lacks() -> None:
    x = np.linspace(-2, 2, 9).astype(ml_dtypes.bfloat16)
    x.flags.writeable = False
    (y,) = compiled(one("Neg", tensor(9, dtype=DType.BFLOAT16))).run([x])
    assert np.array_equal(y, -x)


def test_results_are_memory_of_their_own() -> None:
    """Outputs that are an input, a constant, the same twice."""
    constant = np.arange(100, dtype=np.float32)
    f = function(
        Node("Identity", ("x",), ("same",)),
        Node("Neg", ("x",), ("y",)),
        Node("Identity", ("y",), ("z",)),
        inputs={"x": tensor(100)},
        outputs=("x", "same", "y", "z", "c", "y"),
        constants={"c": constant},
    )
    x = np.ones(100, np.float32)
    executable = compiled(f)
    first, second = (list(executable.run([x])) for _ in range(2))
    assert executable.outputs_are_fresh
    assert all(np.array_equal(r, w) for r, w in zip(first, (x, x, -x, -x, constant, -x), strict=True))
    everything = [x, constant, *first, *second]
    assert not any(np.shares_memory(a, b) for i, a in enumerate(everything) for b in everything[:i])
    assert all(result.flags.writeable and result.flags.owndata for result in first)


def test_results_outlive_what_made_them() -> None:
    executable = compiled(one("Sqrt", tensor(1000)))
    (y,) = executable.run([np.full(1000, 4, np.float32)])
    executable.close()
    del executable
    assert y.tolist() == [2.0] * 1000


def test_no_inputs_and_no_nodes() -> None:
    made = function(Node("Neg", ("c",), ("y",)), inputs={}, constants={"c": np.ones(3, np.float32)})
    assert compiled(made).run([])[0].tolist() == [-1, -1, -1]


def test_what_is_sorted_is_not_written_to() -> None:
    f = function(
        Node("TopK", ("x", "k"), ("y", "i")),
        inputs={"x": tensor(3, 4)},
        outputs=("y", "i"),
        constants={"k": np.array([3])},
    )
    x = np.random.default_rng(0).random((3, 4), dtype=np.float32)
    kept, executable = x.copy(), compiled(f)
    buffers = [np.empty((3, 3), np.float32), np.empty((3, 3), np.int64)]
    calls = [lambda: executable.run([x]), lambda: executable.direct()(x), executable.bind([x], buffers)]
    for call in calls:
        call()
        assert np.array_equal(x, kept)
    executable.into(buffers)(x)
    assert np.array_equal(x, kept) and np.array_equal(buffers[0], -np.sort(-kept, axis=1)[:, :3])


def test_a_bound_call_reads_and_writes_where_the_arrays_lie() -> None:
    x, y = np.ones((4, 6), np.float32), np.empty((4, 6), np.float32)
    executable = negation()
    assert executable.binds() and executable.fills_from() == [0]
    call = executable.bind([x], [y])
    for value in (1, 2):
        x[...] = value
        call()
        assert (y == -value).all()


def test_a_failure_to_run_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunFailed, match=r"^IREE failed while it ran 'main': .*"):
        negation()._invoke([])  # type: ignore[attr-defined]  # no way of the contract's reaches the library with too few arguments


# ---------------------------------------------------------------------- weights, saving


def weighted() -> Function:
    w = np.random.default_rng(0).random((64, 32), dtype=np.float32)
    return function(Node("MatMul", ("x", "w"), ("y",)), inputs={"x": tensor(3, 64)}, constants={"w": w})


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


def test_weights_that_lie_badly_are_copied_and_told() -> None:
    raw = np.zeros(64 * 32 * 4 + 64, np.uint8)
    start = (4 - raw.ctypes.data) % 64
    w = raw[start : start + 64 * 32 * 4].view(np.float32).reshape(64, 32)
    executable = compiled(weighted().replace(constants={"w": Constant(w)}))
    copied = [use.nbytes for use in executable.memory() or () if use.name == "copied weights"]
    assert copied in ([w.nbytes], [])  # a Constant may have copied it already
    assert not executable.run([np.ones((3, 64), np.float32)])[0].any()


def test_parameters_are_found_by_place() -> None:
    f = prepared(weighted())
    assert list(parameters_of(f)) == ["w"]


# ---------------------------------------------------------------------- threads


def test_small_work_stays_in_the_calling_thread() -> None:
    assert is_small(one("Relu", tensor(100, 100)))
    assert not is_small(one("Relu", tensor(1024, 1024)))
    assert not is_small(one("MatMul", tensor(100, 100), tensor(100, 100)))
    assert device_of(1) is device_of(1) is not device_of(2)


def test_a_pool_has_as_many_workers_as_the_budget() -> None:
    code = (
        "from pathlib import Path; from xrt.engines.iree.devices import device_of\n"
        "def workers(): return sum('iree-worker' in (t / 'comm').read_text() for t in Path('/proc/self/task').iterdir())\n"
        "device_of(1); first = workers(); device_of(3); import time\n"
        "while workers() < 3: time.sleep(0.01)\n"  # a thread has its name when it begins to run
        "print(first, workers())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "3"]


def test_eight_threads_share_a_pool() -> None:
    """What is generated for the suite is so small that each calling thread does it alone."""
    f = function(
        Node("Exp", ("x",), ("e",)),
        Node("ReduceSum", ("e",), ("s",), attributes_of({"keepdims": 1})),
        Node("Div", ("e", "s"), ("y",)),
        inputs={"x": tensor(64, 300)},
    )
    executable = compiled(f, Iree(device="local-task"))
    inputs = [np.random.default_rng(seed).random((64, 300), dtype=np.float32) for seed in range(8)]
    expected = [np.exp(x) / np.exp(x).sum() for x in inputs]
    wrong: list[int] = []

    def work(place: int) -> None:
        for _ in range(100):
            (y,) = executable.run([inputs[place]])
            if not np.allclose(y, expected[place], rtol=1e-4):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_the_process_ends_well_whatever_is_still_held(device: str) -> None:
    code = (
        "import numpy as np, xrt\n"
        "class Net(xrt.Graph):\n"
        "    def build(self, x): return xrt.ops.Neg(x)\n"
        f"m = xrt.XRTModule(Net(), engine='iree{{device={device}}}', strict=True, threads=2)\n"
        "kept = [m(np.ones((4, 4), 'float32')) for _ in range(3)]\n"
        "print(kept[0].sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-16.0\n", "")
