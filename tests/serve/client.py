"""What the public client `tritonclient` gets from a server, or reads of a configuration: run in a process that need not have XRT.

    python client.py http|grpc HOST:PORT FOLDER
    python client.py config config.pbtxt

The folder has ``inputs.npz`` with x0, x1, ... for the model ``all``, and ``expected.npz`` for the model ``net``. A configuration
is read by Triton's own schema and written as JSON.
"""

from __future__ import annotations

import queue
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import tritonclient.grpc
import tritonclient.http
from google.protobuf import json_format, text_format
from tritonclient.grpc import model_config_pb2
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

EXTENSIONS = ["binary_tensor_data", "sequence", "model_repository", "model_configuration", "statistics"]
MODELS = ["all", "double", "net", "total"]
STATUS = {"NOT_FOUND": "404", "INVALID_ARGUMENT": "400"}
"""The status of HTTP for one of gRPC."""


class Client:
    """The client of one protocol; documents are dicts in both."""

    def __init__(self, kind, address):
        self.is_http = kind == "http"
        self.library = tritonclient.http if self.is_http else tritonclient.grpc
        self.server = self.library.InferenceServerClient(address, **({"concurrency": 16} if self.is_http else {}))

    def fetch(self, name, *arguments):
        document = getattr(self.server, name)(*arguments, **({} if self.is_http else {"as_json": True}))
        return document if isinstance(document, dict) else {"models": document}

    def describe_inputs(self, model):
        inputs = self.fetch("get_model_metadata", model)["inputs"]
        return [(one["name"], one["datatype"], [int(extent) for extent in one["shape"]]) for one in inputs]

    def tensor(self, name, array, datatype=None, **options):
        tensor = self.library.InferInput(name, list(array.shape), datatype or np_to_triton_dtype(array.dtype))
        tensor.set_data_from_numpy(array, **options)
        return tensor

    def infer(self, model, arrays, **options):
        return self.server.infer(model, [self.tensor(name, array) for name, array in arrays.items()], **options)

    def first(self, result):
        response = result.get_response()
        return result.as_numpy(response["outputs"][0]["name"] if self.is_http else response.outputs[0].name)

    def is_ready(self, model, version=""):
        try:
            return self.server.is_model_ready(model, version)
        except InferenceServerException:  # of gRPC, where HTTP has a status
            return False

    def refuse(self, call, status, message):
        try:
            call()
        except InferenceServerException as refused:
            reason = refused
        else:
            raise AssertionError(message)
        expected = STATUS[status] if self.is_http else f"StatusCode.{status}"
        assert (reason.status(), reason.message()) == (expected, message), (reason.status(), reason.message())


def metadata(client, folder):
    assert client.server.is_server_live() and client.server.is_server_ready()
    assert client.is_ready("all") and client.is_ready("all", "1")
    assert not client.is_ready("none") and not client.is_ready("all", "2")
    facts = client.fetch("get_server_metadata")
    assert facts["name"] == "xrt" and facts["extensions"] == EXTENSIONS
    assert client.fetch("get_model_metadata", "double") == client.fetch("get_model_metadata", "double", "1")
    assert client.describe_inputs("double") == [("x", "FP32", [-1, 3])]


def all_datatypes(client, folder):
    datatypes = {name: datatype for name, datatype, _ in client.describe_inputs("all")}
    with np.load(folder / "inputs.npz", allow_pickle=True) as file:
        arrays = dict(file)
    arrays["x4"] = arrays["x4"].view(ml_dtypes.bfloat16)
    for is_binary in (True, False) if client.is_http else (True,):
        sent = {name: array for name, array in arrays.items() if is_binary or datatypes[name] not in ("FP16", "BF16")}
        forms = {name: {"binary_data": is_binary or name not in sent} if client.is_http else {} for name in arrays}
        inputs = [client.tensor(name, array, datatypes[name], **forms[name]) for name, array in arrays.items()]
        outputs = [client.library.InferRequestedOutput(f"y{name[1:]}", **forms[name]) for name in sent]
        result = client.server.infer("all", inputs, outputs=outputs, request_id="r7")
        response = result.get_response()
        assert (response["id"] if client.is_http else response.id) == "r7"
        for name, array in sent.items():
            values = result.as_numpy(f"y{name[1:]}")
            if array.dtype == object:
                assert [item if isinstance(item, str) else item.decode() for item in values.flat] == list(array.flat)
            else:
                assert values.dtype == array.dtype and values.tobytes() == array.tobytes(), (name, is_binary)


