"""What a call costs nothing for: prepared calls, the caller's buffers, several threads. Each refusal in full."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xrt
from tests.module.calling import ENGINES, MIXTURES, X, blocks, by_hand, module, random, relu
from tests.module.small_models import Picky
from xrt.errors import DeviceError, InputError
from xrt.graph import DType, Function, Node, SequenceType, TensorType, Value

# ---------------------------------------------------------------------- prepared calls


@pytest.mark.slow
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_further_calls_are_right_by_position_and_by_name(engine: Any) -> None:
    m = module(engine, blocks())
    for seed in range(3):
        x, y = random(seed=seed)
        for results in (m(x, y), m(x=x, y=y), m(y=y, x=x), m(x, y=y)):
            for result, wanted in zip(results, by_hand(x, y), strict=True):
                np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.slow
def test_signatures_take_turns_and_the_plan_is_that_of_the_last_call() -> None:
    m = xrt.XRTModule(relu(("N", 3)), engine=[Picky(), "toy"], strict=True)
    a, b = np.ones((2, 3), "float32"), np.ones((4, 3), "float32")
    for given in (a, b, a, b, b, a):
        assert m(given).shape == given.shape
        assert m.inputs == m.inputs and m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, given.shape)
    m.plan_for(b)
    assert m(a).shape == a.shape
    assert m.plan.launches[0].function.inputs[0].type == TensorType(DType.FLOAT32, a.shape)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_looks_alike_is_not_taken_for_what_was_prepared(engine: str) -> None:
    m = xrt.XRTModule(relu(), engine=engine, strict=True)
    m(X)
    for wrong in (X.astype("float64"), X[:1], X.tolist(), None):
        with pytest.raises(InputError):
            m(wrong)
    with pytest.raises(InputError):
        m(z=X)
    with pytest.raises(InputError):
        m()
    np.testing.assert_array_equal(m(X.T.copy().T), np.maximum(X, 0))
    np.testing.assert_array_equal(m(X.astype(">f4")), np.maximum(X, 0))
    np.testing.assert_array_equal(m(X.view(np.recarray)), np.maximum(X, 0))


@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_results_of_a_prepared_call_are_the_callers_own(engine: Any) -> None:
    m, (x, y) = module(engine, blocks()), random()
    seen: list[Any] = [x, y]
    for _ in range(3):
        for result in m(x, y):
            assert not any(np.shares_memory(result, other) for other in seen)
            seen.append(result)
            result[...] = np.nan  # whoever still held it would show it
    for result, wanted in zip(m(x, y), by_hand(x, y), strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("size", [8, 64, 512])
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_eight_threads_call_one_module(engine: Any, size: int) -> None:
    m = module(engine, blocks(size))
    m(*random(size))

    def call(seed: int) -> list[Any]:
        x, y = random(size, seed)
        return [x, y, *(result for _ in range(4) for result in m(x, y))]

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(call, range(16)))
    for x, y, *results in found:
        assert all(np.allclose(a, b) for a, b in zip(results, by_hand(x, y) * 4, strict=True))
    starts = sorted((a.ctypes.data, a.nbytes) for one in found for a in one)
    assert all(at + nbytes <= then for (at, nbytes), (then, _) in itertools.pairwise(starts)), "no memory is shared"


# ---------------------------------------------------------------------- out=


@pytest.mark.parametrize("size", [8, 512])
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_buffers_of_the_caller_hold_the_outputs(engine: Any, size: int) -> None:
    m, (x, y) = module(engine, blocks(size)), random(size)
    for _ in range(2):  # the first call of a signature and a prepared one
        out = [np.empty((size, size), "float32"), None]
        first, second = m(x, y, out=out)
        assert first is out[0] and not np.shares_memory(first, second)
        for result, wanted in zip((first, second), by_hand(x, y), strict=True):
            np.testing.assert_allclose(result, wanted, rtol=1e-6)


class Elsewhere:
    """An array on another device."""

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 1


TWO = np.zeros((2, 4, 4), "float32")


@pytest.mark.parametrize(
    ("out", "error", "text"),
    [
        (TWO[0], InputError, "out has 1 buffer; the model has 2 outputs (v5, v2): give one, or None, for each"),
        ([TWO[0], TWO[1], None], InputError, "out has 3 buffers; the model has 2 outputs (v5, v2): give one, or None, for each"),
        ([None, TWO[1][:2]], InputError, "out[1] for output 'v2' must be float32[4,4]; got float32[2, 4]"),
        ([TWO[0].astype("int32"), None], InputError, "out[0] for output 'v5' must be float32[4,4]; got int32[4, 4]"),
        (
            [TWO[0].T, None],
            InputError,
            "out[0] for output 'v5' is not C-contiguous; a buffer must be a writeable, C-contiguous array",
        ),
        (
            [np.broadcast_to(np.float32(1), (4, 4)), None],
            InputError,
            "out[0] for output 'v5' is read-only; a buffer must be a writeable, C-contiguous array",
        ),
        (
            [np.empty(65, "uint8")[1:].view("float32").reshape(4, 4), None],
            InputError,
            "out[0] for output 'v5' is not aligned to its element type; a buffer must be a writeable, C-contiguous array",
        ),
        ([TWO[0], TWO[0]], InputError, "out[1] for output 'v2' overlaps out[0]; give a buffer of its own"),
        (["buffer", None], InputError, "out[0] for output 'v5' must be a NumPy array; got str"),
        (
            [Elsewhere(), None],
            DeviceError,
            "out[0] for output 'v5' lies on cuda:1, and the module runs on cpu; give a NumPy array",
        ),
    ],
)
@pytest.mark.parametrize("prepared", [False, True])
def test_a_buffer_that_does_not_fit_is_refused_by_name(out: Any, error: type[Exception], text: str, prepared: bool) -> None:
    m, (x, y) = xrt.XRTModule(blocks(4), engine="toy"), random(4)
    if prepared:
        m(x, y)
    for call in (lambda: m(x, y, out=out), lambda: m.bind(x, y, out=out)):
        with pytest.raises(error) as caught:
            call()
        assert str(caught.value) == text


@pytest.mark.parametrize("prepared", [False, True])
def test_a_buffer_that_overlaps_an_input_is_refused_by_name(prepared: bool) -> None:
    m, memory = xrt.XRTModule(blocks(4), engine="toy"), np.zeros(40, "float32")
    x, y = memory[:16].reshape(4, 4), np.zeros((4, 4), "float32")
    if prepared:
        m(x, y)
    with pytest.raises(InputError) as caught:
        m(x, y, out=[None, memory[8:24].reshape(4, 4)])
    assert str(caught.value) == "out[1] for output 'v2' overlaps input 'x'; give a buffer of its own"


def test_no_buffer_holds_a_sequence() -> None:
    x = Value("x", TensorType(DType.FLOAT32, (2,)))
    function = Function((x,), (Value("s", SequenceType(TensorType(DType.FLOAT32, None))),),
                        (Node("SequenceConstruct", ("x",), ("s",)),), opsets={"": 14})  # fmt: skip
    m, given = xrt.XRTModule(function, engine="toy"), np.zeros(2, "float32")
    with pytest.raises(InputError) as caught:
        m(given, out=np.empty(2, "float32"))
    text = "out[0] for output 's' is given, but the output is seq(float32[2]), which no buffer holds; pass None in its place"
    assert str(caught.value) == text
    with pytest.raises(InputError) as caught:
        m.bind(given)
    text = "output 's' is seq(float32[2]), which no buffer holds; call the module instead of binding it"
    assert str(caught.value) == text
