"""Generate text with a GPT-style and a Llama-style decoder, with random weights, on each engine and on ``auto``.

One model processes the prompt and each further token. A session stores the caches of keys and values. Engines should update them
in place, so the bytes that are copied instead are printed. Each token is the most likely one.

The decoders are those of `xrt.models.transformers`, or of the library transformers: ``--source torch`` captures one with
`xrt.from_torch`, and ``--source onnx`` exports it with `torch.onnx.export`, which needs onnxscript. In the library's decoders a
Concat extends the caches at each token; ``xrt.stateful(model, pairs, capacity=...)`` replaces it by buffers of a fixed size.
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
    """Create a "gpt" or "llama" decoder of `xrt.models.transformers`; Llama has a quarter as many key heads as query heads."""
    sizes = {"layers": layers, "hidden": hidden, "heads": 8, "vocabulary": 8192, "capacity": capacity}
    if kind == "gpt":
        return gpt_decoder(DecoderSizes(key_heads=8, inner=4 * hidden, **sizes))
    return llama_decoder(DecoderSizes(key_heads=2, inner=3 * hidden, **sizes))


def make_library_model(kind: str, layers: int, hidden: int, positions: int) -> Any:
    """Create a decoder of the library transformers, of the same sizes as in `make_model`, with random weights."""
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
    """Convert a decoder of the library to a Function with state, by the ``source`` "torch" or "onnx"."""
    import torch
    from transformers import DynamicCache

    class Flat(torch.nn.Module):
        """The model with its caches as a flat list of tensors: keys and values of layer 0, of layer 1, and so on."""

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
    ]  # distinct tensors, by which torch.onnx distinguishes the inputs
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
    """Generate ``count`` tokens. Return them and the seconds per token, without the first two steps, which may compile."""
    tokens: list[int] = []
    ids, start = prompt, 0.0
    for step in range(count):
        if step == 2:
            start = perf_counter()
        ids = session(ids).argmax(-1)[:, None]
        tokens.append(int(ids[0, 0]))
    return tokens, (perf_counter() - start) / max(count - 2, 1)


def main(arguments: Sequence[str] | None = None) -> None:
    """Generate tokens on each engine, compare them with those of the reference engine, and print the rates."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=["gpt", "llama"], default="gpt")
    parser.add_argument("--source", choices=["code", "torch", "onnx"], default="code")
    parser.add_argument("--engines", default="toy,ort,openvino,auto")
    for name, default in (("tokens", 32), ("layers", 4), ("hidden", 256), ("capacity", 256), ("budget", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args(arguments)
    sizes = (args.model, args.layers, args.hidden, args.capacity)
    model = make_model(*sizes) if args.source == "code" else capture(make_library_model(*sizes), args.source, args.capacity)
    expected, _ = generate(xrt.XRTModule(model, engine="toy").new_session(), PROMPT, args.tokens)
    print(f"{model.name}: {len(model.nodes)} nodes, {args.tokens} tokens after a prompt of {PROMPT.shape[1]}")
    for engine in args.engines.split(","):
        options = {"budget": args.budget} if engine == "auto" else {}
        with xrt.XRTModule(model, engine=engine, **options) as module:
            tokens, seconds = generate(module.new_session(), PROMPT, args.tokens)
            copied = sum(copy.nbytes for copy in module.profile().copies if not copy.input.endswith("length"))
            used = ", ".join(sorted(module.plan.used_engines))
        same = "the same tokens" if tokens == expected else "OTHER TOKENS"
        print(f"{engine:10} {1 / seconds:8.1f} tokens/s  {same} as toy, {copied:,} bytes of caches copied, {used}")


if __name__ == "__main__":
    main()
