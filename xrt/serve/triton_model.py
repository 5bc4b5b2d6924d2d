"""A model of Triton's Python backend that runs an XRT bundle; ``xrt export-triton`` copies this file next to the bundle.

The module ``triton_python_backend_utils`` exists only in Triton's process.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import xrt
from xrt.serve.scheduler import count_joinable_rows, run_batch


class TritonPythonModel:
    """The class that Triton looks for by this name; it creates one object per instance of the model."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the bundle next to this file and run its self-test. If this raises, Triton does not serve the model."""
        import triton_python_backend_utils as triton

        self._triton = triton
        config = json.loads(args["model_config"])
        settings = {name: value["string_value"] for name, value in config.get("parameters", {}).items()}
        path = Path(args["model_repository"]) / args["model_version"] / "model.xrt"
        self._module = xrt.load(path, threads=int(settings["threads"]) if "threads" in settings else None)
        self._module.run_self_test()
        self._inputs = [tensor["name"] for tensor in config["input"]]
        self._outputs = [tensor["name"] for tensor in config["output"]]
        # `xrt.serve.triton_repository.make_config` wrote these settings.
        self._is_batched = int(config.get("max_batch_size", 0)) > 0
        self._batch_sizes = sorted(json.loads(settings.get("sizes", "[]")))
        self._sessions: dict[Any, Any] | None = {} if "sequence_batching" in config else None

    def execute(self, requests: list[Any]) -> list[Any]:
        """Compute the response to each request. Requests that differ only in their number of rows are joined to one call."""
        values = [tuple(self._read(request, name) for name in self._inputs) for request in requests]
        if self._sessions is not None:
            results: list[Any] = [self._step(request, arrays) for request, arrays in zip(requests, values, strict=True)]
        else:
            results = self._call_joined(values)
        return [self._respond(request, result) for request, result in zip(requests, results, strict=True)]

    def finalize(self) -> None:
        self._module.close()

    def _call_joined(self, values: list[tuple[Any, ...]]) -> list[Any]:
        """Run requests with these input values, joined where possible. Return the outputs or the exception of each request."""
        groups: dict[Any, list[int]] = {}
        for index, arrays in enumerate(values):
            key: Any = index  # a request that cannot be joined is a group of one
            if self._is_batched and count_joinable_rows(arrays):
                key = tuple(array.shape[1:] for array in arrays)
            groups.setdefault(key, []).append(index)
        results: list[Any] = [None] * len(values)
        for indices in groups.values():
            rows = [len(values[index][0]) if self._is_batched else 1 for index in indices]
            group_results = run_batch(self._call, [values[index] for index in indices], rows, self._batch_sizes)
            for index, result in zip(indices, group_results, strict=True):
                results[index] = result
        return results

    def _call(self, *values: Any) -> tuple[Any, ...]:
        results = self._module(*values)
        return results if isinstance(results, tuple) else (results,)

    def _step(self, request: Any, values: tuple[Any, ...]) -> Any:
        """Run a step of the request's sequence; return its outputs, or the exception if it fails."""
        name, flags = request.correlation_id(), request.flags()
        if flags & self._triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self._sessions[name] = self._module.new_session()  # type: ignore[index]  # not None for a model with sequences
        session = self._sessions.get(name)  # type: ignore[union-attr]
        if session is None:
            return KeyError(f"there is no sequence {name}; begin it with the sequence start flag")
        try:
            results = session(*values)
        except Exception as error:  # noqa: BLE001  # becomes the response to this request
            # The state may be partially updated: the client must begin again.
            self._sessions.pop(name, None)  # type: ignore[union-attr]
            return error
        if flags & self._triton.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END:
            self._sessions.pop(name, None)  # type: ignore[union-attr]
        return results if isinstance(results, tuple) else (results,)

    def _read(self, request: Any, name: str) -> Any:
        """Read an input as an array. Strings, which Triton stores as bytes, are decoded."""
        array = self._triton.get_input_tensor_by_name(request, name).as_numpy()
        if array.dtype == object:
            strings = [item.decode() if isinstance(item, bytes) else item for item in array.flat]
            return np.array(strings, dtype=object).reshape(array.shape)
        return array

    def _respond(self, request: Any, result: Any) -> Any:
        """Create Triton's response: with the requested outputs, or with the error if ``result`` is an exception."""
        if isinstance(result, BaseException):
            # str() of a KeyError would put quotes around the message.
            message = result.args[0] if isinstance(result, KeyError) else str(result)
            return self._triton.InferenceResponse(output_tensors=[], error=self._triton.TritonError(message))
        requested = set(request.requested_output_names())
        outputs = zip(self._outputs, result, strict=True)
        tensors = [self._triton.Tensor(name, _convert_output(array)) for name, array in outputs if name in requested]
        return self._triton.InferenceResponse(output_tensors=tensors)


def _convert_output(array: Any) -> Any:
    """Convert an output to an array that Triton accepts: contiguous, with strings encoded as bytes."""
    if array.dtype == object:
        return np.array([str(item).encode() for item in array.flat], dtype=object).reshape(array.shape)
    return np.ascontiguousarray(array)
