"""Export a bundle to a model repository of NVIDIA Triton: its configuration, a model of the Python backend, and the bundle."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from xrt.errors import OptionError
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.graph import DType, TensorType, Value
from xrt.module import load
from xrt.serve import open_inference_pb2 as messages
from xrt.serve.metrics import Metrics
from xrt.serve.served_model import ServedModel, ServingOptions

_OPTIONS = ("batch", "max_wait", "instances", "session_idle")
"""The `ServingOptions` that have an equivalent in Triton's model configuration."""


def export_triton(
    bundle: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str = "",
    version: int = 1,
    threads: int | None = None,
    **options: Any,
) -> Path:
    """Write a bundle to a Triton model repository as one version of a model; return the model's folder.

    ``name`` defaults to the file name of the bundle, and ``threads`` to the thread budget that the bundle was tuned for. Further
    ``options`` are ``batch``, ``max_wait``, ``instances`` and ``session_idle`` of `ServingOptions`. Triton needs its Python
    backend and an environment with XRT and the bundle's engines. A model with state uses Triton's sequences.

    Raises BundleError if the bundle is missing or damaged. Raises OptionError for another file, a model that the Python backend
    does not support, an existing version or an unknown option.
    """
    source = Path(bundle)
    if source.exists() and not is_bundle(source):
        raise OptionError(f"{os.fspath(bundle)!r} is not a bundle; compile the model first: xrt compile MODEL -o model.xrt")
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise OptionError(f"export_triton has no option {unknown[0]!r}; it has: {', '.join(_OPTIONS)}")
    serving_options = ServingOptions.make(options)
    with load(source) as module:
        # It never serves requests here, but it checks the options against the model and describes the tensors.
        served = ServedModel(name or source.stem, str(version), module, serving_options, Metrics())
        _check_exportable(served)
        config = make_config(served, "python", threads=threads or (module.serving.threads if module.serving else None))
    text = text_format.MessageToString(json_format.ParseDict(config, messages.ModelConfig()))
    model = Path(repository) / served.name
    target = model / str(version)
    if target.exists():
        raise OptionError(f"{os.fspath(target)!r} exists; choose another version, or remove it")
    target.mkdir(parents=True)
    shutil.copyfile(source, target / "model.xrt")
    shutil.copyfile(Path(__file__).with_name("triton_model.py"), target / "model.py")
    replace_file(model / "config.pbtxt", lambda file: file.write(text.encode()))
    return model


def make_config(served: ServedModel, backend: str = "xrt", *, threads: int | None = None) -> dict[str, Any]:
    """Describe a model as JSON of Triton's message ModelConfig.

    ``backend`` is the name of the Triton backend that runs the model. ``threads`` is written as a parameter that
    `TritonPythonModel` reads, or omitted if None.
    """
    options = served.options
    config: dict[str, Any] = {
        "name": served.name,
        "platform": "",
        "backend": backend,
        "max_batch_size": max(options.sizes, default=0),
        "input": [_describe_tensor(served, value) for value in served.inputs],
        "output": [_describe_tensor(served, value) for value in served.outputs],
        "instance_group": [{"count": options.instances or 1, "kind": "KIND_CPU"}],
    }
    if options.sizes:
        delay_us = round((options.max_wait or 0) * 1e6)
        config["dynamic_batching"] = {"preferred_batch_size": list(options.sizes), "max_queue_delay_microseconds": delay_us}
    if served.stateful is not None:
        idle_us = round(options.session_idle * 1e6)
        config["sequence_batching"] = {"max_sequence_idle_microseconds": idle_us, "direct": {}}
    settings = {"threads": threads, "sizes": list(options.sizes) if options.rounds_up else None}
    config["parameters"] = {name: {"string_value": json.dumps(value)} for name, value in settings.items() if value}
    return config


def _describe_tensor(served: ServedModel, value: Value) -> dict[str, Any]:
    """Describe an input or output for Triton's model configuration."""
    tensor = served.describe_tensor(value)
    datatype = f"TYPE_{tensor['datatype']}".replace("BYTES", "STRING")  # all other datatypes have the protocol's name
    # If max_batch_size is set, Triton adds the axis of rows itself.
    description = {"name": value.name, "data_type": datatype, "dims": tensor["shape"][1 if served.options.sizes else 0 :]}
    # Triton does not support 0-d tensors: clients send one element, and Triton reshapes it for the model.
    return description if description["dims"] else {**description, "dims": [1], "reshape": {"shape": []}}


def _check_exportable(served: ServedModel) -> None:
    """Raise OptionError if Triton or its Python backend does not support an input or output of the model."""
    for value in (*served.inputs, *served.outputs):
        if not isinstance(value.type, TensorType) or value.type.shape is None:
            raise OptionError(f"the rank of {value.name!r} ({value.type}) is not known, and Triton needs it; declare its shape")
        if value.type.dtype is DType.BFLOAT16:
            raise OptionError(
                f"{value.name!r} is BF16, which Triton's Python backend cannot convert to an array; cast it in the model"
            )
