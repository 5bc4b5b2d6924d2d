"""What an engine gets that writes the two mandatory methods; and its table of kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import pytest

from tests.exact_errors import raises_exactly
from xrt.engines import (
    CompileContext,
    Executable,
    ExecutionOptions,
    GraphCompiler,
    Kernel,
    OpTable,
    RunOptions,
    check_options,
    option,
)
from xrt.errors import CompileRefused, EngineError, OptionError, RunFailed
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes


class Idle(Executable):
    def run(self, inputs: Sequence[Any], options: RunOptions = RunOptions()) -> Sequence[Any]:
        return list(inputs)


@dataclass(frozen=True)
class Least(GraphCompiler):
    name: ClassVar[str] = "least"
    level: int = 1

    def why_not(self, node: Node, function: Function) -> str | None:
        return None

    def compile(self, function: Function, context: CompileContext) -> Executable:
        return Idle()


EMPTY = Function((), ())


def test_the_defaults_promise_nothing() -> None:
    assert (Least.devices, Least.supports_dynamic_shapes) == (("cpu",), False)
    assert Idle.outputs_are_fresh is False
    assert Least().remarks(EMPTY) == ()
    assert Least().can_load_with_threads(2, 2) and not Least().can_load_with_threads(2, 1)


@pytest.mark.slow
def test_the_version_is_that_of_the_distribution_and_zero_outside_of_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Least, "__module__", "numpy.engines.least")
    assert Least().version() == f"numpy {np.__version__}"
    monkeypatch.setattr(Least, "__module__", "nobody_s_module")
    assert Least().version() == "0"


def test_an_option_that_is_not_honoured_is_named() -> None:
    requests = CompileContext(ExecutionOptions(precision="fp16"))
    assert Least().unsupported_options(CompileContext(ExecutionOptions(threads=2))) is None
    assert Least().unsupported_options(requests) == "engine 'least' does not support precision='fp16'"


def test_an_executable_cannot_be_saved_or_loaded() -> None:
    with pytest.raises(CompileRefused, match=r"^engine 'least' cannot save an executable$"):
        Least().save(Idle(), CompileContext())
    with pytest.raises(CompileRefused, match=r"^engine 'least' cannot load an executable$"):
        Least().load(memoryview(b""), EMPTY, CompileContext())


@dataclass(frozen=True)
class Ranged(Least):
    name: ClassVar[str] = "ranged"
    effort: int = option(1, at_least=0, at_most=3)
    seconds: float | None = option(None, above=0)
    order: Literal["fast", "exact"] = "fast"
    fused: bool = True

    def __post_init__(self) -> None:
        check_options(self)


PRECISIONS = "precision must be one of fp32, fp16, bf16, int8; got 'fp61'. Did you mean 'fp16'?"


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (ExecutionOptions, {"precision": "fp61"}, PRECISIONS),
        (ExecutionOptions, {"threads": 0}, "threads must be a positive integer or None; got 0"),
        (Ranged, {"effort": 4}, "effort of engine 'ranged' must be an integer from 0 to 3; got 4"),
        (Ranged, {"effort": True}, "effort of engine 'ranged' must be an integer from 0 to 3; got True"),
        (Ranged, {"seconds": 0}, "seconds of engine 'ranged' must be a positive number or None; got 0"),
        (Ranged, {"order": "exakt"}, "order of engine 'ranged' must be one of fast, exact; got 'exakt'. Did you mean 'exact'?"),
        (Ranged, {"fused": "no"}, "fused of engine 'ranged' must be True or False; got 'no'"),
    ],
)
def test_an_impossible_option_is_refused(cls: Any, options: dict[str, Any], message: str) -> None:
    spec = "ranged{effort=3, fused=false, order=exact, seconds=0.5}"
    assert Ranged(effort=3, seconds=0.5, order="exact", fused=False).spec == spec
    with raises_exactly(OptionError, message):
        cls(**options)


def test_calls_over_fixed_arrays_are_runs_with_a_copy_unless_the_engine_says_otherwise() -> None:
    executable, x, buffer = Idle(), np.ones(2, "float32"), np.zeros(2, "float32")
    assert (executable.supports_io_binding(), executable.output_buffer_threshold(), executable.inplace_pairs()) == (False, (), ())
    assert executable.fast_call()(x)[0] is x
    executable.bind([x], [buffer])()
    assert buffer.tolist() == [1, 1]
    executable.bind_outputs([buffer])(2 * x)
    assert buffer.tolist() == [2, 2]
    with raises_exactly(RunFailed, "a result is float32[2], but the buffer for it is float32[3]"):
        executable.bind_outputs([np.zeros(3, "float32")])(x)


def function_of(node: Node, opset: int = 20, domain: str = "", **constants: Any) -> Function:
    inputs = tuple(Value(n, TensorType(DType.FLOAT32, (2,))) for n in dict.fromkeys(node.inputs) if n and n not in constants)
    held = {name: Constant(np.asarray(value)) for name, value in constants.items()}
    return Function(inputs, (Value(node.outputs[0]),), (node,), held, {domain: opset, "": opset})


RELU = Node("Relu", ("x",), ("y",), name="r")


def served(table: OpTable[Any], node: Node, function: Function | None = None, device: str = "cpu") -> Any:
    result = table.find(node, function or function_of(node), device)
    return result.code if isinstance(result, Kernel) else result


def kernel() -> None: ...
def other() -> None: ...
def never(node: Node, function: Function) -> str | None:
    return f"never {node.name}"


def when_named(name: str) -> Callable[[Node, Function], str | None]:
    return lambda node, function: None if node.name == name else f"only for {name}"


@pytest.fixture
def ops() -> OpTable[Any]:
    return OpTable("mine")


def test_a_kernel_serves_its_operators_and_no_other(ops: OpTable[Any]) -> None:
    assert ops("Relu", "Neg")(kernel) is kernel
    assert served(ops, RELU) is kernel
    assert ops.why_not(RELU, function_of(RELU)) is None
    abs_ = Node("Abs", ("x",), ("y",))
    assert ops.why_not(abs_, function_of(abs_)) == "engine 'mine' has no kernel for Abs"
    assert ("", "Neg") in ops
    assert ("", "Abs") not in ops
    assert [k.op_type for k in ops] == ["Relu", "Neg"]
    elsewhere = Node("Relu", ("x",), ("y",), domain="com.acme")
    assert served(ops, elsewhere, function_of(elsewhere, 1, "com.acme")) == "engine 'mine' has no kernel for com.acme.Relu"
    assert served(ops, RELU, Function((), (Value("y"),), (RELU,))) == "the function imports no opset for domain ''"


def test_the_first_silent_predicate_by_priority_wins(ops: OpTable[Any]) -> None:
    ops("Relu")(kernel)
    ops("Relu", priority=5, why_not=when_named("special"))(other)
    assert served(ops, RELU) is kernel
    special = Node("Relu", ("x",), ("y",), name="special")
    assert served(ops, special) is other


def test_every_kernel_says_why_not_best_first_and_the_same_reason_once(ops: OpTable[Any]) -> None:
    ops("Relu", why_not=never)(kernel)
    ops("Relu", since=9, priority=1, why_not=never)(kernel)
    ops("Relu", since=22, priority=2)(other)
    assert ops.why_not(RELU, function_of(RELU)) == "the kernel supports opset 22 and later; the model declares 20; never r"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"since": 21}, "the kernel supports opset 21 and later; the model declares 20"),
        ({"since": 6, "until": 13}, "the kernel supports opset 6 to 13; the model declares 20"),
        ({"devices": ("cuda", "rocm")}, "the kernel runs on cuda, rocm, not on cpu"),
        ({"why_not": never}, "never r"),
    ],
)
def test_the_reason_why_a_kernel_does_not_serve(options: dict[str, Any], reason: str, ops: OpTable[Any]) -> None:
    ops("Relu", **options)(kernel)
    assert served(ops, RELU) == reason


def test_the_training_form_needs_a_kernel_that_says_so(ops: OpTable[Any]) -> None:
    dropout = Node("Dropout", ("x", "ratio", "train"), ("y",))
    normalization = Node("BatchNormalization", ("x", "s", "b", "m", "v"), ("y",), read_attributes({"training_mode": 1}))
    training = function_of(dropout, ratio=np.float32(0.5), train=np.bool_(True))
    ops("Dropout", "BatchNormalization")(kernel)
    assert served(ops, normalization) == "the kernel does not support the training form of BatchNormalization"
    assert served(ops, dropout, training) == "the kernel does not support the training form of Dropout"
    ops("Dropout", train=True, priority=1)(other)
    assert served(ops, dropout, training) is other
    assert served(ops, dropout, function_of(dropout, ratio=np.float32(0.5), train=np.bool_(False))) is other


def test_an_operator_that_updates_the_model_needs_a_kernel_that_says_so(ops: OpTable[Any]) -> None:
    domain = "ai.onnx.preview.training"
    node = Node("Momentum", ("r", "t", "x", "g", "v"), ("y",), domain=domain)
    ops("Momentum", domain=domain)(kernel)
    reason = "the kernel does not support operators that update the model, such as ai.onnx.preview.training.Momentum"
    assert served(ops, node, function_of(node, 1, domain)) == reason
    ops("Momentum", domain=domain, model_update=True, priority=1)(other)
    assert served(ops, node, function_of(node, 1, domain)) is other


def test_a_duplicate_is_an_error_that_names_both(ops: OpTable[Any]) -> None:
    ops("Relu", priority=2)(kernel)
    with pytest.raises(EngineError) as caught:
        ops("Relu", priority=2)(other)
    assert str(caught.value) == (
        f"engine 'mine' has two kernels of priority 2 for Relu: {__name__}.kernel and {__name__}.other; "
        "change the priority, the version range or the predicate of one"
    )


@pytest.mark.parametrize(
    "options",
    [{"priority": 1}, {"since": 14}, {"devices": ("cuda",)}, {"why_not": never}],
)
def test_what_tells_two_kernels_apart(options: dict[str, Any], ops: OpTable[Any]) -> None:
    ops("Relu", until=13)(kernel)
    ops("Relu", **options)(other)
    assert len(list(ops)) == 2


def test_a_table_that_extends_another_leaves_it_as_it_is() -> None:
    base: OpTable[Any] = OpTable("base")
    base("Relu")(kernel)
    mine = base.extend("mine")
    mine("Relu", priority=1)(other)
    assert served(mine, RELU) is other
    assert served(base, RELU) is kernel
    with pytest.raises(EngineError, match="engine 'mine' has two kernels of priority 0 for Relu"):
        mine("Relu")(other)
