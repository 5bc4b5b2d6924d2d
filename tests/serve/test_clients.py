"""Public clients of the protocol and a model repository of Triton, in processes of their own and by a stand-in."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import xrt
from tests.exact_errors import raises_exactly
from tests.serve.serving import HANGS, TOP, ServerProcess, double, identity, serve, total
from xrt.errors import OptionError
from xrt.graph import DType, Function
from xrt.models import load_light, sample_inputs
from xrt.serve import export_triton

pytestmark = pytest.mark.slow
CLIENT = Path(__file__).with_name("client.py")
MISSING = "is missing: `make test` installs it into .venv/clients, since it holds other packages back"


def find_client_python() -> str:
    """Return the interpreter that has tritonclient: its own environment's, or this one."""
    copy = TOP / ".venv" / "clients" / "bin" / "python"
    if copy.exists():
        return str(copy)
    assert importlib.util.find_spec("tritonclient"), f"tritonclient {MISSING}"
    return sys.executable


DTYPES = (DType.BOOL, DType.FLOAT32, DType.FLOAT64, DType.FLOAT16, DType.BFLOAT16, DType.STRING, DType.INT8, DType.INT16,
          DType.INT32, DType.INT64, DType.UINT8, DType.UINT16, DType.UINT32, DType.UINT64)  # fmt: skip


def sample(dtype: DType) -> np.ndarray:
    if dtype is DType.STRING:
        return np.array([["", "a\0b"], ["\u00e9\U0001f600", "x" * 300]], dtype=object)
    if dtype is DType.BOOL:
        return np.array([[True, False], [False, True]])
    if dtype.is_float:
        return np.array([[1.5, -0.0], [0.25, 2**-10]], np.float32).astype(dtype.numpy)
    low, high = ml_dtypes.iinfo(dtype.numpy).min, ml_dtypes.iinfo(dtype.numpy).max
    return np.array([[low, high], [high - 1, 0]], dtype.numpy)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models as bundles, what is sent to them, and what a direct call gives."""
    folder = tmp_path_factory.mktemp("models")
    net = load_light("squeezenet")
    models = {"all": (identity(*DTYPES), "toy"), "double": (double(), "toy"), "total": (total(), "toy"), "net": (net, "ort")}
    for name, (function, engine) in models.items():
        with xrt.XRTModule(function, engine=engine) as module:
            module.save(folder / f"{name}.xrt", *(sample_inputs(function).values() if name == "net" else ()))
    arrays = {f"x{place}": sample(dtype) for place, dtype in enumerate(DTYPES)}
    arrays["x4"] = arrays["x4"].view(np.uint16)  # a file of NumPy holds no BF16
    np.savez(folder / "inputs.npz", **arrays)
    (x,) = sample_inputs(net).values()
    np.savez(folder / "expected.npz", net_x=x, net_y=xrt.load(folder / "net.xrt")(x))
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[ServerProcess]:
    models = [folder / f"{name}.xrt" for name in ("all", "double", "net", "total")]
    with serve(*models, "--grpc-port", "0", "--instances", "2", "--max-queue", "300") as server:
        yield server
        assert server.end() == (0, "")


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_public_client_passes_every_case(kind: str, server: ServerProcess, folder: Path) -> None:
    command = [find_client_python(), str(CLIENT), kind, getattr(server, kind), str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    completed = subprocess.run(command, capture_output=True, text=True, timeout=10 * HANGS, check=False, env=environment)
    assert (completed.returncode, completed.stdout) == (0, "every case passed\n"), completed.stderr


START, END = 1, 2


def make_tensor(name: str, array: Any) -> Any:
    """Return a tensor as Triton hands it over."""
    return SimpleNamespace(name=name, array=array, as_numpy=lambda: array)


def make_request(tensors: Mapping[str, Any], outputs: Sequence[str], sequence: int = 0, flag: int = 0) -> Any:
    """Return a request as Triton hands it over."""
    return SimpleNamespace(
        tensors=tensors,
        requested_output_names=lambda: list(outputs),
        correlation_id=lambda: sequence,
        flags=lambda: flag,
    )


def make_response(output_tensors: Sequence[Any] = (), error: Any = None) -> Any:
    return SimpleNamespace(output_tensors=output_tensors, error=error)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in of triton_python_backend_utils."""
    module: Any = types.ModuleType("triton_python_backend_utils")
    module.Tensor, module.InferenceResponse, module.TritonError = make_tensor, make_response, RuntimeError
    module.get_input_tensor_by_name = lambda request, name: make_tensor(name, request.tensors[name])
    module.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START, module.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = START, END
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", module)


def save(function: Function, path: Path, **options: Any) -> Path:
    with xrt.XRTModule(function, **options) as module:
        module.save(path)
    return path


def read_config(model: Path) -> Any:
    command = [find_client_python(), str(CLIENT), "config", str(model / "config.pbtxt")]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


Start = Callable[..., Any]


@pytest.fixture
def start(backend: None) -> Start:
    def make(model: Path, config: Any, version: str = "1") -> Any:
        """Return the model of a repository, loaded as Triton loads it: by the path of its file."""
        spec = importlib.util.spec_from_file_location("model", model / version / "model.py")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        result = module.TritonPythonModel()
        result.initialize({"model_config": json.dumps(config), "model_repository": str(model), "model_version": version})
        return result

    return make


