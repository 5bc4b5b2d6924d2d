"""XRT on a small cluster of Ray: threads as granted, every row once whatever dies, and replicas of Ray Serve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.integrations.models import LOOKUP, SCALE, TEXT, write_model, write_texts
from xrt.errors import EngineError, ModelError, OptionError
from xrt.integrations.batch import BatchJob
from xrt.integrations.ray.cluster_job import count_next_chunks
from xrt.ray import Predictor, deployment, predict, run_cluster_job
from xrt.runtime import available_cores

STORE = 100 << 20
"""Bytes of the object store of a node."""


@contextmanager
def start_cluster(head: int, *others: int) -> Iterator[tuple[Any, list[Any]]]:
    """Start a cluster of nodes with those processors, connect to it, and end all of it."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # on a busy machine a proxy may start and answer late, and is no worse for it
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    }
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": head, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        nodes = [cluster.add_node(num_cpus=cpus, object_store_memory=STORE) for cpus in others]
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings of Ray and its libraries are theirs


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(2, 1) as (cluster, _):
        yield cluster


def test_a_module_in_an_actor_has_what_ray_grants(cluster, tmp_path):
    import ray

    def count(path):
        import xrt
        import xrt.ray  # it connects the budget of a module to what Ray grants

        with xrt.XRTModule(path, engine="toy") as module, xrt.XRTModule(path, engine="toy", threads=2) as other:
            return module.threads, other.threads

    path = write_model(tmp_path, SCALE)
    assert ray.get(ray.remote(count).options(num_cpus=1).remote(path)) == (1, min(2, available_cores()))


class _Watched(Predictor):
    def count_threads(self) -> int:
        return self.module.threads


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, 1), (1, 1), (2, 2)])
def test_the_threads_of_an_actor_are_what_ray_grants(cluster, tmp_path, cpus, threads):
    """One bundle, saved for two threads, compiles nothing for other budgets."""
    import ray

    with xrt.XRTModule(write_model(tmp_path, SCALE), engine="ort", threads=2) as module:
        module.save(tmp_path / "scale.xrt", np.ones((1, 3), "float32"), np.ones(1, "float32"))
    actor = ray.remote(_Watched).options(num_cpus=cpus).remote(tmp_path / "scale.xrt", strict=True)
    assert ray.get(actor.count_threads.remote()) == min(threads, available_cores())
    ray.kill(actor)


@pytest.mark.full
def test_a_dataset_of_ragged_rows(cluster, tmp_path):
    import ray.data

    ray.data.DataContext.get_current().enable_progress_bars = False
    model = write_model(tmp_path, TEXT)
    rows = write_texts(tmp_path / "rows.parquet", 40, group=20)
    data = ray.data.read_parquet(str(tmp_path / "rows.parquet"))
    options = {"engine": "ort", "outputs": {"squares": "s"}}
    pool = ray.data.ActorPoolStrategy(size=1)
    found = data.map_batches(
        Predictor, fn_constructor_args=[model], fn_constructor_kwargs=options, batch_size=16, num_cpus=1, compute=pool
    )
    found = sorted(found.take_all(), key=lambda row: row["row"])
    assert [row["row"] for row in found] == list(range(40))
    for row, ids in zip(found, rows, strict=True):
        np.testing.assert_array_equal(row["s"], ids.astype("float32") ** 2)


@pytest.mark.full
def test_a_model_and_rows_are_read_again_after_a_change(cluster, tmp_path):
    import ray

    def run(model):
        return predict({"index": np.array([0, 1, 2])}, model=model, engine="ort")["y"].tolist()

    wrapped, found = ray.remote(run), []
    for turn, table in enumerate(("1.0, 2.0, 4.0", "1.0, 3.0, 9.0")):
        model = write_model(tmp_path, LOOKUP.replace("1.0, 2.0, 4.0", table))
        found.append(ray.get(wrapped.remote(model)))
        numbers = [turn, 2, 1, 0]
        pq.write_table(pa.table({"index": pa.array(numbers)}), tmp_path / "rows.parquet", row_group_size=4 - turn)
        job = BatchJob(model, ("ort",), part_rows=2)
        run_cluster_job(job, [str(tmp_path / "rows.parquet")], tmp_path / str(turn))
        made = ds.dataset(str(tmp_path / str(turn)), format="parquet").to_table().column("y").to_pylist()
        assert made == [found[-1][number] for number in numbers]
    assert found == [[1, 2, 4], [1, 3, 9]]


def test_a_missing_model_is_named():
    with pytest.raises(ModelError, match=r"cannot load 'nowhere\.onnx': there is no such file"):
        predict({"x": np.zeros(1)}, model="nowhere.onnx", engine="ort")


@given(st.integers(1, 5000), st.integers(1, 64))
def test_tasks_get_smaller_until_all_is_given_away(chunks, workers):
    given_away = []
    while sum(given_away) < chunks:
        given_away.append(count_next_chunks(chunks - sum(given_away), workers))
    assert sum(given_away) == chunks
    assert given_away == sorted(given_away, reverse=True)
    assert max(given_away) <= 8
    assert given_away[-min(workers, len(given_away)) :] == [1] * min(workers, len(given_away))


