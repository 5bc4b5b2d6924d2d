"""The decoders with state: steps equal one call over all tokens, on engines and mixtures, with caches written in place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import xrt
from xrt.errors import InputError, ModelError, OptionError
from xrt.graph import Function
from xrt.graph.state import Capacity, declare_capacity, find_capacity
from xrt.models.transformers import DecoderSizes, gpt_decoder, llama_decoder

SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "heads": 4, "inner": 96, "vocabulary": 50}
IDS = np.array([[3, 1, 4, 1, 5, 9, 2, 6], [5, 3, 5, 8, 9, 7, 9, 3]])
MAKERS = {"gpt": (gpt_decoder, 4), "llama": (llama_decoder, 2)}


def make(kind: str, capacity: int = 128, batch: int = 2) -> Function:
    maker, few = MAKERS[kind]
    return maker(DecoderSizes(key_heads=few, capacity=capacity, batch=batch, **SIZES))


@pytest.fixture(scope="module", params=MAKERS)
def decoder(request: pytest.FixtureRequest) -> tuple[Function, list[Any]]:
    """Return a decoder, and what the reference engine gives for each prefix."""
    function = make(request.param)
    m = xrt.XRTModule(function, engine="toy")
    return function, [m.new_session()(IDS[:, : end + 1]) for end in range(IDS.shape[1])]


MIXTURES = ["toy", "ort", "openvino", ["ort", "toy"], ["toy", "ort"], ["openvino", "ort"]]
PINS = {"['ort', 'toy']": ["TensorScatter=toy"], "['toy', 'ort']": ["MatMul=ort"], "['openvino', 'ort']": ["TensorScatter=ort"]}


@pytest.mark.slow
@pytest.mark.parametrize("engine", MIXTURES, ids=str)
def test_steps_equal_one_call_and_copy_no_cache(engine: Any, decoder: Any) -> None:
    function, expected = decoder
    m = xrt.XRTModule(function, engine=engine, pins=PINS.get(str(engine), []))
    session = m.new_session()
    found = [session(IDS[:, :3]), *(session(IDS[:, at : at + 1]) for at in range(3, IDS.shape[1]))]
    for one, wanted in zip(found, expected[2:], strict=True):
        np.testing.assert_allclose(one, wanted, rtol=1e-3, atol=1e-4)
    assert [copy.input for copy in m.profile().copies] == ([] if engine == "toy" else ["length"])
    assert sorted({launch.engine for launch in m.plan.launches}) == sorted({*([engine] if isinstance(engine, str) else engine)})


def test_a_call_beyond_the_capacity_is_one_clear_error() -> None:
    session = xrt.XRTModule(make("gpt", capacity=9), engine="toy").new_session()
    session(IDS)
    before = session.state["past_key_1"]
    with pytest.raises(InputError) as caught:
        session(IDS[:, :2])
    assert str(caught.value) == (
        "the state holds 8 of 9 entries, and this call adds 2 by input 'ids'; call session.reset(), or make the model with a "
        "larger capacity"
    )
    np.testing.assert_array_equal(session.state["past_key_1"], before)
    assert session(IDS[:, :1]).shape == (2, 50)


@pytest.mark.slow
def test_a_fork_explores_another_end() -> None:
    first = xrt.XRTModule(make("llama"), engine="ort").new_session()
    first(IDS[:, :4])
    other = first.fork()
    one, two = first(IDS[:, 4:5]), other(IDS[:, 6:7])
    np.testing.assert_allclose(xrt.XRTModule(make("llama"), engine="toy").new_session()(IDS[:, :5]), one, rtol=1e-3, atol=1e-4)
    assert np.abs(one - two).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["ort", ["ort", "toy"]], ids=str)
def test_conversations_in_many_threads_are_what_they_are_alone(engine: Any) -> None:
    m = xrt.XRTModule(make("llama", batch=1), engine=engine, pins=PINS.get(str(engine), []), threads=1)

    def talk(seed: int) -> list[int]:
        session, ids, tokens = m.new_session(), np.array([[seed, 3]]), []
        for _ in range(12):
            ids = session(ids).argmax(-1)[:, None]
            tokens.append(int(ids[0, 0]))
        return tokens

    alone = [talk(seed) for seed in range(32)]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(talk, range(32))) == alone


def test_weights_are_taken_by_name() -> None:
    sizes = DecoderSizes(key_heads=4, **SIZES)
    with pytest.raises(OptionError) as caught:
        gpt_decoder(sizes, {})
    assert str(caught.value) == "weight 'transformer.wte.weight' is missing; it must be float32[50, 64]"
    with pytest.raises(OptionError) as caught:
        gpt_decoder(sizes, {"transformer.wte.weight": np.zeros((3, 4), "float32")})
    assert str(caught.value) == "weight 'transformer.wte.weight' is of shape [3, 4]; it must be float32[50, 64]"
    with pytest.raises(OptionError) as caught:
        DecoderSizes(heads=7)
    assert str(caught.value) == "hidden=768 must be a multiple of heads=7, and that of key_heads=12"


def test_the_capacity_is_metadata_that_is_checked() -> None:
    function = make("gpt")
    assert find_capacity(function) == Capacity("length", "ids", 1, 128)
    assert find_capacity(function.replace(metadata={})) is None
    for broken in (Capacity("lengths", "ids", 1, 128), Capacity("length", "ids", -1, 128)):
        with pytest.raises(ModelError) as caught:
            find_capacity(declare_capacity(function, broken))
        assert str(caught.value).endswith("it must name a state (length), an input, its axis and a size")