def test_a_model_that_joins_requests(tmp_path: Path, start: Start) -> None:
    bundle = save(double(("n", 3)), tmp_path / "double.xrt", threads=1)
    model = export_triton(bundle, tmp_path / "repo", batch=[1, 4], max_wait=0.001, instances=2, threads=1)
    config = read_config(model)
    assert config == {
        "name": "double",
        "backend": "python",
        "max_batch_size": 4,
        "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": ["3"]}],
        "output": [{"name": "add_1", "data_type": "TYPE_FP32", "dims": ["3"]}],
        "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
        "dynamic_batching": {"preferred_batch_size": [1, 4], "max_queue_delay_microseconds": "1000"},
        "parameters": {"threads": {"string_value": "1"}, "sizes": {"string_value": "[1, 4]"}},
    }
    served = start(model, config)
    arrays = [np.full((n, 3), n, np.float32) for n in (1, 2, 1)]
    responses = served.execute([make_request({"x": x}, ("add_1",)) for x in arrays])
    for x, response in zip(arrays, responses, strict=True):
        assert response.error is None and np.array_equal(response.output_tensors[0].array, 2 * x)
    wrong = served.execute(
        [make_request({"x": arrays[0]}, ("add_1",)), make_request({"x": np.ones((1, 2), np.float32)}, ("add_1",))]
    )
    assert np.array_equal(wrong[0].output_tensors[0].array, 2 * arrays[0])
    assert str(wrong[1].error) == "input 'x' must be float32[n,3]; got shape [1, 2]: axis 1 is 2, not 3"
    served.finalize()


def test_texts_scalars_and_names_that_need_quotes(tmp_path: Path, start: Start) -> None:
    bundle = save(identity(DType.STRING, DType.BOOL, shape=()), tmp_path / "texts.xrt")
    model = export_triton(bundle, tmp_path / "repo", name="other", version=3)
    config = read_config(model)
    assert (config["name"], config.get("max_batch_size", 0)) == ("other", 0)
    assert config["input"][0] == {"name": "x0", "data_type": "TYPE_STRING", "dims": ["1"], "reshape": {}}
    served = start(model, config, "3")
    results = {"x0": np.array(b"\xc3\xa9", dtype=object), "x1": np.array(True)}
    (response,) = served.execute([make_request(results, ("y0",))])
    assert [tensor.name for tensor in response.output_tensors] == ["y0"]
    assert response.output_tensors[0].array.tolist() == b"\xc3\xa9"
    served.finalize()


def test_an_option_that_triton_has_not_is_refused(tmp_path: Path) -> None:
    with raises_exactly(
        OptionError, "export_triton has no option 'max_sessions'; it has: batch, max_wait, instances, session_idle"
    ):
        export_triton(save(total(), tmp_path / "total.xrt"), tmp_path / "repo", max_sessions=2)


def test_a_model_with_state_gets_sequences(tmp_path: Path, start: Start) -> None:
    model = export_triton(save(total(), tmp_path / "total.xrt"), tmp_path / "repo", session_idle=60)
    config = read_config(model)
    assert config["sequence_batching"] == {"max_sequence_idle_microseconds": "60000000", "direct": {}}
    assert [first["name"] for first in config["input"]] == ["x"]
    served, name = start(model, config), config["output"][0]["name"]
    first = {"x": np.ones(2, np.float32)}
    steps = [(1, START, 1.0), (2, START, 1.0), (1, 0, 2.0), (1, END, 3.0), (2, 0, 2.0)]
    for sequence, flag, expected in steps:
        (response,) = served.execute([make_request(first, (name,), sequence, flag)])
        assert response.output_tensors[0].array.tolist() == [expected] * 2
    (lost,) = served.execute([make_request(first, (name,), 1)])
    assert str(lost.error) == "there is no sequence 1; begin it with the sequence start flag"
    served.finalize()


def test_what_cannot_be_exported(tmp_path: Path, command: Callable[..., Any]) -> None:
    arguments = ("export-triton", save(double(), tmp_path / "double.xrt"), tmp_path / "repo")
    assert command(*arguments) == (0, f"{tmp_path}/repo/double: config.pbtxt, 1/model.py and 1/model.xrt\n", "")
    message = f"error: '{tmp_path}/repo/double/1' exists; choose another version, or remove it\n"
    assert command(*arguments) == (2, "", message)
    half = save(identity(DType.BFLOAT16), tmp_path / "half.xrt")
    with raises_exactly(
        OptionError, "'x0' is BF16, which Triton's Python backend cannot convert to an array; cast it in the model"
    ):
        export_triton(half, tmp_path / "repo")
    (tmp_path / "no.onnx").write_bytes(b"")
    with raises_exactly(
        OptionError, f"'{tmp_path}/no.onnx' is not a bundle; compile the model first: xrt compile MODEL -o model.xrt"
    ):
        export_triton(tmp_path / "no.onnx", tmp_path / "repo")