def equal_to_a_direct_call(client, folder):
    with np.load(folder / "expected.npz") as file:
        x, expected = file["net_x"], file["net_y"]
    ((name, _, _),) = client.describe_inputs("net")
    assert client.first(client.infer("net", {name: x})).tobytes() == expected.tobytes()


def errors(client, folder):
    x, server = np.ones((2, 3), np.float32), client.server
    for call, status, message in (
        (lambda: client.infer("none", {"x": x}), "NOT_FOUND", f"there is no model 'none'; available: {', '.join(MODELS)}"),
        (
            lambda: server.load_model("double", config="{}"),
            "INVALID_ARGUMENT",
            "parameter 'config' is not supported: a model is loaded from the files that the operator named",
        ),
    ):
        client.refuse(call, status, message)


def extensions(client, folder):
    def list_states():
        models = client.fetch("get_model_repository_index")["models"]
        return [(one["name"], one["version"], one["state"], one.get("reason", "")) for one in models]

    def count_successes(*arguments):
        stats = client.fetch("get_inference_statistics", "double", *arguments)["model_stats"][0]
        count = int(stats["inference_stats"]["success"].get("count", 0))
        assert int(stats.get("execution_count", 0)) == count and (not count or int(stats["last_inference"]) > 0)
        return count

    index = [(name, "1", "READY", "") for name in MODELS]
    assert list_states() == index
    config = client.fetch("get_model_config", "double")
    config = config.get("config", config)
    (described,) = config["input"]
    assert (config["name"], config["backend"], config.get("max_batch_size", 0)) == ("double", "xrt", 0)
    shape = [int(extent) for extent in described["dims"]]
    assert (described["name"], described["data_type"], shape) == ("x", "TYPE_FP32", [-1, 3])
    config = client.fetch("get_model_config", "total")
    assert config.get("config", config)["sequence_batching"]["max_sequence_idle_microseconds"] in (300_000_000, "300000000")
    x, before = {"x": np.ones((2, 3), np.float32)}, count_successes()
    client.infer("double", x)
    assert count_successes("1") == before + 1
    assert [one["name"] for one in client.fetch("get_inference_statistics")["model_stats"]] == MODELS
    client.server.unload_model("double")
    assert not client.is_ready("double") and client.server.is_server_ready()
    assert list_states()[1] == ("double", "1", "UNAVAILABLE", "it was unloaded")
    client.refuse(lambda: client.infer("double", x), "NOT_FOUND", "model 'double' is not served: it was unloaded")
    client.server.load_model("double")
    assert client.is_ready("double") and client.infer("double", x).as_numpy("add_1").tolist() == [[2] * 3] * 2


def sessions(client, folder):
    x = {"x": np.ones(2, np.float32)}
    for start, end, expected in ((True, False, 1), (False, False, 2), (False, True, 3)):
        result = client.infer("total", x, sequence_id=9, sequence_start=start, sequence_end=end)
        assert client.first(result)[0] == expected
    session = {"xrt-session": client.library.__name__}
    results = [client.infer("total", x, headers=session) for _ in range(2)]
    assert [client.first(result)[0] for result in results] == [1, 2]


def concurrency(client, folder):
    arrays = [np.full((1 + n % 3, 3), n, np.float32) for n in range(200)]
    request, answers = client.server.async_infer, queue.Queue()
    if client.is_http:
        pending = [request("double", [client.tensor("x", x)]) for x in arrays]
        results = dict(enumerate(item.get_result() for item in pending))
    else:
        for number, x in enumerate(arrays):
            request("double", [client.tensor("x", x)], lambda result, error, n=number: answers.put((n, error or result)))
        results = dict(answers.get(timeout=60) for _ in arrays)
    for number, x in enumerate(arrays):
        assert results[number].as_numpy("add_1").tobytes() == (2 * x).tobytes()


if __name__ == "__main__":
    kind, source, *folder = sys.argv[1:]
    if kind == "config":
        config = text_format.Parse(Path(source).read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
        sys.stdout.write(json_format.MessageToJson(config, preserving_proto_field_name=True))
    else:
        client = Client(kind, source)
        for case in (metadata, all_datatypes, equal_to_a_direct_call, errors, extensions, sessions, concurrency):
            case(client, Path(*folder))
        client.server.close()
        sys.stdout.write("every case passed\n")
