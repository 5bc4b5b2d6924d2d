"""The table of kernels: which one serves a node, and why none does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xrt.engines import Kernel, OpTable
from xrt.errors import EngineError
from xrt.graph import Constant, DType, Function, Node, TensorType, Value, read_attributes


def function_of(node: Node, opset: int = 20, domain: str = "", **constants: Any) -> Function:
    inputs = tuple(Value(n, TensorType(DType.FLOAT32, (2,))) for n in dict.fromkeys(node.inputs) if n and n not in constants)
    held = {name: Constant(np.asarray(value)) for name, value in constants.items()}
    return Function(inputs, (Value(node.outputs[0]),), (node,), held, {domain: opset, "": opset})


RELU = Node("Relu", ("x",), ("y",), name="r")


def served(table: OpTable[Any], node: Node, function: Function | None = None, device: str = "cpu") -> Any:
    found = table.find(node, function or function_of(node), device)
    return found.code if isinstance(found, Kernel) else found


def kernel() -> None: ...
def other() -> None: ...


def never(node: Node, function: Function) -> str | None:
    return f"never {node.name}"


def when_named(name: str) -> Callable[[Node, Function], str | None]:
    return lambda node, function: None if node.name == name else f"only for {name}"


def test_a_kernel_serves_its_operators_and_no_other() -> None:
    ops: OpTable[Any] = OpTable("mine")
    assert ops("Relu", "Neg")(kernel) is kernel
    assert served(ops, RELU) is kernel
    assert ops.why_not(RELU, function_of(RELU)) is None
    abs_ = Node("Abs", ("x",), ("y",))
    assert ops.why_not(abs_, function_of(abs_)) == "engine 'mine' has no kernel for Abs"
    assert ("", "Neg") in ops
    assert ("", "Abs") not in ops
    assert [k.op_type for k in ops] == ["Relu", "Neg"]


def test_another_domain_is_another_operator() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", domain="com.acme")(kernel)
    node = Node("Relu", ("x",), ("y",), domain="com.acme")
    assert served(ops, node, function_of(node, 1, "com.acme")) is kernel
    assert served(ops, RELU) == "engine 'mine' has no kernel for Relu"


def test_the_first_silent_predicate_by_priority_wins() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu")(kernel)
    ops("Relu", priority=5, why_not=when_named("special"))(other)
    assert served(ops, RELU) is kernel
    special = Node("Relu", ("x",), ("y",), name="special")
    assert served(ops, special) is other


def test_every_kernel_says_why_not_best_first_and_the_same_reason_once() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", why_not=never)(kernel)
    ops("Relu", since=9, priority=1, why_not=never)(kernel)
    ops("Relu", since=22, priority=2)(other)
    assert ops.why_not(RELU, function_of(RELU)) == "the kernel serves opset 22 on; the model declares 20; never r"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"since": 21}, "the kernel serves opset 21 on; the model declares 20"),
        ({"since": 6, "until": 13}, "the kernel serves opset 6 to 13; the model declares 20"),
        ({"devices": ("cuda", "rocm")}, "the kernel runs on cuda, rocm, not on cpu"),
        ({"why_not": never}, "never r"),
    ],
)
def test_the_reason_why_a_kernel_does_not_serve(options: dict[str, Any], reason: str) -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", **options)(kernel)
    assert served(ops, RELU) == reason


def test_a_device_is_compared_with_its_kind() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", devices=("cuda",))(kernel)
    assert served(ops, RELU, device="cuda:1") is kernel


def test_a_domain_that_is_not_imported_is_reported() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu")(kernel)
    bare = Function((), (Value("y"),), (RELU,))
    assert served(ops, RELU, bare) == "the function imports no opset for domain ''"


def test_the_training_form_needs_a_kernel_that_says_so() -> None:
    node = Node("Dropout", ("x", "ratio", "train"), ("y",))
    function = function_of(node, ratio=np.float32(0.5), train=np.bool_(True))
    ops: OpTable[Any] = OpTable("mine")
    ops("Dropout")(kernel)
    assert served(ops, node, function) == "the kernel does not serve the training form of Dropout"
    ops("Dropout", train=True, priority=1)(other)
    assert served(ops, node, function) is other
    calm = function_of(node, ratio=np.float32(0.5), train=np.bool_(False))
    assert served(ops, node, calm) is other


def test_the_training_form_of_a_normalisation() -> None:
    node = Node("BatchNormalization", ("x", "s", "b", "m", "v"), ("y",), read_attributes({"training_mode": 1}))
    ops: OpTable[Any] = OpTable("mine")
    ops("BatchNormalization")(kernel)
    assert served(ops, node) == "the kernel does not serve the training form of BatchNormalization"


def test_an_operator_that_updates_the_model_needs_a_kernel_that_says_so() -> None:
    domain = "ai.onnx.preview.training"
    node = Node("Momentum", ("r", "t", "x", "g", "v"), ("y",), domain=domain)
    ops: OpTable[Any] = OpTable("mine")
    ops("Momentum", domain=domain)(kernel)
    reason = "the kernel does not serve operators that update the model, as ai.onnx.preview.training.Momentum does"
    assert served(ops, node, function_of(node, 1, domain)) == reason
    ops("Momentum", domain=domain, model_update=True, priority=1)(other)
    assert served(ops, node, function_of(node, 1, domain)) is other


def test_what_a_kernel_may_overwrite_is_kept() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", mutable=(0,))(kernel)
    assert [k.mutable for k in ops] == [(0,)]


def test_a_duplicate_is_an_error_that_names_both() -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", priority=2)(kernel)
    with pytest.raises(EngineError) as caught:
        ops("Relu", priority=2)(other)
    assert str(caught.value) == (
        f"engine 'mine' has two kernels of priority 2 for Relu: {__name__}.kernel and {__name__}.other; "
        "give one another priority, version range or predicate"
    )


@pytest.mark.parametrize(
    "options",
    [{"priority": 1}, {"since": 14}, {"devices": ("cuda",)}, {"why_not": never}],
)
def test_what_tells_two_kernels_apart(options: dict[str, Any]) -> None:
    ops: OpTable[Any] = OpTable("mine")
    ops("Relu", until=13)(kernel)
    ops("Relu", **options)(other)
    assert len(list(ops)) == 2


def test_two_tables_share_nothing() -> None:
    first: OpTable[Any] = OpTable("first")
    second: OpTable[Any] = OpTable("second")
    first("Relu")(kernel)
    assert list(second) == []


def test_a_table_that_extends_another_leaves_it_as_it_is() -> None:
    base: OpTable[Any] = OpTable("base")
    base("Relu")(kernel)
    mine = base.extend("mine")
    mine("Relu", priority=1)(other)
    assert served(mine, RELU) is other
    assert served(base, RELU) is kernel
    with pytest.raises(EngineError, match="engine 'mine' has two kernels of priority 0 for Relu"):
        mine("Relu")(other)
