"""Compare greedy tokens of the decoders of `xrt.models.transformers` with those of the library transformers, on each engine.

Models of the library get random weights, and the decoders get the same. It needs torch and transformers:

    python tools/compare_generation.py [--engines toy,ort,openvino] [--tokens 64]
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

import xrt
from xrt.graph import Function
from xrt.models.transformers import DecoderSizes, gpt_decoder, llama_decoder

PROMPT = np.array([[11, 7, 42, 3, 19]])
SIZES: dict[str, Any] = {"layers": 3, "hidden": 64, "heads": 8, "inner": 256, "vocabulary": 500, "capacity": 128}


def make_pairs() -> list[tuple[Any, Function]]:
    """Return each model of the library with the decoder of the same weights."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 500, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
    gpt = GPT2LMHeadModel(GPT2Config(n_positions=128, n_embd=64, n_layer=3, n_head=8, **sizes)).eval()
    wide = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 3, "max_position_embeddings": 128}
    llama = LlamaForCausalLM(LlamaConfig(num_attention_heads=8, num_key_value_heads=2, **wide, **sizes)).eval()
    return [
        (gpt, gpt_decoder(DecoderSizes(key_heads=8, **SIZES), _read_weights(gpt))),
        (llama, llama_decoder(DecoderSizes(key_heads=2, **SIZES), _read_weights(llama))),
    ]


def _read_weights(model: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def generate(session: Any, count: int) -> list[int]:
    """Return the most likely tokens after the prompt."""
    ids, tokens = PROMPT, []
    for _ in range(count):
        ids = session(ids).argmax(-1)[:, None]
        tokens.append(int(ids[0, 0]))
    return tokens


def main() -> int:
    """Compare, print a line for each model and engine, and return 1 where tokens differ."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--engines", default="toy,ort,openvino")
    parser.add_argument("--tokens", type=int, default=64)
    given = parser.parse_args()
    failed = 0
    for model, function in make_pairs():
        settings = {"max_new_tokens": given.tokens, "do_sample": False, "pad_token_id": 0}
        with torch.no_grad():
            found = model.generate(
                torch.from_numpy(PROMPT), attention_mask=torch.ones(PROMPT.shape, dtype=torch.long), **settings
            )
        expected = found[0, PROMPT.shape[1] :].tolist()
        for engine in given.engines.split(","):
            with xrt.XRTModule(function, engine=engine) as module:
                tokens = generate(module.new_session(), given.tokens)
            failed += tokens != expected
            print(f"{function.name} on {engine}: {given.tokens} tokens {'equal' if tokens == expected else 'DIFFER'}")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
