"""What the public gRPC client `tritonclient` gets from a server: as `client_http.py`, in a process of its own."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import tritonclient.grpc as client
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

SERVER, FOLDER = sys.argv[1], Path(sys.argv[2])
EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"]


def give(name, array, datatype=None):
    tensor = client.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
    tensor.set_data_from_numpy(array)
    return tensor


def refuse(call, status, message):
    try:
        call()
    except InferenceServerException as refused:
        reason = refused
    else:
        raise AssertionError(message)
    assert (reason.status(), reason.message()) == (f"StatusCode.{status}", message), (reason.status(), reason.message())


def metadata(server):
    assert server.is_server_live() and server.is_server_ready()
    assert server.is_model_ready("all", "1")
    refuse(lambda: server.is_model_ready("none"), "NOT_FOUND", "there is no model 'none'; there is: all, double, net, total")
    facts = server.get_server_metadata()
    assert facts.name == "xrt" and list(facts.extensions) == EXTENSIONS
    described = server.get_model_metadata("double")
    assert (described.inputs[0].name, described.inputs[0].datatype, list(described.inputs[0].shape)) == ("x", "FP32", [-1, 3])


def all_datatypes(server):
    datatypes = {value.name: value.datatype for value in server.get_model_metadata("all").inputs}
    with np.load(FOLDER / "inputs.npz", allow_pickle=True) as file:
        arrays = dict(file)
    arrays["x4"] = arrays["x4"].view(ml_dtypes.bfloat16)
    result = server.infer("all", [give(n, a, datatypes[n]) for n, a in arrays.items()], request_id="r7")
    assert result.get_response().id == "r7"
    for name, array in arrays.items():
        values = result.as_numpy(f"y{name[1:]}")
        if array.dtype == object:
            assert [value.decode() for value in values.flat] == list(array.flat)
        else:
            assert values.dtype == array.dtype and values.tobytes() == array.tobytes(), name


def typed_contents(server):
    """Elements in the fields of their datatypes, which the client itself does not send."""
    from tritonclient.grpc import service_pb2, service_pb2_grpc

    request = service_pb2.ModelInferRequest(model_name="double")
    request.inputs.add(name="x", datatype="FP32", shape=[1, 3]).contents.fp32_contents.extend([1, 2, 3])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(server._channel)
    response = stub.ModelInfer(request)
    assert list(response.outputs[0].contents.fp32_contents) == [2, 4, 6] and not response.raw_output_contents


def equal_to_a_direct_call(server):
    with np.load(FOLDER / "expected.npz") as file:
        x, expected = file["net_x"], file["net_y"]
    described = server.get_model_metadata("net")
    array = server.infer("net", [give(described.inputs[0].name, x)]).as_numpy(described.outputs[0].name)
    assert array.tobytes() == expected.tobytes()


def errors(server):
    x = np.ones((2, 3), np.float32)
    refuse(
        lambda: server.infer("none", [give("x", x)]), "NOT_FOUND", "there is no model 'none'; there is: all, double, net, total"
    )
    refuse(
        lambda: server.infer("double", [give("x", x.astype(np.int32))]),
        "INVALID_ARGUMENT",
        "input 'x' of model 'double' is FP32; the request has INT32",
    )
    refuse(
        lambda: server.infer("total", [give("x", x[0, :2].copy())], sequence_id=5, sequence_end=True),
        "NOT_FOUND",
        "there is no session '5'; begin it with session_start",
    )


def extensions(server):
    index = server.get_model_repository_index().models
    assert [(position.name, position.version, position.state) for position in index] == [
        (n, "1", "READY") for n in ("all", "double", "net", "total")
    ]
    config = server.get_model_config("double").config
    assert (config.name, config.backend, list(config.input[0].dims)) == ("double", "xrt", [-1, 3])
    assert server.get_model_config("total").config.sequence_batching.max_sequence_idle_microseconds == 300_000_000
    before = server.get_inference_statistics("double").model_stats[0].inference_stats.success.count
    x = [give("x", np.ones((2, 3), np.float32))]
    server.infer("double", x)
    after = server.get_inference_statistics("double", "1").model_stats[0]
    assert after.inference_stats.success.count == before + 1 and after.last_inference > 0
    server.unload_model("double")
    assert not server.is_model_ready("double")
    refuse(lambda: server.infer("double", x), "NOT_FOUND", "model 'double' is not served: it was unloaded")
    server.load_model("double")
    assert server.infer("double", x).as_numpy("add_1").tolist() == [[2] * 3] * 2


def sessions(server):
    for start, end, expected in ((True, False, 1), (False, False, 2), (False, True, 3)):
        x = [give("x", np.ones(2, np.float32))]
        result = server.infer("total", x, sequence_id=9, sequence_start=start, sequence_end=end)
        assert result.as_numpy(result.get_response().outputs[0].name)[0] == expected
    header = {"xrt-session": "h"}
    results = [server.infer("total", [give("x", np.ones(2, np.float32))], headers=header) for _ in range(2)]
    assert [item.as_numpy(item.get_response().outputs[0].name)[0] for item in results] == [1, 2]


def concurrency(server):
    arrays = [np.full((1 + n % 3, 3), n, np.float32) for n in range(200)]
    results, completed = {}, threading.Semaphore(0)

    def keep(number):
        def take(result, error):
            results[number] = error or result
            completed.release()

        return take

    for number, x in enumerate(arrays):
        server.async_infer("double", [give("x", x)], keep(number))
    for _ in arrays:
        assert completed.acquire(timeout=60)
    for number, x in enumerate(arrays):
        assert results[number].as_numpy("add_1").tobytes() == (2 * x).tobytes()


if __name__ == "__main__":
    with client.InferenceServerClient(SERVER) as server:
        for case in (metadata, all_datatypes, typed_contents, equal_to_a_direct_call, errors, extensions, sessions, concurrency):
            case(server)
    sys.stdout.write("every case passed\n")
