"""What does a token cost with state kept by a session, against ONNX Runtime's own session bound to the same buffers?

The decoder of `xrt.models.decoders` takes one token at a time from a cache of some length. In turns: ONNX Runtime's session
with the input and the output of each cache bound to one buffer (*bound*), the same with outputs of their own (*elsewhere*), and a
session of a module on `ort` (*session*). Figures are processor time per token and the ratio to *bound* within each round, and the
bytes of caches that XRT has copied. Every way runs with one thread.

    python -m benchmarks.decode [--json] [--rounds N] [--layers 12] [--capacities 1024,4096] [--batches 1,4] [--engine ort]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import xrt
from xrt.formats import onnx
from xrt.graph import Function, list_states
from xrt.measure.interleave import interleave
from xrt.measure.statistics import ratio
from xrt.models.decoders import DecoderSizes, gpt_decoder

LENGTH = 64
"""Tokens in the cache before each measured step."""


def make_bound(function: Function, batch: int, *, inplace: bool) -> Callable[[], Any]:
    """Return a step of ONNX Runtime's own session; each cache is read from its array and written there, or elsewhere."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3  # the library warns of each update that is not in place
    session = onnxruntime.InferenceSession(
        onnx.to_model(function).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding, kept = session.io_binding(), []
    for state in list_states(function):
        type_: Any = function.get_type(state.input)
        before = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(type_.shape, type_.dtype.numpy))
        if state.input == "length":
            before = onnxruntime.OrtValue.ortvalue_from_numpy(np.array([LENGTH]))
        same = inplace and state.input != "length"
        after = before if same else onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(type_.shape, type_.dtype.numpy))
        kept += [before, after]
        binding.bind_ortvalue_input(state.input, before)
        binding.bind_ortvalue_output(state.output, after)
    binding.bind_cpu_input("ids", np.full((batch, 1), 7))
    binding.bind_output("logits")

    def step() -> Any:
        session.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()[0]

    step.kept = kept  # type: ignore[attr-defined]  # the binding holds addresses alone
    return step


def measure(layers: int, capacity: int, batch: int, rounds: int, engine: str) -> dict[str, Any]:
    """Return the times of each way, their ratios to the bound session, and the bytes copied per token."""
    function = gpt_decoder(DecoderSizes(layers=layers, capacity=capacity, batch=batch))
    with xrt.XRTModule(function, engine=engine, threads=1) as module:
        session, ids = module.new_session(), np.full((batch, 1), 7)
        session(np.full((batch, LENGTH), 7))

        def step() -> Any:
            session.state["length"] = np.array([LENGTH])
            return session(ids)

        step()
        ways = {"bound": make_bound(function, batch, inplace=True), "elsewhere": make_bound(function, batch, inplace=False)}
        taken = interleave({**ways, "session": step}, rounds=rounds, budget=0.1, clock=time.process_time)
        before = sum(copy.nbytes for copy in module.profile().copies if copy.input != "length")
        step()
        copied = sum(copy.nbytes for copy in module.profile().copies if copy.input != "length") - before
    ratios = {name: ratio(taken[name], [taken["bound"]]) for name in ("elsewhere", "session")}
    return {
        "layers": layers,
        "capacity": capacity,
        "batch": batch,
        "milliseconds": {name: 1e3 * timing.median for name, timing in taken.items()},
        "ratios": {name: [one.median, one.low, one.high] for name, one in ratios.items()},
        "copied": copied,
        "load": os.getloadavg()[0],
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every capacity and batch, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true")
    for name, default in (("rounds", 15), ("layers", 12)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, usual in (("capacities", "1024,4096"), ("batches", "1,4"), ("engine", "ort")):
        parser.add_argument(f"--{name}", default=usual)
    given = parser.parse_args(arguments)
    sizes = [(int(c), int(b)) for c in given.capacities.split(",") for b in given.batches.split(",")]
    rows = [measure(given.layers, capacity, batch, given.rounds, given.engine) for capacity, batch in sizes]
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    print("capacity  batch      bound  elsewhere    session (ms)  elsewhere/bound          session/bound   bytes copied  load")
    for row in rows:
        times = "".join(f"{row['milliseconds'][name]:11.2f}" for name in ("bound", "elsewhere", "session"))
        shown = "  ".join("{:.3f} ({:.3f} to {:.3f})".format(*row["ratios"][name]) for name in ("elsewhere", "session"))
        print(f"{row['capacity']:8}{row['batch']:7}{times}       {shown}{row['copied']:12,}{row['load']:8.1f}")


if __name__ == "__main__":
    main()
