"""Decoders of the library transformers with state: captured and exported, with caches that grow and caches in buffers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import xrt
from examples.decode import capture, generate, make_library_model
from xrt.graph import Function, list_states

PROMPT = np.array([[11, 7, 42, 3, 19]])
TOKENS = 24


@cache
def make(kind: str) -> tuple[Any, list[int]]:
    """Return a small model, and the most likely tokens after the prompt by the library itself."""
    model = make_library_model(kind, 2, 32, 64)
    settings = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
    with torch.no_grad():
        tokens = model.generate(torch.from_numpy(PROMPT), attention_mask=torch.ones(PROMPT.shape, dtype=torch.long), **settings)
    return model, tokens[0, PROMPT.shape[1] :].tolist()


@cache
def grow(kind: str, source: str) -> Function:
    """Return the model with caches that grow; a capture takes seconds."""
    return capture(make(kind)[0], source, None)


@pytest.mark.sample(6)
@pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning")  # of torch.onnx, about itself
@pytest.mark.filterwarnings("ignore:# The axis name:UserWarning")  # of torch.onnx, of a name that all caches share
@pytest.mark.parametrize("source", ["torch", "onnx"])
@pytest.mark.parametrize("kind", ["gpt", "llama"])
@pytest.mark.parametrize("capacity", [64, "double", None])
def test_tokens_are_those_of_the_library(kind: str, source: str, capacity: int | str | None) -> None:
    expected, function = make(kind)[1], grow(kind, source)
    if capacity is not None:
        function = xrt.stateful(function, {state.input: state.output for state in list_states(function)}, capacity=capacity)
    for engine in ("toy", "ort"):
        with xrt.XRTModule(function, engine) as module:
            session = module.new_session()
            tokens, _ = generate(session, PROMPT, TOKENS)
            copied = [copy.input for copy in module.profile().copies if not copy.input.endswith("length")]
        assert tokens == expected
        assert capacity is None or copied == []
