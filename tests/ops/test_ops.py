"""The operators as functions of xrt.ops: signatures, refusals, and every node test of onnx."""

from __future__ import annotations

import ast
import inspect
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import defs

import xrt
from tests.graph.tracing import F32, trace
from tools.write_stubs import make_stub
from xrt import ops
from xrt.errors import ModelError
from xrt.formats import onnx
from xrt.graph import Attribute, AttrKind, DType, Function, Node, TensorType, may_equal
from xrt.graph.schemas import find_operator, latest_opset

ALL = sorted({schema.name for schema in defs.get_all_schemas_with_history() if schema.domain == ""})


@pytest.mark.parametrize("module", [xrt.ops, xrt.ops.ml], ids=["ai.onnx", "ai.onnx.ml"])
def test_every_operator_is_a_function(module: Any) -> None:
    domain = "ai.onnx.ml" if module is xrt.ops.ml else ""
    schemas = {schema.name: schema for schema in defs.get_all_schemas() if schema.domain == domain}
    assert len(schemas) > 15
    for name in schemas:
        function = getattr(module, name)
        assert function.__name__ == function.__qualname__ == name
        assert function.__module__ == module.__name__
        assert name in dir(module)
        assert f"{domain}.{name}".strip(".") in function.__doc__
        assert inspect.signature(function).parameters["name"].default is None


def test_signatures_are_the_schemas() -> None:
    signature = str(inspect.signature(ops.Gemm))
    assert signature == "(A, B, C=None, *, alpha=1.0, beta=1.0, transA=0, transB=0, name=None)"
    assert str(inspect.signature(ops.Concat)) == "(*inputs, axis, name=None)"
    assert str(inspect.signature(ops.Loop)) == "(M=None, cond=None, /, *v_initial, body, outputs=None, name=None)"
    assert inspect.signature(ops.LayerNormalization).parameters["epsilon"].default == 1e-05


def test_documentation_names_inputs_attributes_and_outputs() -> None:
    text = inspect.getdoc(ops.TopK)
    assert text is not None
    assert text.startswith("TopK, version ")
    for line in ("    X (T)", "    axis (int, default -1)", "    Indices (I)"):
        assert line in text.splitlines()


def test_an_unknown_operator() -> None:
    with pytest.raises(AttributeError, match=r"ai.onnx has no operator 'Rleu'. Did you mean 'Relu'?"):
        ops.Rleu  # type: ignore[attr-defined]  # that is the point  # noqa: B018
    with pytest.raises(AttributeError, match=r"ai.onnx.ml has no operator 'Relu'"):
        ops.ml.Relu  # type: ignore[attr-defined]  # that is the point  # noqa: B018


def test_the_graph_says_the_version() -> None:
    assert trace(lambda x: ops.Squeeze(x, axes=[0]), TensorType(DType.FLOAT32, (1, 2)), opsets=11).nodes[0].attr("axes") == (0,)
    assert len(trace(lambda x: ops.Squeeze(x, [0]), TensorType(DType.FLOAT32, (1, 2)), opsets=13).nodes[0].inputs) == 2


