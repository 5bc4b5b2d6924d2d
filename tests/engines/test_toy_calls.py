"""The toy engine called: buffers of the caller, errors, and what it says of nodes that it cannot take."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

from tests.engines.toy_running import f32, function, i64, node, ready, run, same
from xrt.engines import CompileContext, ExecutionOptions, RunOptions
from xrt.engines.toy import Toy
from xrt.errors import CompileRefused, InputError, OptionError, RunFailed
from xrt.graph import Function, Node, Value

# ---------------------------------------------------------------------- buffers of the caller


def test_a_buffer_may_be_an_input() -> None:
    executable = ready(function("x", "y v", node("Neg", "x", "y"), node("Reshape", "x s", "v"), constants={"s": i64([2, 1])}))
    x = f32(1, 2)
    y, v = executable.run([x], RunOptions(out=[x, None]))
    assert y is x
    same(y, f32(-1, -2))
    same(v, f32([[1], [2]]))


READ_ONLY = np.empty((2, 3), np.float32)
READ_ONLY.flags.writeable = False
ADVICE = "; give a writable C-contiguous array, or None for a fresh one"


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ([], "function 'main' has 1 outputs; out= holds 0 buffers"),
        ([np.empty((3, 2), np.float32)], f"out= for output 'y': the output is float32[2,3], the buffer float32[3,2]{ADVICE}"),
        ([np.empty((2, 3))], f"out= for output 'y': the output is float32[2,3], the buffer float64[2,3]{ADVICE}"),
        ([[1.0]], f"out= for output 'y': the output is float32[2,3], the buffer list{ADVICE}"),
        ([np.empty((3, 2), np.float32).T], f"out= for output 'y': the buffer is not C-contiguous{ADVICE}"),
        ([READ_ONLY], f"out= for output 'y': the buffer is read-only{ADVICE}"),
    ],
)
def test_a_buffer_that_does_not_fit_is_refused(out: list[Any], message: str) -> None:
    executable = ready(function("x", "y", node("Neg", "x", "y")))
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        executable.run([np.zeros((2, 3), np.float32)], RunOptions(out=out))


# ---------------------------------------------------------------------- errors


def raised(f: Function, *inputs: Any) -> RunFailed:
    with pytest.raises(RunFailed) as caught:
        run(f, *inputs)
    return caught.value


def test_a_kernel_that_fails_names_its_node() -> None:
    error = raised(function("a b", "y", node("Concat", "a b", "y", axis=0)), np.zeros((2, 3), np.float32), i64(1))
    assert str(error).startswith("engine 'toy' failed at node 'concat_y' (Concat) on (float32[2,3], int64[]): ")
    assert str(error).endswith("; check the node's attributes and the shapes and types of its inputs")
    assert isinstance(error.__cause__, ValueError)


def test_an_output_that_the_form_does_not_have_says_so() -> None:
    f = function("x", "y z", node("Relu", "x", "y z"))
    assert "the operator has 1 output(s) in this form; the node lists 2" in str(raised(f, f32(1.0)))


def test_outputs_that_are_left_out_are_not_computed_for() -> None:
    f = function("x", "y", Node("Relu", ("x",), ("y", "", "")))
    same(run(f, f32(-1.0))[0], f32(0.0))


def test_a_kernel_that_fails_within_a_body_is_named_itself() -> None:
    body = function("", "y", node("Reshape", "x s", "y"), constants={"s": i64([7])})
    f = function("c x", "y", node("If", "c", "y", then_branch=body, else_branch=body))
    error = raised(f, np.array(True), f32(1, 2))
    assert "at node 'reshape_y' (Reshape) on (float32[2], int64[1]): ValueError: " in str(error)


def test_an_engine_that_derives_from_toy_fails_under_its_own_name() -> None:
    @dataclass(frozen=True)
    class Mine(Toy):
        name: ClassVar[str] = "mine"

    executable = Mine().compile(function("x", "y", node("Reshape", "x s", "y"), constants={"s": i64(7)}), CompileContext())
    executable.prepare()
    with pytest.raises(RunFailed, match=r"^engine 'mine' failed at node 'reshape_y' \(Reshape\) on "):
        executable.run([f32(1, 2)])


def test_running_needs_prepare() -> None:
    message = "^function 'main' is not ready to run; call prepare\\(\\) first, and run\\(\\) before close\\(\\)$"
    executable = Toy().compile(function("x", "x"), CompileContext())
    with pytest.raises(RunFailed, match=message):
        executable.run([f32(1)])
    executable.prepare()
    executable.run([f32(1)])
    executable.close()
    with pytest.raises(RunFailed, match=message):
        executable.run([f32(1)])


def test_a_wrong_number_of_inputs_is_refused() -> None:
    with pytest.raises(InputError, match=r"^function 'main' takes 1 inputs; got 2$"):
        run(function("x", "x"), f32(1), f32(2))


def test_a_stream_is_refused() -> None:
    with pytest.raises(OptionError, match=r"^engine 'toy' runs on the CPU, which has no streams; got stream=7, pass None$"):
        ready(function("x", "x")).run([f32(1)], RunOptions(stream=7))


# ---------------------------------------------------------------------- what it cannot take


TRAINING = "ai.onnx.preview.training"


def why(n: Node, opset: int = 18, **domains: int) -> str | None:
    f = Function(tuple(map(Value, dict.fromkeys(n.inputs))), (Value(n.outputs[0]),), (n,), opsets={"": opset, **domains})
    return Toy().why_not(f.nodes[0], f)


def test_reasons() -> None:
    assert why(node("Relu", "x", "y")) is None
    assert why(node("Relu", "x", "y", domain="mine")) == "the function imports no opset for domain 'mine'"
    assert why(node("Rleu", "x", "y")) == "the onnx package describes no operator 'Rleu' in version 18 of domain 'ai.onnx'"
    assert (
        why(node("Gelu", "x", "y"), opset=18) == "the onnx package describes no operator 'Gelu' in version 18 of domain 'ai.onnx'"
    )
    assert why(node("Fused", "x", "y", domain="com.acme"), **{"com.acme": 1}) == (
        "the onnx package describes no operator 'Fused' in version 1 of domain 'com.acme'"
    )
    absent = why(node("Gradient", "x", "y", domain=TRAINING, xs=["x"], y="y"), **{TRAINING: 1})
    assert absent is not None
    assert absent.startswith("neither toy nor onnx.reference implements Gradient in version 1: ")


def test_a_device_that_it_does_not_run_on_is_a_reason() -> None:
    assert why(Node("Relu", ("x",), ("y",), device="cuda:1")) is None
    for op, reason in (
        ("Bernoulli", "the kernel runs on cpu, not on cuda:1"),
        ("DFT", "the reference operators run on cpu, not on cuda:1"),
    ):
        found = why(Node(op, ("x",), ("y",), device="cuda:1"))
        assert found is not None
        assert reason in found


def test_a_body_that_it_cannot_take_is_a_reason() -> None:
    inner = function("", "y", node("Gradient", "x", "y", domain=TRAINING, xs=["x"], y="y"), **{TRAINING: 1})
    f = function("c x", "y", node("If", "c", "y", then_branch=inner, else_branch=inner), **{TRAINING: 1})
    reason = Toy().why_not(f.nodes[0], f)
    assert reason is not None
    assert reason.startswith("its body 'main' holds node 'gradient_y' (ai.onnx.preview.training.Gradient): neither toy nor ")
    with pytest.raises(
        CompileRefused, match=r"^engine 'toy' cannot take node 'if_y' \(If\): its body 'main' holds node 'gradient_y' "
    ):
        Toy().compile(f, CompileContext())


def test_a_device_that_nobody_has_opened_is_refused() -> None:
    with pytest.raises(CompileRefused, match=r"^engine 'toy' is given no device for cuda; compile through XRTModule$"):
        Toy().compile(function("x", "x"), CompileContext(device="cuda"))


def test_a_precision_is_not_honoured() -> None:
    context = CompileContext(ExecutionOptions(precision="fp16"))
    assert Toy().unsupported_options(context) == "engine 'toy' does not honour precision='fp16'"
    assert Toy().unsupported_options(CompileContext()) is None


def test_the_version_names_what_changes_results() -> None:
    assert f"numpy {np.__version__}" in Toy().version()
    assert "onnx " in Toy().version()
