"""Growing caches made static: each step gives what the growing cache gives, from buffers that are written in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from xrt.builder import Builder, Tensor
from xrt.builder.record_op import apply, emit
from xrt.errors import InputError, ModelError, OptionError
from xrt.formats.onnx.inference import infer_node_types
from xrt.graph import DType, Function, Node, TensorType, list_states
from xrt.testing.corpus.entry import graph, node

HEADS, WIDTH, LAYERS, VOCABULARY = 4, 6, 2, 30
HIDDEN = HEADS * WIDTH


class Decoder:
    """A small decoder whose caches grow, as exporters write it."""

    def __init__(self, opset: int = 20, key_heads: int = HEADS, table: int = 64) -> None:
        self.builder = Builder("decoder", opsets=opset, inference=infer_node_types)
        self.random = np.random.default_rng(3)
        self.key_heads, self.table = key_heads, table

    def weight(self, *shape: int) -> Tensor:
        return self.constant(self.random.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5))

    def constant(self, value: Any) -> Tensor:
        return self.builder.constant(np.asarray(value))

    def extent(self, x: Tensor, axis: int) -> Tensor:
        return emit("Gather", emit("Shape", x), self.constant(axis), axis=0)

    def heads(self, x: Tensor, count: int) -> Tensor:
        return emit("Transpose", emit("Reshape", x, self.constant([1, -1, count, WIDTH])), perm=[0, 2, 1, 3])

    def repeat(self, x: Tensor) -> Tensor:
        """Return keys or values for each head, where there are fewer of them, as exporters write it."""
        if self.key_heads == HEADS:
            return x
        groups = HEADS // self.key_heads
        parts = [self.constant([1, self.key_heads, groups]), emit("Shape", x, start=2, end=3), self.constant([WIDTH])]
        wide = emit("Expand", emit("Unsqueeze", x, self.constant([2])), emit("Concat", *parts, axis=0))
        return emit("Reshape", wide, self.constant([1, HEADS, -1, WIDTH]))

    def make(self) -> Function:
        with self.builder as builder:
            ids = builder.input("ids", TensorType(DType.INT64, (1, "s")))
            cache = TensorType(DType.FLOAT32, (1, self.key_heads, "p", WIDTH))
            pasts = [[builder.input(f"past_key_values.{n}.{kind}", cache) for kind in ("key", "value")] for n in range(LAYERS)]
            length, count = self.extent(pasts[0][0], 2), self.extent(ids, 1)
            places = emit("Range", length, length + count, self.constant(1))
            columns = emit("Range", self.constant(0), length + count, self.constant(1))
            is_hidden = emit(
                "Greater", emit("Unsqueeze", columns, self.constant([0])), emit("Unsqueeze", places, self.constant([1]))
            )
            bias = emit("Where", is_hidden, self.constant(np.float32(-np.inf)), self.constant(np.float32(0)))
            x = emit("Gather", self.weight(VOCABULARY, HIDDEN), ids, axis=0)
            x = x + emit("Gather", self.weight(self.table, HIDDEN), places, axis=0)
            for layer, past in enumerate(pasts):
                x = x + self.attend(x, layer, past, bias)
            last = emit("Gather", x, self.constant(-1), axis=1)
            builder.output(emit("MatMul", last, self.weight(HIDDEN, VOCABULARY)), "logits")
        return builder.function()

    def attend(self, x: Tensor, layer: int, past: list[Tensor], bias: Tensor) -> Tensor:
        query = self.heads(emit("MatMul", x, self.weight(HIDDEN, HIDDEN)), HEADS)
        results = []
        for kind, before in zip(("key", "value"), past, strict=True):
            new = self.heads(emit("MatMul", x, self.weight(HIDDEN, self.key_heads * WIDTH)), self.key_heads)
            present = emit("Concat", before, new, axis=-2)
            self.builder.output(present, f"present.{layer}.{kind}")
            results.append(self.repeat(present))
        scores = emit("MatMul", query, emit("Transpose", results[0], perm=[0, 1, 3, 2])) * np.float32(WIDTH**-0.5)
        gathered = emit("MatMul", emit("Softmax", scores + bias, axis=-1), results[1])
        joined = emit("Reshape", emit("Transpose", gathered, perm=[0, 2, 1, 3]), self.constant([1, -1, HIDDEN]))
        return emit("MatMul", joined, self.weight(HIDDEN, HIDDEN))


def check(static: Any, growing: Any, chunks: list[list[int]]) -> None:
    """Compare the steps of two sessions, and what their caches hold."""
    length = 0
    for chunk in chunks:
        ids = np.array([chunk])
        np.testing.assert_allclose(static(ids), growing(ids), rtol=2e-5, atol=1e-5)
        length += len(chunk)
    assert static.state["xrt.length"] == length
    for name, wanted in growing.state.items():
        result = static.state[name]
        np.testing.assert_allclose(result[:, :, :length], wanted, rtol=1e-5, atol=1e-5)
        assert not result[:, :, length:].any()


CHUNKS = [[7, 3, 1, 9, 4], [2], [8], [5, 6, 11], [1]]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
@pytest.mark.parametrize("opset", [18, 20, 24])
@pytest.mark.parametrize("key_heads", [HEADS, 2])
def test_a_static_cache_equals_the_growing_one(engine: str, opset: int, key_heads: int) -> None:
    model = Decoder(opset, key_heads).make()
    with xrt.XRTModule(xrt.stateful(model), engine) as growing, xrt.XRTModule(xrt.stateful(model, capacity=24), engine) as static:
        session = static.new_session()
        check(session, growing.new_session(), CHUNKS)
        assert session.state["past_key_values.0.key"].shape == (1, key_heads, 24, WIDTH)
        copied = [copy for copy in static.profile().copies if copy.input != "xrt.length"]
        assert copied == []


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["toy", "ort"])
@pytest.mark.parametrize("opset", [20, 24])
@pytest.mark.parametrize("capacity", [24, "double"])
def test_prompts_of_many_lengths_share_programs(engine: str, opset: int, capacity: Any) -> None:
    """A prompt is padded, and what is behind it writes nothing: the caches end with zeros, and are written in place."""
    model, options = Decoder(opset).make(), {"shapes": xrt.Buckets({"s": [1, 4, 8]})}
    with (
        xrt.XRTModule(xrt.stateful(model), engine) as growing,
        xrt.XRTModule(xrt.stateful(model, capacity=capacity), engine, **options) as static,
    ):
        session = static.new_session(sizes={} if capacity == 24 else {"capacity": 32})
        check(session, growing.new_session(), [[7, 3, 1, 9, 4], [2], [5, 6, 11], [1, 2], [8, 8, 3, 4, 5, 6]])
        assert [copy for copy in static.profile().copies if copy.input != "xrt.length"] == []


@pytest.mark.slow
def test_a_cache_that_doubles_is_copied_where_it_grows() -> None:
    model = Decoder().make()
    with (
        xrt.XRTModule(xrt.stateful(model), engine="toy") as growing,
        xrt.XRTModule(xrt.stateful(model, capacity="double"), engine="toy") as static,
    ):
        session, shapes = static.new_session(), []
        other = growing.new_session()
        for chunk in [*CHUNKS, [3] * 6, [4], [5] * 20]:
            np.testing.assert_allclose(session(np.array([chunk])), other(np.array([chunk])), rtol=2e-5, atol=1e-5)
            shapes.append(session.state["past_key_values.0.key"].shape[2])
        assert shapes == [16, 16, 16, 16, 16, 32, 32, 64]
        fork = session.fork()
        np.testing.assert_allclose(fork(np.array([[2]])), session(np.array([[2]])))
        np.testing.assert_allclose(
            fork(np.array([[4]])), [other(np.array([[token]])) for token in (2, 4)][1], rtol=2e-5, atol=1e-5
        )


def test_sizes_give_the_first_capacity() -> None:
    with xrt.XRTModule(xrt.stateful(Decoder().make(), capacity="double"), engine="toy") as module:
        session = module.new_session(sizes={"capacity": 40})
        session(np.array([[1, 2]]))
        assert session.state["past_key_values.1.value"].shape == (1, HEADS, 40, WIDTH)


def test_the_state_is_declared() -> None:
    static = xrt.stateful(Decoder().make(), capacity=24)
    assert [str(state) for state in list_states(static)][-1] == "xrt.length <- xrt.next_length"
    assert len(static.aliases) == 2 * LAYERS + 1
    with xrt.XRTModule(static, engine="toy") as module:
        session = module.new_session()
        session(np.array([[1] * 20]))
        with pytest.raises(InputError, match="the state holds 20 of 24 entries, and this call adds 5"):
            session(np.array([[1] * 5]))


def cache_with(*nodes: Node, **outputs: str) -> Function:
    ends = {"x": "float32[s,2]", "past": "float32[p,2]"}, {**outputs, "present": "float32[n,2]"}
    return graph(*ends, node("Concat", "past x", "present", axis=0), *nodes)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            cache_with(node("ReduceMax", "past", "y", name="peak"), y="float32[1,1]"),
            "'past' is read by node 'peak' \\(ReduceMax\\)",
        ),
        (cache_with(node("Relu", "present", "y"), y="float32[n,2]"), "output 'y' is as long as the caches"),
        (
            cache_with(node("NonZero", "present", "y", name="places"), y="int64[2,?]"),
            "node 'places' \\(NonZero\\): there is no rule",
        ),
        (
            graph({"past": "float32[2]"}, {"present": "float32[2]"}, node("Relu", "past", "present")),
            "no state of 'main' grows by a Concat",
        ),
    ],
)
def test_what_cannot_be_made_static_is_one_error(model: Function, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        xrt.stateful(model, {"past": "present"}, capacity=8)


def test_a_capacity_beyond_a_table_is_refused() -> None:
    def build(rows: int) -> Function:
        with Builder("m", opsets=20, inference=infer_node_types) as builder:
            x = builder.input("x", TensorType(DType.FLOAT32, ("s", 2)))
            past = builder.input("past", TensorType(DType.FLOAT32, ("p", 2)))
            present = emit("Concat", past, x, axis=0)
            end = emit("Shape", present, start=0, end=1)
            zero = builder.constant(np.array([0]))
            table = emit("Slice", builder.constant(np.ones((rows, 2), "float32")), zero, end, zero)
            builder.output(emit("ReduceSum", present * table, zero, keepdims=0), "y")
            builder.output(present, "present")
        return builder.function()

    assert xrt.stateful(build(8), {"past": "present"}, capacity=8)
    with pytest.raises(ModelError, match="capacity=9 is more than the 8 entries"):
        xrt.stateful(build(8), {"past": "present"}, capacity=9)


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "triple", True])
def test_a_bad_capacity_is_one_error(capacity: Any) -> None:
    with pytest.raises(OptionError, match="capacity must be a positive integer"):
        xrt.stateful(Decoder().make(), capacity=capacity)


def test_one_operator_of_attention() -> None:
    with Builder("m", opsets=23, inference=infer_node_types) as builder:
        x = builder.input("x", TensorType(DType.FLOAT32, (1, 2, "s", 4)))
        past = [builder.input(f"past_{kind}", TensorType(DType.FLOAT32, (1, 2, "p", 4))) for kind in "kv"]
        present = [emit("Concat", item, x * n, axis=2) for n, item in enumerate(past, 1)]
        builder.output(apply("Attention", (x, *present), {}, outputs=1)[0], "y")
        for kind, item in zip("kv", present, strict=True):
            builder.output(item, f"present_{kind}")
    model = builder.function()
    pairs = {"past_k": "present_k", "past_v": "present_v"}
    with (
        xrt.XRTModule(xrt.stateful(model, pairs), engine="toy") as growing,
        xrt.XRTModule(xrt.stateful(model, pairs, capacity=9), engine="toy") as static,
    ):
        item, other = static.new_session(), growing.new_session()
        for count in (3, 1, 2):
            x = np.random.default_rng(count).standard_normal((1, 2, count, 4), dtype=np.float32)
            np.testing.assert_allclose(item(x), other(x), rtol=2e-5, atol=1e-5)
