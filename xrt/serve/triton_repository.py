"""A bundle as a model repository of NVIDIA Triton: the configuration, the model of the Python backend, and the bundle."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xrt.errors import OptionError
from xrt.formats.bundle import is_bundle
from xrt.formats.output import replace_file
from xrt.graph import TensorType, Value
from xrt.module import load
from xrt.serve.metrics import Metrics
from xrt.serve.options import ServingOptions
from xrt.serve.served_model import ServedModel

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["describe_model", "export_triton"]

_OPTIONS = ("batch", "max_wait", "instances", "session_idle")
"""The serving options that Triton has too."""

_TYPES = {"BYTES": "TYPE_STRING"}
"""Triton's names of datatypes, where they are not the protocol's behind ``TYPE_``."""


def export_triton(
    bundle: str | os.PathLike[str],
    repository: str | os.PathLike[str],
    *,
    name: str = "",
    version: int = 1,
    threads: int | None = None,
    **options: Any,
) -> Path:
    """Write a version of a model into a model repository of Triton, and return the folder of the model.

    ``options`` are ``batch``, ``max_wait``, ``instances`` and ``session_idle`` of `ServingOptions`. Triton needs its Python
    backend and an environment with XRT and the bundle's engines. A model with state gets its calls by Triton's sequences.

    Raises BundleError for what is no bundle, OptionError for a model that Triton's Python backend cannot take and for a version
    that exists, and for another option.
    """
    source = Path(bundle)
    if source.exists() and not is_bundle(source):
        raise OptionError(f"{os.fspath(bundle)!r} is no bundle; compile the model first: xrt compile MODEL -o model.xrt")
    if unknown := [name for name in options if name not in _OPTIONS]:
        raise OptionError(f"export_triton has no option {unknown[0]!r}; it has: {', '.join(_OPTIONS)}")
    asked = ServingOptions.make(options)
    with load(source) as module:
        chosen, is_wanted = asked.complete(getattr(module, "serving", None)), asked.batch is not None
        served = ServedModel(name or source.stem, str(version), [module], chosen, Metrics(), is_wanted=is_wanted)
        served.close()
        text = describe_model(served, threads=threads or getattr(getattr(module, "serving", None), "threads", None))
    model = Path(repository) / served.name
    target = model / str(version)
    if target.exists():
        raise OptionError(f"{os.fspath(target)!r} exists; choose another version, or remove it")
    target.mkdir(parents=True)
    shutil.copyfile(source, target / "model.xrt")
    shutil.copyfile(Path(__file__).with_name("triton_model.py"), target / "model.py")
    replace_file(model / "config.pbtxt", lambda file: file.write(text.encode()))
    return model


def describe_model(served: ServedModel, *, threads: int | None = None) -> str:
    """Return Triton's configuration of a model, in protobuf's text form; raises OptionError where it cannot be described."""
    options = served.options
    lines = [f"name: {_quote(served.name)}", 'backend: "python"', f"max_batch_size: {max(options.sizes, default=0)}"]
    for kind, values in (("input", served.inputs), ("output", served.outputs)):
        tensors = served.list_tensors(values)
        lines += [_describe_tensor(kind, value, one, bool(options.sizes)) for value, one in zip(values, tensors, strict=True)]
    lines.append(f"instance_group {{ count: {options.instances or 1} kind: KIND_CPU }}")
    lines += _describe_batches(options)
    if served.has_state:
        idle = round(options.session_idle * 1e6)
        lines.append(f"sequence_batching {{ max_sequence_idle_microseconds: {idle} direct {{ }} }}")
    settings: Mapping[str, Any] = {"threads": threads, "sizes": list(options.sizes) if options.rounds_up else None}
    for name, value in settings.items():
        if value:
            lines.append(f"parameters {{ key: {_quote(name)} value {{ string_value: {_quote(json.dumps(value))} }} }}")
    return "\n".join(lines) + "\n"


def _describe_batches(options: ServingOptions) -> Iterator[str]:
    if options.sizes:
        preferred = ", ".join(map(str, options.sizes))
        delay = round((options.max_wait or 0) * 1e6)
        yield f"dynamic_batching {{ preferred_batch_size: [ {preferred} ] max_queue_delay_microseconds: {delay} }}"


def _describe_tensor(kind: str, value: Value, tensor: Mapping[str, Any], is_joined: bool) -> str:
    if not isinstance(value.type, TensorType) or value.type.shape is None:
        raise OptionError(f"the rank of {value.name!r} ({value.type}) is not known, and Triton needs it; declare its shape")
    if tensor["datatype"] == "BF16":
        raise OptionError(
            f"{value.name!r} is BF16, which Triton's Python backend does not give as an array; cast it in the model"
        )
    datatype = _TYPES.get(tensor["datatype"], f"TYPE_{tensor['datatype']}")
    extents: Sequence[int] = tensor["shape"][1:] if is_joined else tensor["shape"]
    # Triton admits no tensor without extents: its clients send one of one element, and the model gets it reshaped.
    dims = f"dims: [ {', '.join(map(str, extents))} ]" if extents else "dims: [ 1 ] reshape { shape: [ ] }"
    return f"{kind} {{ name: {_quote(value.name)} data_type: {datatype} {dims} }}"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
