"""Text generation with state: a GPT-style and a Llama-style decoder with random weights, on each engine and on ``auto``.

One model serves the prompt and each further token. A session keeps the caches of keys and values, which the engines write in
place; what is copied instead is counted. Tokens are the most likely ones.

The decoders are written in code (`xrt.models.transformers`), or come from the library transformers: ``--source torch`` captures
one by `xrt.from_torch`, ``--source onnx`` exports it by `torch.onnx.export`, which needs onnxscript. Their caches grow by a
Concat; ``xrt.stateful(model, pairs, capacity=...)`` keeps them in buffers.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

import xrt
from xrt.graph import Function
from xrt.models.transformers import DecoderSizes, gpt_decoder, llama_decoder

PROMPT = np.array([[11, 7, 42, 3, 19, 23, 5, 2]])


def make_model(kind: str, layers: int, hidden: int, capacity: int) -> Function:
    """Return a decoder of some width; the Llama-style one has a quarter as many heads of keys as of queries."""
    sizes = {"layers": layers, "hidden": hidden, "heads": 8, "vocabulary": 8192, "capacity": capacity}
    if kind == "gpt":
        return gpt_decoder(DecoderSizes(key_heads=8, inner=4 * hidden, **sizes))
    return llama_decoder(DecoderSizes(key_heads=2, inner=3 * hidden, **sizes))


def make_library_model(kind: str, layers: int, hidden: int, positions: int) -> Any:
    """Return a decoder of the library transformers with random weights, of the same form."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 8192, "initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None}
    if kind == "gpt":
        return GPT2LMHeadModel(GPT2Config(n_positions=positions, n_embd=hidden, n_layer=layers, n_head=8, **sizes)).eval()
    wide = {"hidden_size": hidden, "intermediate_size": 3 * hidden, "num_hidden_layers": layers}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "max_position_embeddings": positions}
    return LlamaForCausalLM(LlamaConfig(**wide, **heads, **sizes)).eval()


def capture(model: Any, source: str, capacity: int | str | None) -> Function:
    """Return a decoder of the library as a Function with state: captured, or exported as ONNX."""
    import torch
    from transformers import DynamicCache

    class Flat(torch.nn.Module):
        """The model with its caches as single tensors, keys and values of each layer in turn."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, *past: Any) -> Any:
            cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            outputs = self.model(input_ids=ids, past_key_values=cache, use_cache=True)
            caches = [part for layer in outputs.past_key_values.layers for part in (layer.keys, layer.values)]
            return (outputs.logits[:, -1], *caches)

    config = model.config
    heads = getattr(config, "num_key_value_heads", config.num_attention_heads)
    width = config.hidden_size // config.num_attention_heads
    past = [
        torch.zeros(1, heads, 5, width) for _ in range(2 * config.num_hidden_layers)
    ]  # one tensor each: torch.onnx tells by it
    tokens, past_size = torch.export.Dim("tokens"), torch.export.Dim("past")
    shapes = ({1: tokens}, ({2: past_size},) * len(past))
    flat = Flat().eval()
    arguments = (torch.zeros(1, 3, dtype=torch.int64), *past)
    names = [
        [f"{when}.{n // 2}.{'value' if n % 2 else 'key'}" for n in range(len(past))] for when in ("past_key_values", "present")
    ]
    if source == "torch":
        function = xrt.from_torch(flat, arguments, dynamic_shapes=shapes)
        inputs, outputs = ([value.name for value in ends[1:]] for ends in (function.inputs, function.outputs))
        return xrt.stateful(function, dict(zip(inputs, outputs, strict=True)), capacity=capacity)
    ends = {"input_names": ["ids", *names[0]], "output_names": ["logits", *names[1]]}
    program = torch.onnx.export(flat, arguments, dynamo=True, dynamic_shapes=shapes, verbose=False, **ends)
    return xrt.stateful(program.model_proto, capacity=capacity)


def generate(session: Any, prompt: np.ndarray, count: int) -> tuple[list[int], float]:
    """Return the most likely tokens after the prompt, and the seconds for each but the first two, which may compile."""
    tokens: list[int] = []
    ids, began = prompt, 0.0
    for step in range(count):
        if step == 2:
            began = perf_counter()
        ids = session(ids).argmax(-1)[:, None]
        tokens.append(int(ids[0, 0]))
    return tokens, (perf_counter() - began) / max(count - 2, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate on each engine, compare the tokens with the reference engine's, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=["gpt", "llama"], default="gpt")
    parser.add_argument("--source", choices=["code", "torch", "onnx"], default="code")
    parser.add_argument("--engines", default="toy,ort,openvino,auto")
    for name, default in (("tokens", 32), ("layers", 4), ("hidden", 256), ("capacity", 256), ("budget", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    sizes = (given.model, given.layers, given.hidden, given.capacity)
    model = make_model(*sizes) if given.source == "code" else capture(make_library_model(*sizes), given.source, given.capacity)
    expected, _ = generate(xrt.XRTModule(model, engine="toy").new_session(), PROMPT, given.tokens)
    print(f"{model.name}: {len(model.nodes)} nodes, {given.tokens} tokens after a prompt of {PROMPT.shape[1]}")
    for engine in given.engines.split(","):
        options = {"budget": given.budget} if engine == "auto" else {}
        with xrt.XRTModule(model, engine=engine, **options) as module:
            tokens, seconds = generate(module.new_session(), PROMPT, given.tokens)
            copied = sum(copy.nbytes for copy in module.profile().copies if not copy.input.endswith("length"))
            used = ", ".join(sorted({launch.engine for launch in module.plan.launches}))
        same = "the same tokens" if tokens == expected else "OTHER TOKENS"
        print(f"{engine:10} {1 / seconds:8.1f} tokens/s  {same} as toy, {copied:,} bytes of caches copied, {used}")


if __name__ == "__main__":
    main()
