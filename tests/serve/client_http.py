"""What the public HTTP client `tritonclient` gets from a server: run in a process that need not have XRT.

    python client_http.py HOST:PORT FOLDER

The folder has ``inputs.npz`` with x0, x1, ... for the model ``all``, and ``expected.npz`` for the models ``net`` and ``double``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import tritonclient.http as client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

SERVER, FOLDER = sys.argv[1], Path(sys.argv[2])
DATATYPES = {one["name"]: one["datatype"] for one in client.InferenceServerClient(SERVER).get_model_metadata("all")["inputs"]}
EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"]


def give(name, array, datatype=None, binary=True):
    tensor = client.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def refuse(call, status, message):
    try:
        call()
    except InferenceServerException as refused:
        reason = refused
    else:
        raise AssertionError(message)
    assert (reason.status(), reason.message()) == (status, message), (reason.status(), reason.message())


def metadata(server):
    assert server.is_server_live() and server.is_server_ready()
    assert server.is_model_ready("all") and server.is_model_ready("all", "1")
    assert not server.is_model_ready("none") and not server.is_model_ready("all", "2")
    facts = server.get_server_metadata()
    assert facts["name"] == "xrt" and facts["extensions"] == EXTENSIONS
    described = server.get_model_metadata("double")
    assert described == server.get_model_metadata("double", "1")
    assert described["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 3]}]


def all_datatypes(server):
    with np.load(FOLDER / "inputs.npz", allow_pickle=True) as file:
        arrays = dict(file)
    arrays["x4"] = arrays["x4"].view(ml_dtypes.bfloat16)
    for binary in (True, False):
        some = {n: a for n, a in arrays.items() if binary or DATATYPES[n] not in ("FP16", "BF16")}
        inputs = [give(n, a, DATATYPES[n], binary or n not in some) for n, a in arrays.items()]
        outputs = [client.InferRequestedOutput(f"y{n[1:]}", binary_data=binary) for n in some]
        result = server.infer("all", inputs, outputs=outputs, request_id="r7")
        assert result.get_response()["id"] == "r7"
        for name, array in some.items():
            values = result.as_numpy(f"y{name[1:]}")
            if array.dtype == object:
                assert [item if isinstance(item, str) else item.decode() for item in values.flat] == list(array.flat)
            else:
                assert values.dtype == array.dtype and values.tobytes() == array.tobytes(), (name, binary)


def equal_to_a_direct_call(server):
    with np.load(FOLDER / "expected.npz") as file:
        x, expected = file["net_x"], file["net_y"]
    name = server.get_model_metadata("net")["inputs"][0]["name"]
    result = server.infer("net", [give(name, x)])
    array = result.as_numpy(result.get_response()["outputs"][0]["name"])
    assert array.tobytes() == expected.tobytes()


def errors(server):
    x = np.ones((2, 3), np.float32)
    refuse(lambda: server.infer("none", [give("x", x)]), "404", "there is no model 'none'; there is: all, double, net, total")
    refuse(
        lambda: server.infer("double", [give("x", x[:, :2].copy())]),
        "400",
        "input 'x' must be float32[n,3]; got shape [2, 2]: axis 1 is 2, not 3",
    )
    refuse(
        lambda: server.infer("double", [give("x", x.astype(np.int32))]),
        "400",
        "input 'x' of model 'double' is FP32; the request has INT32",
    )
    refuse(
        lambda: server.infer("double", [give("x", x)], outputs=[client.InferRequestedOutput("z")]),
        "400",
        "model 'double' has no output 'z'; it has: add_1",
    )
    refuse(
        lambda: server.load_model("double", config="{}"),
        "400",
        "parameter 'config': a model is loaded from the files that the operator named, as it was",
    )


def extensions(server):
    models = ["all", "double", "net", "total"]
    index = [{"name": name, "version": "1", "state": "READY", "reason": ""} for name in models]
    assert server.get_model_repository_index() == index
    config = server.get_model_config("double")
    assert (config["name"], config["backend"], config["max_batch_size"]) == ("double", "xrt", 0)
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}]
    x = [give("x", np.ones((2, 3), np.float32))]
    before = server.get_inference_statistics("double")["model_stats"][0]
    server.infer("double", x)
    after = server.get_inference_statistics("double", "1")["model_stats"][0]
    assert after["execution_count"] == before["execution_count"] + 1
    assert after["inference_stats"]["success"]["count"] == before["inference_stats"]["success"]["count"] + 1
    assert [item["name"] for item in server.get_inference_statistics()["model_stats"]] == models
    server.unload_model("double")
    assert not server.is_model_ready("double") and server.is_server_ready()
    assert server.get_model_repository_index()[1] == {**index[1], "state": "UNAVAILABLE", "reason": "it was unloaded"}
    refuse(lambda: server.infer("double", x), "404", "model 'double' is not served: it was unloaded")
    server.load_model("double")
    assert server.is_model_ready("double") and server.infer("double", x).as_numpy("add_1").tolist() == [[2] * 3] * 2


def sessions(server):
    for start, end, expected in ((True, False, 1), (False, False, 2), (False, True, 3)):
        x = [give("x", np.ones(2, np.float32))]
        result = server.infer("total", x, sequence_id=9, sequence_start=start, sequence_end=end)
        assert result.as_numpy(result.get_response()["outputs"][0]["name"])[0] == expected


def concurrency():
    server = client.InferenceServerClient(SERVER, concurrency=16)
    arrays = [np.full((1 + n % 3, 3), n, np.float32) for n in range(200)]
    pending = [server.async_infer("double", [give("x", x)]) for x in arrays]
    for x, item in zip(arrays, pending, strict=True):
        assert item.get_result().as_numpy("add_1").tobytes() == (2 * x).tobytes()
    server.close()


if __name__ == "__main__":
    server = client.InferenceServerClient(SERVER)
    for case in (metadata, all_datatypes, equal_to_a_direct_call, errors, extensions, sessions):
        case(server)
    server.close()
    concurrency()
    sys.stdout.write("every case passed\n")