def _check(folder, rows) -> None:
    found = ds.dataset(str(folder), format="parquet").to_table()
    assert found.column("row").to_pylist() == list(range(len(rows)))
    assert found.column("squares").to_pylist() == [(row.astype("float32") ** 2).tolist() for row in rows]


@pytest.mark.full
def test_a_machine_is_lost_in_the_middle_of_a_job(cluster, tmp_path):
    model, rows = write_model(tmp_path, TEXT), write_texts(tmp_path / "rows.parquet", 120)
    node, seen = cluster.add_node(num_cpus=1, object_store_memory=100 << 20), []

    def kill(report) -> None:
        if not seen:
            cluster.remove_node(node, allow_graceful=False)
        seen.append(report)

    job = BatchJob(model, ("ort",), part_rows=3)
    report = run_cluster_job(job, [str(tmp_path / "rows.parquet")], tmp_path / "out", progress=kill)
    assert (report.written, report.parts, len(seen)) == (120, 40, 40)
    _check(tmp_path / "out", rows)


_KILLED = """
import os, signal, sys
from xrt.integrations.batch import BatchJob
from xrt.ray import run_cluster_job
def stop(report):
    if report.parts == 4:
        os.kill(os.getpid(), signal.SIGKILL)
job = BatchJob(sys.argv[2], ("ort",), part_rows=3)
run_cluster_job(job, [sys.argv[3]], sys.argv[4], address=sys.argv[1], workers=2, progress=stop)
"""


@pytest.mark.full
def test_the_driver_is_killed_and_another_continues(cluster, tmp_path):
    model, rows = write_model(tmp_path, TEXT), write_texts(tmp_path / "rows.parquet", 60)
    job = [model, str(tmp_path / "rows.parquet"), str(tmp_path / "out")]
    done = subprocess.run([sys.executable, "-c", _KILLED, cluster.address, *job], check=False, env=dict(os.environ))
    assert done.returncode == -signal.SIGKILL
    assert 4 <= len(list((tmp_path / "out").glob("part-*"))) < 20
    report = run_cluster_job(BatchJob(model, ("ort",), part_rows=3), job[1:2], job[2])
    assert report.present + report.written == 60
    assert report.present >= 12
    _check(tmp_path / "out", rows)


def test_an_error_of_a_row_is_the_one_of_this_machine(cluster, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"index": [1, 99]}), tmp_path / "rows.parquet")
    with pytest.raises(EngineError):
        run_cluster_job(BatchJob(write_model(tmp_path, LOOKUP), ("toy",)), [str(tmp_path / "rows.parquet")], tmp_path / "out")


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
    with _running("scale", deployment(_bundle(tmp_path), num_cpus=1, num_replicas=1, batch=8)) as handle:
        _check_requests(handle, port)


def _check_requests(handle, port):
    x, bias = np.arange(6, dtype="float32").reshape(2, 3), np.ones(2, "float32")
    found = handle.infer.remote({"x": x, "bias": bias}).result()
    np.testing.assert_array_equal(found["y"], 2 * x + 1)
    assert handle.count_threads.remote().result() == {"scale": 1}
    inputs = [
        {"name": "x", "shape": [2, 3], "datatype": "FP32", "data": x.reshape(-1).tolist()},
        {"name": "bias", "shape": [2], "datatype": "FP32", "data": [1, 1]},
    ]
    url = f"http://127.0.0.1:{port}/scale/v2/models/scale/infer"
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
            names = [one["name"] for one in ray.util.list_named_actors(all_namespaces=True) if "load#xrt#" in one["name"]]
            ray.kill(ray.get_actor(names[0], namespace="serve"))
            killed.set()
        inputs = [
            {"name": "x", "shape": [1, 3], "datatype": "FP32", "data": [number] * 3},
            {"name": "bias", "shape": [1], "datatype": "FP32", "data": [1]},
        ]
        status, document, _ = _post(url, {"inputs": inputs})
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
    step = {"inputs": [{"name": "step", "shape": [1], "datatype": "FP32", "data": [1]}]}
    with _running("count", deployment(tmp_path / "count.xrt", num_replicas=2, sessions=True)) as handle:
        names = [f"session {number}" for number in range(5)]
        turns = dict.fromkeys(names, 0)
        replicas: dict[str, str] = {}
        while min(turns.values()) < 4:
            for name, turn in list(turns.items()):
                asked = step if turn else {**step, "parameters": {"session_start": True}}
                status, document, headers = _post(url, asked, {"x-session-id": name})
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
        "'num_replica' is no option of xrt.serve.app and none of ray.serve.deployment. Did you mean 'num_replicas'?"
    )
    with pytest.raises(OptionError):
        deployment(tmp_path / "model.xrt", batch=0)
