"""The text form: it reads well, gives an equal Function back, and refuses bad text with the place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from tests.graph.tracing import F32, trace
from xrt import ops
from xrt.errors import ModelError
from xrt.formats.text import parse, to_text
from xrt.graph import (
    Attribute,
    AttrKind,
    Constant,
    DType,
    Function,
    MapType,
    Node,
    OptionalType,
    SequenceType,
    TensorType,
    Value,
    read_attributes,
)
from xrt.graph.printer import RESERVED

# ---------------------------------------------------------------------- what it looks like


def test_a_function_reads_well() -> None:
    def build(x: Any, c: Any) -> Any:
        h = ops.Relu(x @ np.ones((3, 3), np.float32) + 0.5, name="act")
        return {"y": ops.If(c, then_branch=lambda: h * 2, else_branch=lambda: h), "best": ops.TopK(h, [1], axis=-1)[1]}

    function = trace(build, TensorType(DType.FLOAT32, ("N", 3)), TensorType(DType.BOOL, ()), name="example")
    assert str(function) == EXAMPLE
    assert parse(EXAMPLE) == function


START = "function f(x: float32[2]) -> (y: ?) {\n  "
EXAMPLE = """\
function example(x: float32[N,3], c: bool[]) -> (y: float32[N,3], best: int64[N,1]) {
  opset ai.onnx 26
  const constant_1: float32[3,3] = [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
  const constant_2: float32[] = 0.5
  const constant_4: int64[1] = [1]
  matmul_1: float32[N,3] = MatMul(x, constant_1)
  add_1: float32[N,3] = Add(matmul_1, constant_2)
  act: float32[N,3] = Relu(add_1)
  y = If(c) {
    else_branch = function else_branch() -> (act_copy: float32[N,3]) {
      opset ai.onnx 26
      act_copy = Identity(act)
    },
    then_branch = function then_branch() -> (mul_1: float32[N,3]) {
      opset ai.onnx 26
      const constant_3: float32[] = 2.0
      mul_1 = Mul(act, constant_3)
    },
  } @if_1
  topk_1: float32[N,1], best = TopK(act, constant_4) {axis = -1}
}"""


def test_large_constants_are_summarised_for_people_and_whole_in_files() -> None:
    function = Function((), (Value("w"),), constants={"w": Constant(np.arange(100, dtype=np.float32))})
    digest = function.constants["w"].digest.hex()
    assert f'const w: float32[100] = sha256 "{digest}"' in str(function)
    assert 'const w: float32[100] = base64 "AAAAAAAAgD8AAABA' in to_text(function)
    assert parse(to_text(function)) == function
    with pytest.raises(ModelError, match="line 2, column 27: the constant is given by its digest only: this text is a summary"):
        parse(str(function))


def test_a_plan_is_its_function_with_comments() -> None:
    class Plan:
        function = Function((Value("x"),), (Value("x"),))

        def __str__(self) -> str:
            return "plan: nothing\nelse"

    assert to_text(Plan()) == "# plan: nothing\n# else\nfunction main(x: ?) -> (x: ?) {\n}\n"
    assert parse(to_text(Plan())) == Plan.function


def test_comments_spaces_and_trailing_commas() -> None:
    text = """
    # a comment
    function f ( x : float32 [ 2 , ] , ) -> ( y : ? ) {  # another
      y = Relu(x,) { alpha = 1.0, axes = [1, 2,], }
    } # the end"""
    node = Node("Relu", ("x",), ("y",), read_attributes({"alpha": 1.0, "axes": [1, 2]}))
    assert parse(text) == Function((Value("x", TensorType(DType.FLOAT32, (2,))),), (Value("y"),), (node,), name="f")


# ---------------------------------------------------------------------- round trips

names = st.one_of(
    st.sampled_from([*sorted(RESERVED), "inf", "nan", "ai.onnx", "1", "a:0", "?", "N"]), st.text(min_size=1, max_size=6)
)
texts = st.text(max_size=8)
dims = st.one_of(st.integers(0, 5), names, st.none())
tensor_types = st.builds(TensorType, st.sampled_from(DType), st.one_of(st.none(), st.lists(dims, max_size=3).map(tuple)))
types = st.recursive(
    tensor_types,
    lambda inner: st.one_of(
        st.builds(SequenceType, inner), st.builds(OptionalType, inner), st.builds(MapType, st.sampled_from(DType), inner)
    ),
    max_leaves=3,
)
maybe_types = st.one_of(st.none(), types)
shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5)


@st.composite
def constants(draw: st.DrawFn) -> Constant:
    """Constants of every type, any bits among their bytes."""
    dtype, shape = draw(st.sampled_from(DType)), draw(shapes)
    if dtype is DType.STRING:
        return Constant(draw(hnp.arrays(object, shape, elements=texts)))
    if dtype is DType.BOOL:
        return Constant(draw(hnp.arrays(bool, shape)))
    if dtype.is_integer and dtype.bits >= 8:
        return Constant(draw(hnp.arrays(dtype.numpy, shape)))
    bits = draw(hnp.arrays(np.uint8, (*shape, dtype.numpy.itemsize)))
    if dtype.bits < 8:
        bits &= 2**dtype.bits - 1
    return Constant(np.frombuffer(bits.tobytes(), dtype.numpy).reshape(shape))


