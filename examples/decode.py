"""Text generation with state: a GPT-style and a Llama-style decoder with random weights, on each engine and on ``auto``.

One model serves the prompt and each further token. A session keeps the caches of keys and values, which the engines write in
place; what is copied instead is counted. Tokens are the most likely ones.

    python examples/decode.py [--model gpt|llama] [--engines ort,openvino,auto] [--tokens 32] [--layers 4] [--budget 20]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

import xrt
from xrt.graph import Function
from xrt.models.decoders import DecoderSizes, gpt_decoder, llama_decoder

PROMPT = np.array([[11, 7, 42, 3, 19, 23, 5, 2]])


def make_model(kind: str, layers: int, hidden: int, capacity: int) -> Function:
    """Return a decoder of some width; the Llama-style one has a quarter as many heads of keys as of queries."""
    sizes = {"layers": layers, "hidden": hidden, "heads": 8, "vocabulary": 8192, "capacity": capacity}
    if kind == "gpt":
        return gpt_decoder(DecoderSizes(key_heads=8, inner=4 * hidden, **sizes))
    return llama_decoder(DecoderSizes(key_heads=2, inner=3 * hidden, **sizes))


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
    parser.add_argument("--engines", default="toy,ort,openvino,auto")
    for name, default in (("tokens", 32), ("layers", 4), ("hidden", 256), ("capacity", 256), ("budget", 20)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args(arguments)
    model = make_model(given.model, given.layers, given.hidden, given.capacity)
    expected, _ = generate(xrt.XRTModule(model).new_session(), PROMPT, given.tokens)
    print(f"{model.name}: {len(model.nodes)} nodes, {given.tokens} tokens after a prompt of {PROMPT.shape[1]}")
    for engine in given.engines.split(","):
        options = {"budget": given.budget} if engine == "auto" else {}
        with xrt.XRTModule(model, engine=engine, **options) as module:
            tokens, seconds = generate(module.new_session(), PROMPT, given.tokens)
            copied = sum(copy.nbytes for copy in module.profile().copies if copy.input != "length")
            used = ", ".join(sorted({launch.engine for launch in module.plan.launches}))
        same = "the same tokens" if tokens == expected else "OTHER TOKENS"
        print(f"{engine:10} {1 / seconds:8.1f} tokens/s  {same} as toy, {copied:,} bytes of caches copied, {used}")


if __name__ == "__main__":
    main()
