"""The application of `xrt.serve` in replicas of Ray Serve: results by HTTP and handles, sessions, and models kept out."""

from __future__ import annotations

import json
import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import xrt
from tests.integrations.clusters import start_cluster
from tests.integrations.models import SCALE, write_model
from tests.serve.serving import tensor
from xrt.errors import OptionError
from xrt.ray import deployment

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings of Ray and its libraries are theirs


@pytest.fixture(scope="module")
def port():
    with start_cluster(4):
        from ray import serve
        from ray.serve._private import api

        api.HTTP_PROXY_TIMEOUT = 600  # a busy machine starts one late
        with __import__("socket").socket() as free:
            free.bind(("127.0.0.1", 0))
            number = free.getsockname()[1]
        serve.start(http_options={"host": "127.0.0.1", "port": number})
        try:
            yield number
        finally:
            serve.shutdown()


def _post(url: str, document: object, headers: dict[str, str] | None = None) -> tuple[int, dict, dict]:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.load(answer), dict(answer.headers)
    except urllib.error.HTTPError as error:
        text = error.read().decode()  # Ray's own errors are plain text
        return error.code, json.loads(text) if text.startswith("{") else {"error": text}, dict(error.headers)


@contextmanager
def _running(name: str, application: object) -> Iterator[object]:
    """Run an application at the route of its name, and give its processors back whatever happens."""
    from ray import serve

    try:
        yield serve.run(application, name=name, route_prefix=f"/{name}")
    finally:
        serve.delete(name)


def _bundle(tmp_path: Path) -> Path:
    with xrt.XRTModule(write_model(tmp_path, SCALE), engine="ort") as module:
        module.save(tmp_path / "scale.xrt", np.ones((1, 3), "float32"), np.ones(1, "float32"))
    return tmp_path / "scale.xrt"


def test_requests_by_http_and_by_handle(port, tmp_path):
    x, bias = np.arange(6, dtype="float32").reshape(2, 3), np.ones(2, "float32")
    inputs = [tensor("x", x), tensor("bias", bias)]
    url = f"http://127.0.0.1:{port}/scale/v2/models/scale/infer"
    with _running("scale", deployment(_bundle(tmp_path), num_cpus=1, num_replicas=1, batch=8)) as handle:
        result = handle.infer.remote({"x": x, "bias": bias}).result()
        np.testing.assert_array_equal(result["y"], 2 * x + 1)
        assert handle.count_threads.remote().result() == {"scale": 1}
        status, document, headers = _post(url, {"inputs": inputs, "id": "7"})
        assert (status, document["id"]) == (200, "7")
        assert document["outputs"][0]["data"] == (2 * x + 1).reshape(-1).tolist()
        assert headers["xrt-replica"]
        status, document, _ = _post(url, {"inputs": inputs[:1]})
        assert (status, document["error"]) == (400, "no value for input 'bias'; the model takes 2 inputs (x, bias)")


@pytest.mark.full
def test_a_replica_is_killed_under_load(port, tmp_path):
    import ray

    url = f"http://127.0.0.1:{port}/load/v2/models/scale/infer"
    killed = threading.Event()

    def ask(number: int) -> tuple[int, bool]:
        if number == 40:
            names = [item["name"] for item in ray.util.list_named_actors(all_namespaces=True) if "load#xrt#" in item["name"]]
            ray.kill(ray.get_actor(names[0], namespace="serve"))
            killed.set()
        status, document, _ = _post(url, {"inputs": [tensor("x", [[number] * 3]), tensor("bias", [1])]})
        return status, status != 200 or document["outputs"][0]["data"] == [2 * number + 1] * 3

    application = deployment(_bundle(tmp_path), num_replicas=2, num_cpus=1, batch=4, body_timeout=10)
    with _running("load", application), ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(160)))
    assert killed.is_set()
    assert all(is_right for _, is_right in answers)
    assert sum(status != 200 for status, _ in answers) <= 16  # what the replica held, and what was on its way to it


COUNTER = """
<ir_version: 10, opset_import: ["" : 21]>
count (float[1] step, float[1] total) => (float[1] debt, float[1] sum) {
  sum = Add (step, total)
  debt = Neg (sum)
}
"""


@pytest.mark.full
def test_a_session_stays_with_its_replica_or_is_unknown(port, tmp_path):
    """No request gets the answer of an empty state, though a router that does not know all replicas yet sends it elsewhere."""
    function = xrt.load_onnx(write_model(tmp_path, COUNTER, "count.onnx"))
    stateful = xrt.stateful(function, {"total": "sum"})
    with xrt.XRTModule(stateful, engine="toy") as module:
        module.save(tmp_path / "count.xrt")
    url = f"http://127.0.0.1:{port}/count/v2/models/count/infer"
    step = {"inputs": [tensor("step", [1])]}
    with _running("count", deployment(tmp_path / "count.xrt", num_replicas=2, sessions=True)) as handle:
        names = [f"session {number}" for number in range(5)]
        turns = dict.fromkeys(names, 0)
        replicas: dict[str, str] = {}
        while min(turns.values()) < 4:
            for name, turn in list(turns.items()):
                requests = step if turn else {**step, "parameters": {"session_start": True}}
                status, document, headers = _post(url, requests, {"x-session-id": name})
                if status == 404:
                    assert document["error"] == f"there is no session '{name}'; begin it with session_start"
                    assert headers["xrt-replica"] != replicas[name]
                    del turns[name]
                    turns[f"{name} again"] = 0  # a new name: the first replica has the old one
                else:
                    assert (status, document["outputs"][0]["data"]) == (200, [-turn - 1])
                    assert replicas.setdefault(name, headers["xrt-replica"]) == headers["xrt-replica"]
                    turns[name] += 1
        routed = handle.options(session_id="by handle")
        called = routed.infer.remote({"step": np.ones(1, "float32")}, session="by handle", session_start=True).result()
        assert called["debt"].tolist() == [-1]


@pytest.mark.full
def test_a_damaged_bundle_is_never_in_service(port, tmp_path):
    path = _bundle(tmp_path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = os.urandom(len(data) - len(data) // 2)
    path.write_bytes(data)
    application = deployment(path, max_constructor_retry_count=1)
    with pytest.raises(RuntimeError), _running("damaged", application):
        pass


def test_options_are_checked_before_a_replica_starts(tmp_path):
    with pytest.raises(OptionError) as caught:
        deployment(tmp_path / "model.xrt", num_replica=2)
    assert str(caught.value) == (
        "'num_replica' is neither an option of xrt.serve.app nor of ray.serve.deployment. Did you mean 'num_replicas'?"
    )
    with pytest.raises(OptionError):
        deployment(tmp_path / "model.xrt", batch=0)
