"""Models of other tools as sessions: pairs of inputs and outputs by name, metadata, recurrent operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.small_models import recurrent
from xrt import ops
from xrt.errors import ModelError
from xrt.formats import onnx
from xrt.graph import DType, Function, Node, State, TensorType, Value, list_states

X = np.array([[1, 2, 3]], "float32")
F32 = DType.FLOAT32


def cache(past: str, present: str) -> Function:
    nodes = (Node("Concat", (past, "x"), (present,)).with_attributes(axis=0), Node("ReduceSum", (present,), ("y",)))
    ends = (
        (Value("x", TensorType(F32, (1, 3))), Value(past, TensorType(F32, ("n", 3)))),
        (Value("y"), Value(present, TensorType(F32, ("m", 3)))),
    )
    return Function(*ends, nodes, opsets={"": 20}, name="decoder")


NAMES = [
    ("past_key_values.0.key", "present.0.key"),
    ("past_key_values.11.decoder.value", "present.11.decoder.value"),
    ("past_key_values.0.key", "present_key_values.0.key"),
    ("past_0", "present_0"),
    ("past.3.key", "present.3.key"),
    ("past_conv.0", "present_conv.0"),
    ("past_key_self_2", "present_key_self_2"),
]


@pytest.mark.parametrize(("past", "present"), NAMES)
def test_names_of_exporters_are_paired(past: str, present: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "xrt"):
        declared = xrt.stateful(onnx.to_model(cache(past, present)))
    assert list_states(declared) == (State(past, present),)
    assert caplog.messages[-1] == f"state of decoder: {past} <- {present}"
    session = xrt.XRTModule(declared, engine="ort").new_session()
    assert [float(session(X).ravel()[0]) for _ in range(3)] == [6, 12, 18]


def test_pairs_are_given_where_names_tell_nothing() -> None:
    assert list_states(xrt.stateful(cache("a", "b"), {"a": "b"})) == (State("a", "b"),)
    with pytest.raises(ModelError) as caught:
        xrt.stateful(cache("a", "b"))
    assert str(caught.value) == "no input of 'decoder' is named past* (x, a); give the pairs: xrt.stateful(model, {...})"
    with pytest.raises(ModelError) as caught:
        xrt.stateful(cache("past_0", "present_1"))
    assert str(caught.value) == (
        "input 'past_0' has no partner among the outputs present*_0 (there are: present_1); give the pairs"
    )


def test_metadata_declares_the_state_of_an_onnx_model() -> None:
    model = onnx.to_model(recurrent(1).replace(aliases=()))
    model.metadata_props.add(key="xrt.state", value='[["h", "h_next"]]')
    m = xrt.XRTModule(model, engine="toy")
    session = m.new_session()
    session(X)
    np.testing.assert_array_equal(session.state["h"], np.tanh(X))
    assert [update.partition(":")[0] for update in m.explain().updates] == ["h <- h_next"]


@pytest.mark.parametrize("engine", ["toy", "ort"])
def test_an_lstm_a_gru_and_a_scan_are_sessions(engine: str) -> None:
    rng = np.random.default_rng(0)
    w, r = (rng.standard_normal((1, 16, n)).astype("float32") for n in (3, 4))

    class Cell(xrt.Graph):
        def build(self, x: Any) -> Any:
            state = TensorType(F32, (1, 1, 4))
            h, c, g = (self.state(name, state) for name in "hcg")
            y, h_next, c_next = ops.LSTM(x, w, r, None, None, h, c, hidden_size=4)
            z, g_next = ops.GRU(x, w[:, :12], r[:, :12], None, None, g, hidden_size=4)
            s = self.state("s", TensorType(F32, (3,)), fill=1)
            s_next, sums = ops.Scan(s, ops.Squeeze(x, np.array([1])), body=lambda a, b: (a + b, a * b), num_scan_inputs=1)
            for one, new in ((h, h_next), (c, c_next), (g, g_next), (s, s_next)):
                self.update(one, new)
            return y, z, sums

    x = rng.standard_normal((6, 1, 3)).astype("float32")
    graph, m = Cell(), xrt.XRTModule(Cell(), engine=engine)
    whole, session = m.new_session()(x), m.new_session()
    parts = [session(x[i : i + 2]) for i in (0, 2, 4)]
    for at, wanted in enumerate(whole):
        np.testing.assert_allclose(np.concatenate([part[at] for part in parts]), wanted, rtol=1e-5, atol=1e-6)
    assert [state.input for state in list_states(graph.trace(x))] == ["h", "c", "g", "s"]
