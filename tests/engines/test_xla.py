"""The xla engine: its reasons, types and numbers, and what is known while a graph is traced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines.written import function, one, tensor
from tests.engines.xla_running import CONTEXT, INT, XLA, compiled, placed, run, why
from xrt.engines.xla.executable import XlaExecutable
from xrt.engines.xla.program import dump_hlo
from xrt.errors import CompileRefused, RunFailed
from xrt.graph import DType, Function, Node

# ---------------------------------------------------------------------- reasons


@pytest.mark.parametrize(
    ("f", "reason"),
    [
        (one("NonZero", tensor(3)), "engine 'xla' has no kernel for NonZero"),
        (one("NoSuch", tensor(2)), "NoSuch is not an operator of opset 18"),
        (one("Relu", tensor("N", 3)), "the shape of 'x0' is not known before the run"),
        (one("Identity", tensor(2, dtype=DType.STRING)), "'x0' is string, in which this engine does not compute Identity"),
        (
            one("Reshape", tensor(4), tensor(2, dtype=INT)),
            "XLA needs the 'shape' of Reshape while it compiles, and here it is known only at run time",
        ),
        (
            one("Relu", tensor(4), output=tensor(5)),
            "XLA takes the result of this Relu for float32[4], where ONNX says float32[5]",
        ),
        (
            one("MatMul", tensor(2, 3), tensor(4, 5)),
            "XLA cannot take this MatMul: dot_general requires contracting dimensions to have the same shape, got (3,) and (4,)",
        ),
        (one("MaxPool", tensor(1, 1, 2), kernel_shape=[3]), "XLA cannot take this MaxPool: a window of [3] does not fit into"),
    ],
    ids=lambda value: value.nodes[0].op if isinstance(value, Function) else "",
)
def test_reasons(f: Function, reason: str) -> None:
    assert why(f).startswith(reason)


def test_equal_nodes_are_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import support

    f = one("Relu", tensor(3, 1, 4, 1, 5), output=tensor(3, 1, 4, 1, 5))
    assert why(f) == ""
    monkeypatch.setattr(support, "lower", pytest.fail)
    assert why(f.replace(name="other")) == ""


def test_outputs_that_nobody_reads_are_not_asked_for() -> None:
    node = Node("BatchNormalization", ("x", *"sbmv"), ("y", "m2", "v2"))
    shapes = {"x": tensor(1, 2), **{name: tensor(2) for name in "sbmv"}}
    assert why(function(node, inputs=shapes, outputs={"y": tensor(1, 2)}, opset=9)) == ""


def test_what_fails_late_is_a_refusal_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    from xrt.engines.xla import engine

    def broken(*_: Any) -> Any:
        raise ValueError("INVALID_ARGUMENT: the loops\n are odd.")

    monkeypatch.setattr(engine, "compile_program", broken)
    with pytest.raises(CompileRefused, match=r"^XLA cannot compile 'main': the loops$"):
        XLA.compile(one("Relu", tensor(2), output=tensor(2)), CONTEXT)


@pytest.mark.slow
def test_a_call_that_fails_says_where() -> None:
    with pytest.raises(RunFailed, match=r"^XLA failed while it ran 'main': "):
        run(one("Relu", tensor(2), output=tensor(2)), np.ones(3, np.float32))


# ---------------------------------------------------------------------- types and numbers


def test_products_are_of_full_precision() -> None:
    a, b = (np.random.default_rng(seed).random((64, 300)).astype(np.float32) for seed in (0, 1))
    (y,) = run(one("MatMul", tensor(64, 300), tensor(300, 64), output=tensor(64, 64)), a, np.ascontiguousarray(b.T))
    assert np.allclose(y, a.astype(float) @ b.T.astype(float), rtol=1e-5)


@pytest.mark.parametrize(("dtype", "big"), [("float16", 2048), ("float32", 2**24)])
@pytest.mark.parametrize("ops", ["Add Sub", "Sub Add"])
def test_what_was_rounded_stays_rounded(dtype: str, big: int, ops: str) -> None:
    """XLA would make one sum of the two constants, or keep float16 in float32."""
    type_, (first, second) = tensor(1, dtype=DType.parse(dtype)), ops.split()
    nodes = Node(first, ("x", "big"), ("s",)), Node(second, ("s", "big"), ("y",))
    f = function(*nodes, inputs={"x": type_}, outputs={"y": type_}, constants={"big": np.array([big], dtype)})
    x = np.array([0.25], dtype)
    assert run(f, x)[0].tolist() == [0]


def test_constants_in_sums_do_not_break_a_chain() -> None:
    nodes = [Node("Add" if k % 2 else "Mul", (f"v{k}", "c"), (f"v{k + 1}",)) for k in range(20)]
    f = function(
        *nodes, inputs={"v0": tensor(64, 64)}, outputs={"v20": tensor(64, 64)}, constants={"c": np.array(1.5, np.float32)}
    )
    executable = compiled(f)
    assert isinstance(executable, XlaExecutable)
    assert executable.program.code.hlo_modules()[0].to_string().count(" fusion(") == 1


@pytest.mark.slow
def test_softmax_of_a_large_product() -> None:
    """XLA computes the product twice, once rounded and once within an FMA: the greatest is not itself then."""
    nodes = Node("Mul", ("x", "third"), ("m",)), Node("Softmax", ("m",), ("y",))
    third = np.array(1 / 3, np.float32)
    f = function(*nodes, inputs={"x": tensor(2, 8)}, outputs={"y": tensor(2, 8)}, constants={"third": third})
    x = np.repeat(np.array([[1e10], [7.7e11]], np.float32), 8, axis=1)
    assert run(f, x)[0].tolist() == [[0.125] * 8] * 2


# ---------------------------------------------------------------------- what is known while it is traced


def test_large_constants_are_arguments_and_small_ones_are_code() -> None:
    w = np.random.default_rng(0).random((64, 32)).astype(np.float32)
    node = Node("MatMul", ("x", "w"), ("y",)), Node("Mul", ("y", "two"), ("z",))
    f = function(*node, inputs={"x": tensor(3, 64)}, outputs={"z": tensor(3, 32)}, constants={"w": w, "two": np.float32(2)[...]})
    text = dump_hlo(f)
    assert "%arg1: tensor<64x32xf32>" in text and "%arg2" not in text and "dense<2.000000e+00>" in text
    x = np.random.default_rng(1).random((3, 64)).astype(np.float32)
    assert np.allclose(run(f, x)[0], x @ w * 2, rtol=1e-5)


@pytest.mark.slow
def test_aligned_weights_are_held_once_and_others_are_reported() -> None:
    for offset, copied in ((0, 0), (16, 64 * 64 * 4)):
        w = placed(64 * 64, offset=offset).reshape(64, 64)
        f = function(
            Node("Add", ("x", "w"), ("y",)), inputs={"x": tensor(64, 64)}, outputs={"y": tensor(64, 64)}, constants={"w": w}
        )
        uses = {use.name: use.nbytes for use in compiled(f).memory() or ()}
        assert uses.get("copied weights", 0) == copied
