"""A public client of the protocol, `tritonclient`, against ``xrt serve``: in processes of its own, over HTTP and gRPC."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import xrt
from tests.serve.serving import HANGS, TOP, ServerProcess, double, identity, serve, total
from xrt.graph import DType
from xrt.models import load_light, sample_inputs

HERE = Path(__file__).parent
MISSING = "is missing: `make test` installs it into .venv/clients, since it holds other packages back"


def find_client_python() -> str:
    """Return the interpreter that has tritonclient: its own environment's, or this one."""
    own = TOP / ".venv" / "clients" / "bin" / "python"
    if own.exists():
        return str(own)
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_a_public_client_passes_every_case(kind: str, server: ServerProcess, folder: Path) -> None:
    script, address = HERE / f"client_{kind}.py", getattr(server, kind)
    command = [find_client_python(), str(script), address, str(folder)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * HANGS, check=False, env=environment)
    assert (done.returncode, done.stdout) == (0, "every case passed\n"), done.stderr
