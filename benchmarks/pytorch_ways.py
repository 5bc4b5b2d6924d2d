"""The ways to call a network of PyTorch: eager, Inductor, ONNX Runtime, OpenVINO, and XRT, each as it is best used."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.output import open_session

TOLERANCE = 2e-3
"""Allowed difference as a share of the largest value: float32 sums in another order differ this much after 12 layers."""


def compile_ways(name: str, threads: int, budget: float, ways: tuple[str, ...]) -> dict[str, Callable[[], Any]]:
    """Compile the network for each way and compare its result with eager; return the calls by way."""
    import torch
    import torch._dynamo

    import xrt
    from benchmarks.pytorch_models import MODELS, make_model

    torch.set_num_threads(threads)
    torch._dynamo.config.allow_rnn = True  # recurrent layers run eagerly without it, whatever the backend
    module, inputs = make_model(name)
    options = {"engine": "auto", "threads": threads, "budget": budget, "freeze": True}
    makers: Mapping[str, Callable[[], Callable[[], Any]]] = {
        "eager": lambda: partial(module, *inputs),
        "inductor": lambda: partial(torch.compile(module), *inputs),
        "inductor frozen": lambda: _inductor_frozen(name, MODELS[name].is_image),
        "onnxruntime": lambda: _onnxruntime(module, inputs, threads),
        "openvino": lambda: _openvino(module, inputs, threads),
        "xrt": lambda: partial(xrt.XRTModule(module, engine="auto", threads=threads, budget=budget), *inputs),
        "torch.compile": lambda: partial(torch.compile(module, backend="xrt", options=options), *inputs),
    }
    expected = module(*inputs).numpy()
    calls = {}
    for way in ways:
        call = makers[way]()
        difference = abs(expected - _numpy(call())).max() / abs(expected).max()
        if not difference <= TOLERANCE:
            raise SystemExit(f"{name}, {way}: differs from eager by {difference:.2g} of the largest value")
        calls[way] = call
    return calls


def _numpy(result: Any) -> Any:
    return result.numpy() if hasattr(result, "numpy") else result


def _inductor_frozen(name: str, is_image: bool) -> Callable[[], Any]:
    import torch

    from benchmarks.pytorch_models import make_model

    module, inputs = make_model(name)
    if is_image:
        module = module.to(memory_format=torch.channels_last)
        inputs = tuple(x.to(memory_format=torch.channels_last) for x in inputs)
    return partial(torch.compile(module, options={"freezing": True}), *inputs)


def _onnxruntime(module: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import torch

    with tempfile.TemporaryDirectory(prefix="xrt-pytorch-") as folder:
        path = Path(folder, "model.onnx")
        torch.onnx.export(module, inputs, path, dynamo=True, verbose=False)
        session = open_session(path, threads)
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)[0]


def _openvino(module: Any, inputs: Any, threads: int) -> Callable[[], Any]:
    import openvino
    import torch
    from openvino.frontend import OpConversionFailure

    try:
        model = openvino.convert_model(module, example_input=inputs)
    except OpConversionFailure:  # its tracer has no rule for an operator of GPT-2's mask; its reader of exported programs has
        model = openvino.convert_model(torch.export.export(module, inputs))
    settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(model, "CPU", settings).create_infer_request()
    feeds = [x.numpy() for x in inputs]
    return lambda: request.infer(feeds, share_inputs=True, share_outputs=True)[0]