single = {
    AttrKind.FLOAT: st.floats(width=32),
    AttrKind.INT: st.integers(-(2**63), 2**63 - 1),
    AttrKind.STRING: st.one_of(texts, st.binary(max_size=6)),
    AttrKind.TENSOR: constants(),
    AttrKind.TYPE: types,
}


@st.composite
def attributes(draw: st.DrawFn, depth: int, outer: tuple[str, ...]) -> tuple[Attribute, ...]:
    made = {}
    for name in draw(st.lists(names, unique=True, max_size=3)):
        kind = draw(st.sampled_from([k for k in AttrKind if depth or k not in (AttrKind.GRAPH, AttrKind.GRAPHS)]))
        items = functions(depth - 1, outer) if kind.element is AttrKind.GRAPH else single[kind.element]
        made[name] = Attribute.of(name, draw(st.lists(items, max_size=3) if kind.is_list else items), kind)
    return read_attributes(made)


@st.composite
def functions(draw: st.DrawFn, depth: int = 1, outer: tuple[str, ...] = ()) -> Function:
    """Functions with anything in every field; whether they mean something is not asked."""
    fresh = draw(st.lists(names, unique=True, min_size=1, max_size=8))
    inputs = [Value(n, draw(maybe_types)) for n in fresh[:2]]
    held = {name: draw(constants()) for name in fresh[2:3]}
    outer = tuple(name for name in outer if name not in fresh)
    known, nodes = [*fresh[:3], *outer], []
    node_names = draw(st.lists(names, unique=True, min_size=len(fresh), max_size=len(fresh)))
    for index, name in enumerate(fresh[3:]):
        nodes.append(
            Node(
                op_type=draw(names),
                inputs=tuple(draw(st.lists(st.sampled_from([*known, ""]), max_size=3))),
                outputs=draw(st.sampled_from([(name,), (name, ""), ("", name)])),
                attributes=draw(attributes(depth, tuple(known))),
                domain=draw(st.one_of(st.just(""), names)),
                name=draw(st.sampled_from([node_names[index], ""])),
                control=tuple(n.name for n in nodes if n.name and draw(st.booleans())),
                device=draw(st.sampled_from(["", "cpu", "cuda:1", "odd\n"])),
            )
        )
        known.append(name)
    return Function(
        inputs=tuple(inputs),
        outputs=tuple(Value(n, draw(maybe_types)) for n in draw(st.lists(st.sampled_from(known), max_size=3))),
        nodes=tuple(nodes),
        constants=held,
        opsets=draw(st.dictionaries(st.one_of(st.just(""), names), st.integers(0, 99), max_size=3)),
        aliases=tuple(draw(st.lists(st.tuples(names, names), max_size=2))),
        types=draw(st.dictionaries(st.sampled_from([*fresh, "elsewhere"]), types, max_size=4)),
        name=draw(st.one_of(names, st.just(""))),
        doc=draw(texts),
        metadata=draw(st.dictionaries(texts, texts, max_size=2)),
    )


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(functions(depth=2))
def test_any_function_comes_back(function: Function) -> None:
    text = to_text(function)
    assert parse(text) == function
    assert to_text(parse(text)) == text
    str(function)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(constants())
def test_any_constant_comes_back(constant: Constant) -> None:
    function = Function((), (Value("k"),), constants={"k": constant})
    assert parse(to_text(function)).constants["k"] == constant


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_float], ids=str)
def test_special_floats(dtype: DType) -> None:
    with np.errstate(all="ignore"):
        array = np.array([0.0, -0.0, 1.0, -1.5, 0.1, np.inf, -np.inf, np.nan], np.float32).astype(dtype.numpy)
    function = Function((), (Value("k"),), constants={"k": Constant(array)})
    assert parse(to_text(function)) == function


def test_a_quiet_nan_with_a_payload_keeps_its_bits() -> None:
    array = np.array([0x7FC00001], np.uint32).view(np.float32)
    function = Function((), (Value("k"),), constants={"k": Constant(array)})
    assert "base64" in to_text(function)
    assert parse(to_text(function)).constants["k"].array.tobytes() == array.tobytes()


def test_a_function_that_is_a_plan_of_launches() -> None:
    inner = trace(lambda x: x + 1, F32, name="region")
    launch = Node(
        "Launch", ("x",), ("add_1",), read_attributes({"body": inner, "engine": "ort{a=1}", "nodes": ["n 1"]}), "xrt", "xrt_ort_0"
    )
    function = Function(inner.inputs, inner.outputs, (launch,), opsets={"": 26})
    text = to_text(function)
    assert "add_1 = xrt::Launch(x) {" in text
    assert '    engine = "ort{a=1}",' in text
    assert parse(text) == function
