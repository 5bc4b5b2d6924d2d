"""Text that is no Function: errors with a position, and none that takes long."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given, settings, strategies as st

from tests.formats.test_text import EXAMPLE, START
from xrt.errors import ModelError
from xrt.formats.text import parse

# ---------------------------------------------------------------------- bad text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: expected 'function'; found the end of the text"),
        ("graph f", "line 1, column 1: expected 'function'; found 'graph'"),
        ("function f(x: float32[2]", "line 1, column 25: expected ')'; found the end of the text"),
        ("function f(x float32)", "line 1, column 14: expected ':'; found 'float32'"),
        ("function f(x: flaot32[2])", "line 1, column 15: unknown element type 'flaot32'. Did you mean 'float32'?"),
        ("function f(x: float32[2.5])", "line 1, column 23: expected an extent; found '2.5'"),
        ("function f(x: 3)", "line 1, column 15: expected a type; found '3'"),
        ("function f() -> () {} rest", "line 1, column 23: expected the end of the text after the function; found 'rest'"),
        ("function f() -> () { $ }", "line 1, column 22: expected a name, a number, a string or a mark; found '$'"),
        ('function "f', "line 1, column 10: expected a name, a number, a string or a mark; found '\"'"),
        ('function "\\x"() -> () {}', "line 1, column 10: expected a string with JSON's escapes"),
        (START + "y = Relu(x", "line 2, column 13: expected ')'; found the end of the text"),
        (START + "y Relu(x)", "line 2, column 5: expected '='; found 'Relu'"),
        (START + "y = (x)", "line 2, column 7: expected an operator; found '('"),
        (
            START + "3 = Relu(x)",
            "line 2, column 3: expected a statement (alias, const, doc, meta, opset, type), or the outputs of a node",
        ),
        (START + "y = Relu(after)", "line 2, column 12: expected an input; found 'after'"),
        (
            START + "y = Relu(x) {a = }",
            "line 2, column 20: expected a number, a string, bytes, tensor, type, function, or a list",
        ),
        (START + "y = Relu(x) {a = []}", "line 2, column 21: an empty list needs its kind, as in 'ints []'"),
        (START + "y = Relu(x) {a = [1, 2.0]}", "line 2, column 21: a list holds float, int; its items must be of one kind"),
        (START + "y = Relu(x) {a = 1e999}", "line 2, column 20: 1e999 is out of the range of float32"),
        (START + "y = Relu(x) {a = [1e39]}", "line 2, column 21: 1e39 is out of the range of float32"),
        (START + "const k: float32[] = 1e39", "line 2, column 24: 1e39 is out of the range of float32"),
        (START + "const k: float64[] = 1e999", "line 2, column 24: 1e999 is out of the range of float64"),
        (START + 'y = Relu(x) {a = bytes "0g"}', "line 2, column 26: non-hexadecimal number"),
        (START + "y = Relu(x) on cpu", "line 2, column 18: expected a device in double quotes; found 'cpu'"),
        (START + "y = Relu(x) @", "line 2, column 16: expected the node's name; found the end"),
        (START + "opset ai.onnx new", "line 2, column 17: expected the version of the domain; found 'new'"),
        (START + "opset a 1 opset a 2", "line 2, column 19: 'a' stands here a second time"),
        (START + 'doc "a" doc "b"', "line 2, column 15: '\"b\"' stands here a second time"),
        (START + "const k: float32[2] = [1.0]", "line 2, column 25: a constant of shape [2] has 2 elements; 1 are given"),
        (START + "const k: float32[N] = [1.0]", "line 2, column 25: a constant needs a shape of numbers; its type is float32[N]"),
        (START + "const k: float32[-1] = []", "a constant needs a shape of numbers"),
        (START + "const k: seq(float32[1]) = []", "line 2, column 12: unknown element type 'seq'"),
        (START + "const k: int8[] = 300", "line 2, column 21: a number is out of the range of int8"),
        (START + "const k: int8[] = 1.5", "line 2, column 21: invalid literal for int()"),
        (START + "const k: bool[] = 1", "line 2, column 21: '1' is neither true nor false"),
        (START + "const k: string[] = 1", "line 2, column 23: expected an element in double quotes; found '1'"),
        (START + 'const k: float32[1] = base64 "AAA"', "line 2, column 25: "),
        (START + 'const k: float32[1] = base64 "AAAA"', "a constant of float32 and shape [1] has 4 bytes; 3 are given"),
        (START + 'const k: bool[1] = base64 "Ag=="', "a byte of a bool constant is neither 0 nor 1"),
        (START + 'const k: string[1] = base64 "Ag=="', "strings are listed one by one, not as base64"),
        (START + "y = Relu(x) y = Neg(x) }", "line 1, column 1: value 'y' of function 'f' is defined twice"),
        (START + "y = Relu(y) }", "line 1, column 1: the graph has a cycle"),
    ],
)
def test_bad_text(text: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        parse(text)
    assert message in str(caught.value)


def nested_functions(depth: int) -> str:
    return "function f() -> () { () = If() { a = " * depth + "1" + "} }" * depth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (nested_functions(100_000), "functions are nested more than 50 deep"),
        (f"function f(x: {'seq(' * 100_000}", "types are nested more than 50 deep"),
        ("(" * 100_000, "expected 'function'"),
        (START + "y = Relu(x) {a = " + "[" * 100_000, "expected a number"),
        (START + f"opset a {'9' * 100_000}", "expected the version of the domain; found '9999"),
        (START + f"y = Relu(x) {{a = {'9' * 100_000}}}", "expected a whole number of at most 100 digits"),
        (START + f"const k: int8[{'9' * 100_000}] = []", "expected an extent"),
        (START + "const k: float64[1000000000, 1000000000] = [1.0]", "has 1000000000000000000 elements; 1 are given"),
        (START + 'const k: float64[1000000000, 1000000000] = base64 "AAAA"', "has 8000000000000000000 bytes; 3 are given"),
        (START + f"const k: int8[0, {'9' * 90}] = []", "line 2, column "),
        (START + f"const k: int64[] = {'9' * 90}", "line 2, column 22: "),
        ('function "' + "\\\\" * 100_000, "found '\"'"),
    ],
    ids=lambda text: text[:12] + text[-12:],
)
def test_hostile_text_is_refused_quickly(text: str, message: str) -> None:
    start = time.process_time()
    with pytest.raises(ModelError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.process_time() - start < 60  # seconds: a bound on blow-up, not a measurement


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.data())
@example(None)
def test_damaged_text_is_refused_or_read(data: st.DataObject | None) -> None:
    """Whatever is cut out of a text or put into it, the parser gives a Function or a ModelError, and nothing else."""
    if data is None:
        return
    position, length = data.draw(st.integers(0, len(EXAMPLE))), data.draw(st.integers(0, 12))
    put = data.draw(st.one_of(st.just(""), st.text(max_size=3), st.sampled_from(list('(){}[]=,:@?"_'))))
    try:
        parse(EXAMPLE[:position] + put + EXAMPLE[position + length :])
    except ModelError as error:
        assert str(error)  # noqa: PT017  # either ending is right
