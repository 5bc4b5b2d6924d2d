"""Decoders of the library transformers, captured with state and under torch.compile: the tokens are those of eager PyTorch."""

from __future__ import annotations

import warnings
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers

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


SIZES = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,  # groups of two heads
    "vocab_size": 99,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
SMALL = {
    "gpt2": {
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "vocab_size": 99,
        "pad_token_id": 0,
        "eos_token_id": None,
    }
}
KINDS = ("llama", "mistral", "qwen3", "gemma3_text", "mixtral", "gpt2")
FORMS = [(kind, cache, padding) for kind in KINDS for cache in ("dynamic", "static") for padding in (0, 3)]
QUICK = [("llama", "dynamic", 3), ("llama", "static", 0)]


def make_untrained(kind: str) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SMALL.get(kind, SIZES))
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.12)  # weights of which the tokens depend on the prompt
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "cache", "padding"),
    [pytest.param(*form, marks=[] if form in QUICK else pytest.mark.full, id="-".join(map(str, form))) for form in FORMS],
)
def test_generated_tokens_are_those_of_eager(kind: str, cache: str, padding: int) -> None:
    model, prompt = make_untrained(kind), torch.arange(3, 17).reshape(2, 7)
    mask = torch.ones_like(prompt)
    prompt[1, :padding], mask[1, :padding] = 0, 0
    options = {"attention_mask": mask, "max_new_tokens": 6, "do_sample": False, "output_logits": True}
    options |= {"return_dict_in_generate": True, "disable_compile": True}
    if cache == "static":
        options["cache_implementation"] = "static"
    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the libraries, about themselves
        expected = model.generate(prompt, **options)
        engines = ["toy", "torch"] if kind == "mixtral" else ["toy"]  # its experts are an operator of transformers
        model.forward = torch.compile(model.forward, backend="xrt", options={"engine": engines, "strict": True})
        tokens = model.generate(prompt, **options)
    torch._dynamo.reset()
    assert torch.equal(tokens.sequences, expected.sequences)
    for item, other in zip(tokens.logits, expected.logits, strict=True):
        torch.testing.assert_close(item, other, rtol=1e-4, atol=1e-4)


def test_a_cache_among_the_outputs_is_refused_with_the_way_out() -> None:
    from xrt import XRTModule
    from xrt.errors import ModelError

    model, prompt = make_untrained("llama"), torch.arange(3, 10)[None]
    with pytest.raises(ModelError, match=r"with a cache of transformers as input or output; pass use_cache=False, or use"):
        XRTModule(model, engine="toy")(prompt)
    module = XRTModule(model, engine="toy")(prompt, use_cache=False)
    torch.testing.assert_close(module.logits, model(prompt).logits.detach())