@pytest.mark.parametrize(
    ("op_type", "opset", "message"),
    [
        ("HardSwish", 13, "HardSwish came with opset 14 of ai.onnx; the graph is at opset 13"),
        ("Upsample", 10, "Upsample is deprecated since opset 10 of ai.onnx and cannot be used at opset 10"),
        ("Relu", latest_opset() + 1, "came with|is not|is not valid: opset"),
    ],
)
def test_operators_that_a_version_lacks(op_type: str, opset: int, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        trace(lambda x: getattr(ops, op_type)(x), F32, opsets=opset)


def test_inputs_by_name() -> None:
    by_name = trace(lambda x: ops.Clip(x, max=6.0), F32)
    assert by_name == trace(lambda x: ops.Clip(x, None, 6), F32)
    assert by_name.nodes[0].inputs == ("x", "", "constant_1")
    assert trace(lambda x: ops.Clip(input=x, min=None), F32).nodes[0].inputs == ("x",)


@pytest.mark.parametrize(
    ("build", "dtypes"),
    [
        (lambda x: ops.Add(x, 1), [DType.FLOAT32]),  # what the other input binds
        (lambda x: ops.Reshape(x, [3, 2]), [DType.INT64]),  # what the operator admits
        (lambda x: ops.Range(0, 10, 1), [DType.INT64, DType.INT64, DType.INT64]),
        (lambda x: ops.Range(0.0, 1, 0.5), [DType.FLOAT32, DType.FLOAT32, DType.FLOAT32]),
        (lambda x: ops.Range(0, 1.0, 1), [DType.FLOAT32, DType.FLOAT32, DType.FLOAT32]),
        (lambda x: ops.Where(True, x, 0), [DType.BOOL, DType.FLOAT32]),
        (lambda x: ops.Resize(x, None, [1, 2]), [DType.FLOAT32]),
        (lambda x: ops.StringConcat("a", ["b", "c"]), [DType.STRING, DType.STRING]),
        (lambda x: ops.Add(x, np.float32(1)), [DType.FLOAT32]),
        (lambda x: ops.Expand(x, ()), [DType.INT64]),
    ],
)
def test_constants_take_the_type_that_fits(build: Any, dtypes: list[DType]) -> None:
    function = trace(build, F32)
    (node,) = function.nodes
    assert [function.constants[n].dtype for n in node.inputs if n in function.constants] == dtypes


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.Relu(), "xrt.ops.Relu: takes 1 input(s): X; got 0"),
        (lambda x: ops.Concat(axis=0), "xrt.ops.Concat: takes at least 1 input(s): *inputs; got 0"),
        (lambda x: ops.Add(x, None), "xrt.ops.Add: input 'B' is required; got None"),
        (lambda x: ops.Relu(x, X=x), "xrt.ops.Relu: input 'X' is passed twice: as input 1 and by name"),
        (lambda x: ops.Concat(inputs=x, axis=0), "input 'inputs' is any number of tensors; pass them by position"),
        (lambda x: ops.Concat([x, x], axis=0), "a list of tensors of the graph is not an operand; pass the tensors"),
        (lambda x: ops.Relu({}), "xrt.ops.Relu: input 'X' is a dict, {}; it must be a tensor"),
        (lambda x: ops.Add(x, "a"), "xrt.ops.Add: 'a' cannot be a constant of float32"),
        (lambda x: ops.Reshape(x, [1.5]), "xrt.ops.Reshape: [1.5] cannot be a constant of int64"),
        (lambda x: ops.Not(x), "xrt.ops.Not: takes no tensor(float) as input 'X' at version 1; it takes tensor(bool)"),
        (
            lambda x: ops.Add(x, np.ones(3)),
            "needs inputs 'A' and 'B' of the same type; got tensor(float) and tensor(double); convert one with .astype(...)",
        ),
        (lambda x: ops.Conv(x, x), "xrt.ops.Conv: "),
        # attributes
        (lambda x: ops.Softmax(x, axes=1), "has no attribute 'axes'; its attributes are: axis. Did you mean 'axis'?"),
        (lambda x: ops.Concat(x), "xrt.ops.Concat: needs the attribute 'axis' (int); it is missing"),
        (lambda x: ops.Softmax(x, axis=1.5), "xrt.ops.Softmax: attribute 'axis' must be int; got float 1.5"),
        (lambda x: ops.Transpose(x, perm=1), "xrt.ops.Transpose: attribute 'perm' must be a list of ints; got int 1"),
        (lambda x: ops.Cast(x, to="real"), "xrt.ops.Cast: 'real' is no element type"),
        # outputs
        (lambda x: ops.Split(x), "the number of its outputs does not follow from the arguments; pass outputs="),
        (lambda x: ops.Dropout(x, outputs=3), "xrt.ops.Dropout: has 1 to 2 outputs; got outputs=3"),
        (lambda x: ops.TopK(x, [1], outputs="2"), "xrt.ops.TopK: has 2 outputs; got outputs='2'"),
    ],
)
def test_what_does_not_fit_an_operator_is_refused(build: Any, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        trace(build, F32)
    assert message in str(caught.value)


def test_attributes_become_what_the_schema_says() -> None:
    def build(x: Any) -> Any:
        ops.LeakyRelu(x, alpha=1)
        ops.Transpose(x, perm=np.array([1, 0]))
        ops.Cast(x, to=np.float64)
        ops.Cast(x, to="bfloat16")
        ops.Cast(x, to=DType.INT8)
        ops.Constant(value=3.0)
        ops.Constant(value_ints=[])
        ops.Softmax(x, axis=None)
        ops.Optional(type=F32)
        return x

    attributes = [node.attributes for node in trace(build, F32).nodes]
    assert attributes == [
        (Attribute("alpha", AttrKind.FLOAT, 1.0),),
        (Attribute("perm", AttrKind.INTS, (1, 0)),),
        (Attribute("to", AttrKind.INT, 11),),
        (Attribute("to", AttrKind.INT, 16),),
        (Attribute("to", AttrKind.INT, 3),),
        (Attribute.create("value", np.array(3, np.float32)),),
        (Attribute("value_ints", AttrKind.INTS, ()),),
        (),
        (Attribute("type", AttrKind.TYPE, F32),),
    ]


@pytest.mark.parametrize(
    ("build", "count"),
    [
        (lambda x: ops.Relu(x), None),
        (lambda x: ops.TopK(x, [1]), 2),
        (lambda x: ops.Dropout(x), None),
        (lambda x: ops.Dropout(x, outputs=2), 2),
        (lambda x: ops.Split(x, num_outputs=3, axis=1), 3),
        (lambda x: ops.Split(x, [1, 2], axis=1), 2),
        (lambda x: ops.Split(x, axis=1, outputs=3), 3),
        (lambda x: ops.GRU(x[None], np.ones((1, 6, 3), "f4"), np.ones((1, 6, 2), "f4"), hidden_size=2), 2),
    ],
)
def test_how_many_outputs(build: Any, count: int | None) -> None:
    results: list[Any] = []
    trace(lambda x: (results.append(build(x)), x)[1], F32)
    assert isinstance(results[0], tuple) == (count is not None)
    assert count is None or len(results[0]) == count


def test_operators_without_inputs_belong_to_the_current_graph() -> None:
    function = trace(lambda: ops.RandomNormal(shape=[2, 3], seed=1.0))
    assert function.inputs == ()
    assert function.outputs[0].type == F32


def test_operators_of_ml() -> None:
    function = trace(lambda x: ops.ml.Scaler(x, offset=[0.0], scale=[2.0]), F32)
    assert function.nodes[0].op == "ai.onnx.ml.Scaler"
    assert function.opsets == {"": 26, "ai.onnx.ml": 5}
    assert function.outputs[0].type == TensorType(DType.FLOAT32)  # onnx infers no shapes for this domain


@pytest.mark.parametrize(("file", "domain"), [("__init__.pyi", ""), ("ml.pyi", "ai.onnx.ml")])
def test_the_committed_stub_is_fresh(file: str, domain: str) -> None:
    committed = Path(xrt.ops.__file__).with_name(file).read_text(encoding="utf-8")
    assert committed == make_stub(domain), "the schemas have changed; run `make stubs`"


def test_a_stub_names_every_operator_in_force() -> None:
    defined = {node.name for node in ast.parse(make_stub("")).body if isinstance(node, ast.FunctionDef)}
    in_force = {n for n in ALL if (o := find_operator(n, latest_opset())) is not None and not o.is_deprecated}
    assert defined == in_force | {"custom"}


REFUSED = ("test_scan_sum",)
"""Scan of opset 8 works on batches; it is not traced, and says so."""


def single_nodes() -> list[tuple[str, Function]]:
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cases compute their data with deprecated parts of NumPy
        cases = [(case.name, onnx.load(case.model)) for case in collect_testcases(None)]  # type: ignore[arg-type]  # None is all
    return [(name, function) for name, function in cases if len(function.nodes) == 1 and name not in REFUSED]


def rewritten(function: Function) -> Function:
    """Return the function of one node, written anew with xrt.ops."""
    (node,) = function.nodes

    def build(*inputs: Any) -> Any:
        values = {value.name: tensor for value, tensor in zip(function.inputs, inputs, strict=True)} | dict(function.constants)
        attributes = {a.name: a for a in node.attributes}
        results = ops.functions.find_function("xrt.ops", node.domain, node.op_type)(
            *(values[name] if name else None for name in node.inputs),
            outputs=len(node.outputs),
            **{name: attribute.value for name, attribute in attributes.items()},
        )
        return [result for result, name in zip(results, node.outputs, strict=True) if name]

    return trace(build, *(value.type for value in function.inputs), opsets=function.opsets)


def shape_of(node: Node) -> object:
    """Return what must be the same: the operator, which inputs and outputs there are, and the attributes but for bodies."""
    plain = tuple(a for a in node.attributes if not list(a.bodies()))
    inputs = list(map(bool, node.inputs))
    while inputs and not inputs[-1]:
        inputs.pop()
    return node.op, inputs, len(node.outputs), plain


@pytest.mark.full
@pytest.mark.slow
def test_every_node_test_can_be_written_with_xrt_ops() -> None:
    wrong = []
    counted: Counter[str] = Counter()
    for name, function in single_nodes():
        again = rewritten(function)
        counted[function.nodes[0].op] += 1
        if shape_of(again.nodes[-1]) != shape_of(function.nodes[0]):
            wrong.append(f"{name}: another node")
        for mine, theirs in zip(again.outputs, function.outputs, strict=True):
            if mine.type is not None and isinstance(theirs.type, TensorType) and not may_equal(mine.type, theirs.type):
                wrong.append(f"{name}: {mine} is declared as {theirs}")
    assert wrong == []
    assert sum(counted.values()) > 1000
    assert len(counted) > 150
