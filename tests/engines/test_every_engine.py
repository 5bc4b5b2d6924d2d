"""What holds for several engines: arrays at any address, indices, weights, known issues, late refusals, and faster forms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.engines import written
from tests.engines.written import function, node, one, resident, tensor
from tools.known_failures import list_known_issues
from xrt.engines import CompileContext, RunOptions
from xrt.engines.contract import registry
from xrt.engines.toolkit.known_issues import KnownIssue
from xrt.engines.toolkit.reference_evaluator import evaluate
from xrt.errors import CompileRefused, DeviceError
from xrt.graph import DType, Function, Node, SequenceType, TensorType
from xrt.passes import infer_shapes
from xrt.runtime.devices import device
from xrt.testing import ConformanceCase, node_cases
from xrt.testing.corpus import CorpusEntry, find_entry
from xrt.testing.simulated import simulate_devices


def compiled(engine: str, f: Function) -> Any:
    return written.compiled(registry.create(engine), infer_shapes(f))


@cache
def negation(engine: str) -> Any:
    return compiled(engine, one("Neg", tensor(4, 6)))


@pytest.mark.slow
@pytest.mark.parametrize("offset", [0, 4, 16, 36])
@pytest.mark.parametrize("engine", ["ort", "openvino", "tvm", "xla", "iree", "torch"])
def test_arrays_at_any_address_are_read_and_written(engine: str, offset: int) -> None:
    raw = np.zeros(256, np.uint8)
    start = (offset - raw.ctypes.data) % 64
    x, buffer = (raw[at : at + 96].view(np.float32).reshape(4, 6) for at in (start, start + 96))
    x[:] = np.arange(24).reshape(4, 6)
    assert np.array_equal(negation(engine).run([x])[0], -x)
    (y,) = negation(engine).run([x], RunOptions(out=[buffer]))
    assert y is buffer and np.array_equal(buffer, -x)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort", "openvino", "tvm", "xla", "iree", "torch"])
def test_a_stream_on_the_cpu_is_refused(engine: str) -> None:
    with pytest.raises(DeviceError, match=r"^a stream was passed for a run on the CPU, which has no streams; pass stream=None$"):
        negation(engine).run([np.ones((4, 6), np.float32)], RunOptions(stream=object()))


@cache
def indexing(engine: str) -> Any:
    integers = DType.INT64
    inputs = {"x": tensor(4), "i": tensor(3, dtype=integers), "u": tensor(3), "m": tensor(2, 3)}
    inputs |= {"t": tensor(1, 2, dtype=integers), "v": tensor(1)}
    nodes = [
        *(node("Gather", "x i", "a"), node("GatherElements", "x i", "b"), node("GatherND", "m t", "c")),
        *(node("ScatterElements", "x i u", "d"), node("ScatterND", "m t v", "e")),
    ]
    return compiled(engine, function(*nodes, inputs=inputs, outputs=tuple("abcde")))


@pytest.mark.slow
@pytest.mark.parametrize("far", [10, 10**6, 10**12])
@pytest.mark.parametrize("engine", ["tvm", "iree"])
def test_an_index_outside_of_its_axis_is_the_nearest_inside(engine: str, far: int) -> None:
    """ONNX calls it an error; these libraries would read and write behind the array."""
    x, m = np.arange(4, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    updates, last = np.array([7, 8, 9], np.float32), np.array([9], np.float32)
    a, b, c, d, e = indexing(engine).run([x, np.array([far, -far, -1]), updates, m, np.array([[1, far]]), last])
    assert a.tolist() == b.tolist() == [3, 0, 3] and c.tolist() == [5]
    assert d[0] == 8 and d[3] in (7, 9) and d[1:3].tolist() == [1, 2]
    assert e.tolist() == [[0, 1, 2], [3, 4, 9]]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_large_constants_are_not_copied(engine: str) -> None:
    negation(engine)
    weights = np.random.default_rng(0).standard_normal((1024, 16384), np.float32)
    f = function(node("Gather", "w i", "y"), inputs={"i": tensor(1, dtype=DType.INT64)}, constants={"w": weights})
    before = resident()
    (y,) = compiled(engine, f).run([np.array([3])])
    assert np.array_equal(y[0], weights[3])
    assert resident() - before < weights.nbytes / 4


@pytest.mark.parametrize("engine", ["ort", "openvino"])
def test_a_large_constant_may_be_mapped_or_lie_in_any_order(engine: str, tmp_path: Path) -> None:
    np.save(tmp_path / "w.npy", np.arange(60000, dtype=np.float32).reshape(20000, 3))
    mapped = np.load(tmp_path / "w.npy", mmap_mode="r")
    turned = np.arange(60000, dtype=np.float32).reshape(3, 20000).T
    nodes = [node("Gemm", "x m", "a", transB=1), node("Transpose", "t", "b"), node("Cast", "s", "c", to=DType.FLOAT32.onnx)]
    constants = {"m": mapped, "t": turned, "s": np.ones(50000, ml_dtypes.bfloat16)}
    executable = compiled(engine, function(*nodes, inputs={"x": tensor(2, 3)}, outputs=("a", "b", "c"), constants=constants))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    a, b, c = executable.run([x])
    assert np.allclose(a, x @ mapped.T, rtol=1e-5)
    assert np.array_equal(b, turned.T)
    assert np.array_equal(c, np.ones(50000, np.float32))
    assert {use.name: use.nbytes for use in executable.memory() or ()}["copied weights"] >= turned.nbytes


def list_evidence(issue: KnownIssue) -> Iterator[ConformanceCase | CorpusEntry]:
    """Yield the node tests and entries of the corpus that are evidence for the issue; what is neither is a comparison."""
    for item in issue.evidence:
        names = re.findall(r"\btest_\w+|\w+(?= of the corpus)", item)
        assert names or item.startswith(("compared with ", "refused by ")), item
        for name in names:
            (case,) = node_cases(name) if name.startswith("test_") else [find_entry(name)]
            yield case


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", "tvm", "openvino", "iree", "torch{mode=inductor}"])
def test_known_issues_decline_their_evidence(engine: str) -> None:
    compiler = registry.create(engine)
    for issue in list_known_issues()[engine]:
        assert issue.ops and issue.reason and issue.evidence
        for case in list_evidence(issue):
            f = infer_shapes(case.function)
            is_declined = any(compiler.why_not(n, f) for n in f.nodes)
            assert is_declined or engine == "openvino", f"{case.name}: {issue.reason}"  # OpenVINO gets such an operator expanded


def list_reasons() -> Iterator[Any]:
    """Yield an engine, the Function of a node, and why the engine does not support it."""
    texts, integers, rows = tensor(2, dtype=DType.STRING), tensor(2, dtype=DType.INT64), tensor(None, 3)
    for engine, reason in (
        ("tvm", "which XRT does not compile with TVM"),
        ("iree", "which XRT does not export to IREE"),
        ("xla", "and this engine does not support Identity in that type"),
        ("torch", "and this engine does not support Identity in that type"),
    ):
        yield engine, one("Identity", texts, output=texts), f"'x0' is string, {reason}"
    for engine in ("tvm", "xla", "iree"):
        yield engine, one("Relu", rows, output=rows), "the shape of 'x0' is not known before the run"
    body = function(node("Relu", "x", "z"), inputs={}, outputs={"z": tensor(2)})
    choice, flag = node("If", "c", "y", then_branch=body, else_branch=body), tensor(dtype=DType.BOOL)
    choice = function(choice, inputs={"c": flag, "x": tensor(2)}, outputs={"y": tensor(2)})
    for engine, name in (("tvm", "TVM"), ("iree", "IREE")):
        yield engine, choice, f"If has a body, and XRT exports only straight-line code to {name}"
    for engine, moment in (("tvm", "as a constant"), ("xla", "as a constant")):
        reason = f"{engine.upper()} needs the 'shape' of Reshape {moment}, and it is computed at run time"
        yield engine, one("Reshape", tensor(4), integers, output=tensor(2, 2)), reason
        reason = f"{engine.upper()} takes the result of this Relu for float32[4], where ONNX says float32[5]"
        yield engine, one("Relu", tensor(4), output=tensor(5)), reason
    for engine, reason in (("tvm", ", and TVM's loops need at least one"), ("iree", " and so no memory to pass")):
        yield engine, one("Relu", tensor(0, 3), output=tensor(0, 3)), f"'x0' is float32[0,3], which has no elements{reason}"
    int4 = tensor(2, dtype=DType.INT4)
    yield "tvm", one("Relu", int4, output=int4), "'x0' is int4, which XRT does not compile with TVM"
    yield "iree", one("Relu", int4, output=int4), "'x0' is int4, which XRT does not export to IREE"
    yield "tvm", one("NonZero", tensor(3)), "TVM does not know the shape of the result of NonZero before the run"
    yield "iree", one("NonZero", tensor(3), output=tensor(1, None)), "the shape of 'y' is not known before the run"
    yield "xla", one("NonZero", tensor(3)), "engine 'xla' has no kernel for NonZero"
    reason = "TVM needs the 'axes' of ReduceSum as a constant, and it is computed at run time"
    yield "tvm", one("ReduceSum", tensor(4), tensor(1, dtype=DType.INT64)), reason
    reason = "The following operators are not supported for frontend ONNX: LpNormalization"
    yield "tvm", one("LpNormalization", tensor(2)), f"TVM does not support this LpNormalization: {reason}"
    reason = "RandomNormalLike draws random numbers, and IREE does not follow ONNX's distribution"
    yield "iree", one("RandomNormalLike", tensor(3), output=tensor(3)), reason
    fused = function(node("FusedConv", "x", "y", domain="com.microsoft"), inputs={"x": tensor(2)})
    yield "iree", fused, "IREE's compiler has rules for ONNX's own operators, not for those of 'com.microsoft'"
    yield "tvm", fused, "TVM's importer ignores operator domains, so com.microsoft.FusedConv could mean another operator"
    yield "tvm", one("Relu", None), "the type of 'x0' is not known before the run"
    reason = "dot_general requires contracting dimensions to have the same shape, got (3,) and (4,)"
    yield "xla", one("MatMul", tensor(2, 3), tensor(4, 5)), f"XLA does not support this MatMul: {reason}"
    reason = "a window of [3] does not fit into a tensor of [2] padded by (0,) and (0,)"
    yield "xla", one("MaxPool", tensor(1, 1, 2), kernel_shape=[3]), f"XLA does not support this MaxPool: {reason}"
    image = one("ImageDecoder", tensor(3, dtype=DType.UINT8), output=tensor(3, dtype=DType.UINT8), opset=20)
    yield "torch", image, "engine 'torch' has no kernel for ImageDecoder"
    yield "torch", one("Conv", output=tensor(1)), "torch does not support this Conv: tuple index out of range"
    wide = tensor(2, dtype=DType.UINT64)
    yield "torch", one("Div", wide, wide, output=wide), "'x0' is uint64, and this engine does not support Div in that type"


@pytest.mark.parametrize(
    ("engine", "f", "reason"), list(list_reasons()), ids=lambda value: value.nodes[0].op if isinstance(value, Function) else None
)
def test_what_an_engine_does_not_support_has_a_reason(engine: str, f: Function, reason: str) -> None:
    assert registry.create(engine).why_not(f.nodes[0], f) == reason


TEXTS, COMPLEX = tensor(2, dtype=DType.STRING), tensor(2, dtype=DType.COMPLEX64)
CHOSEN = function(
    *(node("SequenceAt", "s i", "x"), node("Cast", "x", "y", to=DType.BFLOAT16.onnx)),
    inputs={"s": SequenceType(TensorType(DType.FLOAT32))},
    outputs={"y": TensorType(DType.BFLOAT16)},
    constants={"i": np.array(0)},
)
UNBOUND = (
    r"^ONNX Runtime returns 'y' of type bfloat16\[...\] only by I/O binding, which does not support 's' of type seq\(float32"
)
REFUSED = [
    ("ort", CHOSEN, UNBOUND),
    ("ort", one("Relu", None), r"declines: Model input \(x0\) does not have type information$"),
    ("ort", one("Identity", COMPLEX, output=COMPLEX), r"tensor\(complex64\) is not currently registered or supported$"),
    ("openvino", one("Relu", None), "CPU plug-in doesn't support Parameter operation with dynamic rank"),
    ("openvino", one("Identity", TEXTS, output=TEXTS), "declines: a value of type string cannot be an input or output$"),
    ("iree", one("Identity", TEXTS, output=TEXTS), r"^IREE does not support 'main': a value of type string\[2\] has no MLIR"),
    ("iree", one("Relu", tensor(None, 3)), r"^a value of type float32\[\?,3\] cannot be passed to IREE$"),
]


@pytest.mark.parametrize(("engine", "f", "text"), REFUSED)
def test_what_cannot_cross_is_refused_at_compile(engine: str, f: Function, text: str) -> None:
    with pytest.raises(CompileRefused, match=text):
        compiled(engine, f)


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("ort", "ONNX Runtime needs addresses of arrays, which cuda:0 does not have"),
        ("tvm", "TVM cannot use cuda:0: its arrays have no memory addresses"),
    ],
)
def test_a_device_without_addresses_is_refused(engine: str, text: str) -> None:
    with simulate_devices(), pytest.raises(CompileRefused, match=f"^{text}$"):
        registry.create(engine).compile(
            infer_shapes(one("Neg", tensor(4))), CompileContext(device="cuda:0", accelerator=device("cuda"))
        )


VERSIONS = {"toy": {"numpy", "onnx"}, "tvm": {"tvm", "llvm", "tvm-ffi"}, "iree": {"iree-base-compiler", "iree-base-runtime"}}


@pytest.mark.parametrize("engine", VERSIONS)
def test_the_version_names_all_that_decides_on_the_code(engine: str) -> None:
    assert {part.split()[0] for part in registry.create(engine).version().split(", ")} >= VERSIONS[engine]


STATISTICS = {"x": tensor(1, 2), **dict.fromkeys("sbmv", tensor(2))}
UNREAD = [
    ("tvm", node("Dropout", "x", "y mask"), {"x": tensor(2)}, 18),
    ("xla", node("BatchNormalization", "x s b m v", "y m2 v2"), STATISTICS, 9),
]


@pytest.mark.parametrize(("engine", "several", "inputs", "opset"), UNREAD)
def test_outputs_that_nobody_reads_need_no_support(engine: str, several: Node, inputs: Any, opset: int) -> None:
    f = function(several, inputs=inputs, outputs={"y": inputs["x"]}, opset=opset)
    assert registry.create(engine).why_not(f.nodes[0], f) is None


@pytest.mark.parametrize(("engine", "step"), [("tvm", "import_function"), ("xla", "lower_function")])
def test_equal_nodes_are_tried_once(engine: str, step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = one("Relu", tensor(3, 1, 4, 1, 5), output=tensor(3, 1, 4, 1, 5))
    assert registry.create(engine).why_not(f.nodes[0], f) is None
    monkeypatch.setattr(f"xrt.engines.{engine}.support.{step}", pytest.fail)
    assert registry.create(engine).why_not(f.nodes[0], f.replace(name="other")) is None


@pytest.mark.parametrize(
    ("engine", "step", "cause", "reason"),
    [
        ("tvm", "build", "  Check failed: (a == b) is false: the loops\n  are odd.\nStack trace:\n  File x", "TVM"),
        ("xla", "compile_program", "INVALID_ARGUMENT: the loops\n are odd.", "XLA"),
    ],
)
def test_what_the_library_fails_to_compile_is_refused_with_its_reason(
    engine: str, step: str, cause: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise ValueError(cause)

    monkeypatch.setattr(f"xrt.engines.{engine}.engine.{step}", fail)
    with pytest.raises(CompileRefused, match=rf"^{reason} cannot compile 'main': the loops are odd$") as error:
        compiled(engine, one("Relu", tensor(2), output=tensor(2)))
    assert isinstance(error.value.__cause__, ValueError)


def list_forms() -> Iterator[Any]:
    """Convolutions with few results are products, or gradients of weights; sums over leading axes are products."""
    convolutions: list[tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = [
        ((3, 2, 6, 7), (4, 2, 5, 5), {}),
        ((3, 2, 6, 7), (4, 2, 5, 6), {"pads": [1, 0, 0, 1]}),
        ((3, 2, 6, 6), (4, 2, 7, 7), {"pads": [1, 1, 1, 1]}),
        ((3, 2, 6, 6), (4, 2, 5, 5), {"pads": [0, 0, 1, 1]}),
        ((3, 2, 8, 9), (4, 2, 4, 4), {"dilations": [2, 2], "pads": [1, 0, 1, 0]}),
        ((3, 2, 8, 8), (4, 2, 4, 4), {"dilations": [2, 2], "pads": [0, 0, 1, 1]}),
        ((3, 2, 9, 9), (4, 2, 5, 5), {"strides": [2, 3]}),
        ((2, 3, 9), (5, 3, 8), {"pads": [0, 0]}),
        ((1, 1, 5, 4, 4), (2, 1, 4, 3, 3), {}),
        ((1, 4, 6, 6), (4, 2, 5, 5), {"group": 2}),
        ((1, 2, 6, 6), (4, 2, 6, 6), {"auto_pad": "SAME_UPPER"}),
    ]
    for x, w, options in convolutions:
        yield pytest.param(one("Conv", tensor(*x), tensor(*w), **options), id=f"Conv {x} {w} {options}")
    for shape, axes in [((20, 3), [0]), ((4, 5, 3), [1, 0]), ((16, 3, 2), [-3]), ((2, 8, 1, 3), [0, 1, 2]), ((0, 3), [0])]:
        for keepdims in (0, 1):
            f = function(
                node("ReduceSum", "x a", "y", keepdims=keepdims), inputs={"x": tensor(*shape)}, constants={"a": np.array(axes)}
            )
            yield pytest.param(f, id=f"ReduceSum {shape} {axes} {keepdims}")


@pytest.mark.parametrize("f", list(list_forms()))
@pytest.mark.parametrize("engine", ["ort", "torch"])
def test_an_operator_in_a_faster_form_computes_the_same(engine: str, f: Function) -> None:
    f = infer_shapes(f)
    draw = np.random.default_rng(3)
    arrays = [draw.standard_normal(value.type.shape).astype(np.float32) for value in f.inputs]  # type: ignore[union-attr]
    np.testing.assert_allclose(compiled(engine, f).run(arrays)[0], evaluate(f, arrays)[0], rtol=1e-4, atol=1e-4)
