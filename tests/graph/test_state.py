"""State: what declares it, what is refused, and that text and ONNX keep it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.exact_errors import raises_exactly
from xrt.errors import ModelError
from xrt.formats import onnx
from xrt.formats.text import parse
from xrt.graph import Function, State, Value, declare_states, list_states
from xrt.graph.verify import verify
from xrt.testing.corpus.entry import graph, node, sequence, tensor


def function(**changes: Any) -> Function:
    """Return h and past, each with its next value, beside x and y."""
    nodes = node("Add", "x h", "y"), node("Relu", "y", "h_next"), node("Concat", "past x", "present", axis=0)
    inputs = {"x": "float32[2]", "h": "float32[2]", "past": "float32[p]"}
    outputs = {"y": "float32[2]", "h_next": "float32[2]", "present": "float32[p + 2]"}
    return graph(inputs, outputs, *nodes, opset=20).replace(**changes)


BOTH = (State("h", "h_next", -1), State("past", "present"))


def test_a_state_of_one_fixed_type_is_an_alias_too() -> None:
    declared = declare_states(function(), BOTH)
    assert declared.aliases == (("h", "h_next"),)
    assert declared.metadata["xrt.state"] == '[["h", "h_next", -1], ["past", "present"]]'
    assert list_states(declared) == BOTH
    assert declare_states(declared, BOTH) == declared
    verify(declared)


def test_states_are_listed_in_the_order_of_the_inputs() -> None:
    assert list_states(declare_states(function(), BOTH[::-1])) == BOTH


def test_without_metadata_the_aliases_are_the_state() -> None:
    assert list_states(function()) == ()
    assert list_states(function(aliases=(("h", "h_next"),))) == (State("h", "h_next"),)
    assert [str(state) for state in BOTH] == ["h <- h_next, at first -1", "past <- present"]


def test_state_does_not_change_what_is_compiled() -> None:
    aliased = function(aliases=(("h", "h_next"),))
    assert declare_states(function(), BOTH).fingerprint == aliased.fingerprint


def test_text_and_onnx_keep_it() -> None:
    declared = declare_states(function(), BOTH)
    assert parse(str(declared)) == declared
    again = onnx.load(onnx.to_model(declared).SerializeToString())
    assert list_states(again) == BOTH and again.aliases == declared.aliases


FORM = (
    "metadata 'xrt.state' of function 'main' is {!r}; it must be a list of pairs such as "
    '["input", "output"], each with an optional number as third entry: the initial fill value'
)


@pytest.mark.parametrize(
    "text", ["[", "3", '["h"]', '[["h"]]', '[["h", 3]]', '[["h", "h_next", "0"]]', '[["h", "h_next", true]]', '[["h","a",1,2]]']
)
def test_metadata_of_another_form_is_refused(text: str) -> None:
    with raises_exactly(ModelError, FORM.format(text)):
        list_states(function(metadata={"xrt.state": text}))


REFUSED = {
    "no input": ([State("pasts", "present")], "state 'pasts' is not an input. Did you mean 'past'?"),
    "no output": ([State("h", "h_new")], "state 'h': its next value 'h_new' is not an output. Did you mean 'h_next'?"),
    "an input twice": (
        [State("h", "h_next"), State("h", "y")],
        "'h' belongs to two states; each state needs a different input and output",
    ),
    "an output twice": (
        [State("h", "h_next"), State("x", "h_next")],
        "'h_next' belongs to two states; each state needs a different input and output",
    ),
    "another type": (
        [State("h", "long")],
        "state 'h' is float32[2], but its next value 'long' is float32[3]; both must have one type",
    ),
    "no tensor": ([State("h", "list")], "state 'h' is float32[2], but its next value 'list' is seq(float32[2]); use tensors"),
}


@pytest.mark.parametrize(("states", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_state_is_refused(states: list[State], message: str) -> None:
    opaque = node("Opaque", "h", "long list", domain="com.acme")
    more = Value("long", tensor("float32[3]")), Value("list", sequence("float32[2]"))
    base = function()
    base = base.replace(nodes=(*base.nodes, opaque), outputs=(*base.outputs, *more), opsets={"": 20, "com.acme": 1})
    with raises_exactly(ModelError, f"function 'main' is not valid: {message}"):
        declare_states(base, states)
