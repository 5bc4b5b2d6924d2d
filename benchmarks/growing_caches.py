"""What does a step cost whose caches lie in buffers, against caches that grow by a Concat, as exporters write them?

A decoder of the shape of GPT-2 small, its vocabulary small too, has caches that grow. In turns, one token each after some tokens:
the model as it is (*growing*), with caches that double their capacity (*doubling*: `xrt.stateful(model, capacity="double")`),
with caches of one capacity (*fixed*), and with these where a call reads their front (*front*: ``front=True``). Figures are
processor time per token, and the ratio to *growing* within each round. One thread. The steps of *growing* go on from a fork each,
so that the length stays; the others set it back.

    python -m benchmarks.growing_caches [--json] [--rounds 15] [--layers 12] [--width 768] [--capacity 4096]
        [--lengths 64,500,2000] [--engine ort]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import xrt
from xrt.builder import Builder, Tensor
from xrt.builder.record_op import emit
from xrt.formats.onnx.node_inference import node_types
from xrt.graph import DType, Function, TensorType
from xrt.measure.interleave import interleave
from xrt.measure.statistics import ratio

HEAD = 64
VOCABULARY = 1000
SHOWN = ("doubling", "fixed", "front")


class _Decoder:
    def __init__(self, layers: int, width: int, table: int) -> None:
        self.layers, self.width, self.heads, self.table = layers, width, width // HEAD, table
        self.builder = Builder("decoder", opsets=20, inference=node_types)
        self.random = np.random.default_rng(0)

    def weight(self, *shape: int) -> Tensor:
        return self.constant(self.random.standard_normal(shape, dtype=np.float32) / np.float32(shape[0] ** 0.5))

    def constant(self, value: Any) -> Tensor:
        return self.builder.constant(np.asarray(value))

    def norm(self, x: Tensor) -> Tensor:
        one, zero = np.ones(self.width, "float32"), np.zeros(self.width, "float32")
        return emit("LayerNormalization", x, self.constant(one), self.constant(zero), axis=-1)

    def split(self, x: Tensor) -> Tensor:
        return emit("Transpose", emit("Reshape", x, self.constant([1, -1, self.heads, HEAD])), perm=[0, 2, 1, 3])

    def attend(self, x: Tensor, layer: int, past: list[Tensor], bias: Tensor) -> Tensor:
        query, found = self.split(emit("MatMul", x, self.weight(self.width, self.width))), []
        for kind, before in zip(("key", "value"), past, strict=True):
            new = self.split(emit("MatMul", x, self.weight(self.width, self.width)))
            found.append(emit("Concat", before, new, axis=-2))
            self.builder.output(found[-1], f"present.{layer}.{kind}")
        scores = emit("MatMul", query, emit("Transpose", found[0], perm=[0, 1, 3, 2])) * np.float32(HEAD**-0.5)
        gathered = emit("MatMul", emit("Softmax", scores + bias, axis=-1), found[1])
        joined = emit("Reshape", emit("Transpose", gathered, perm=[0, 2, 1, 3]), self.constant([1, -1, self.width]))
        return emit("MatMul", joined, self.weight(self.width, self.width))

    def make(self) -> Function:
        """Return the decoder, from ``ids`` and caches of ``p`` tokens to ``logits`` of the last token and longer caches."""
        with self.builder as builder:
            ids = builder.input("ids", TensorType(DType.INT64, (1, "s")))
            cache = TensorType(DType.FLOAT32, (1, self.heads, "p", HEAD))
            names = [[f"past_key_values.{n}.{kind}" for kind in ("key", "value")] for n in range(self.layers)]
            pasts = [[builder.input(name, cache) for name in pair] for pair in names]
            length = emit("Gather", emit("Shape", pasts[0][0]), self.constant(2), axis=0)
            end = length + emit("Gather", emit("Shape", ids), self.constant(1), axis=0)
            places = emit("Range", length, end, self.constant(1))
            columns = emit("Unsqueeze", emit("Range", self.constant(0), end, self.constant(1)), self.constant([0]))
            is_hidden = emit("Greater", columns, emit("Unsqueeze", places, self.constant([1])))
            bias = emit("Where", is_hidden, self.constant(np.float32(-np.inf)), self.constant(np.float32(0)))
            x = emit("Gather", self.weight(VOCABULARY, self.width), ids, axis=0)
            x = x + emit("Gather", self.weight(self.table, self.width), places, axis=0)
            for layer, past in enumerate(pasts):
                x = x + self.attend(self.norm(x), layer, past, bias)
                wide = emit("Relu", emit("MatMul", self.norm(x), self.weight(self.width, 4 * self.width)))
                x = x + emit("MatMul", wide, self.weight(4 * self.width, self.width))
            last = emit("Gather", self.norm(x), self.constant(-1), axis=1)
            builder.output(emit("MatMul", last, self.weight(self.width, VOCABULARY)), "logits")
        return builder.function()


def measure(model: Function, capacity: int, length: int, rounds: int, engine: str) -> dict[str, Any]:
    """Return the times of a token after ``length`` others, and the ratios to the growing caches."""
    prompt, token = np.arange(length)[None] % VOCABULARY, np.array([[7]])
    kinds: dict[str, Any] = {"growing": {}, "doubling": {"capacity": "double"}, "fixed": {"capacity": capacity}}
    kinds["front"] = {"capacity": capacity, "front": True}
    modules = {kind: xrt.XRTModule(xrt.stateful(model, **terms), engine, threads=1) for kind, terms in kinds.items()}
    steps: dict[str, Callable[[], Any]] = {}
    sizes = {}
    for kind, module in modules.items():
        session = module.new_session()
        session(prompt)
        steps[kind] = _make_step(session, kind, token, length)
        steps[kind]()
        sizes[kind] = session.state["past_key_values.0.key"].shape[2]
    taken = interleave(steps, rounds=rounds, budget=0.1, clock=time.process_time)
    results = [step() for step in steps.values()]
    for module in modules.values():
        module.close()
    return {
        "length": length + 1,
        "capacities": sizes,
        "milliseconds": {name: 1e3 * timing.median for name, timing in taken.items()},
        "ratios": {name: _summarize(taken[name], taken["growing"]) for name in SHOWN},
        "largest_difference": max(float(np.abs(one - results[0]).max()) for one in results),
        "load": os.getloadavg()[0],
    }


def _make_step(session: xrt.Session, kind: str, token: Any, length: int) -> Callable[[], Any]:
    if kind == "growing":
        return lambda: session.fork()(token)

    def step() -> Any:
        session.state["xrt.length"] = np.array(length)
        return session(token)

    return step


def _summarize(mine: Any, other: Any) -> list[float]:
    found = ratio(mine, [other])
    return [found.median, found.low, found.high]


def main() -> None:
    """Measure each length, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    for name, default in (("rounds", 15), ("layers", 12), ("width", 768), ("capacity", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--lengths", default="64,500,2000")
    parser.add_argument("--engine", default="ort")
    asked = parser.parse_args()
    model = _Decoder(asked.layers, asked.width, asked.capacity).make()
    rows = [measure(model, asked.capacity, int(n), asked.rounds, asked.engine) for n in asked.lengths.split(",")]
    if asked.json:
        print(json.dumps(rows, indent=1))
        return
    heads = "        ".join(f"{name + '/growing':16}" for name in SHOWN)
    print(f"length  growing  doubling    fixed    front (ms)  {heads}capacities  difference")
    for row in rows:
        times = "".join(f"{row['milliseconds'][name]:9.2f}" for name in ("growing", *SHOWN))
        shown = "  ".join("{:.3f} ({:.3f} to {:.3f})".format(*row["ratios"][name]) for name in SHOWN)
        sizes = "/".join(str(row["capacities"][name]) for name in ("doubling", "fixed"))
        print(f"{row['length']:6}{times}       {shown}  {sizes:>10}  {row['largest_difference']:.1e}")


if __name__ == "__main__":
    main()
