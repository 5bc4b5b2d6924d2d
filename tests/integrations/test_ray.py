"""XRT on a small cluster of Ray: threads as granted, every row once whatever dies, and a model in parts equal to the whole."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow.dataset as ds
import pytest

import xrt
from tests.integrations.clusters import start_cluster
from tests.integrations.models import LOOKUP, SCALE, TEXT, write_model, write_texts
from xrt.errors import EngineError, OptionError
from xrt.integrations.batch import BatchJob
from xrt.ray import Predictor, pipeline, predict, run_cluster_job
from xrt.runtime import available_cores

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


def test_a_task_keeps_its_model(cluster, tmp_path):
    import ray

    def run_twice(model):
        from xrt.integrations.ray.predictor import _find_predictor

        batch = {"ids": np.array([[1, 2], [3, 4]])}
        found = [predict(batch, model=model, engine="ort", outputs=["mean"], columns={"ids": "ids"}) for _ in range(2)]
        return found, _find_predictor.cache_info().misses

    found, loaded = ray.get(ray.remote(run_twice).remote(write_model(tmp_path, TEXT)))
    assert loaded == 1
    for batch in found:
        np.testing.assert_array_equal(batch["mean"], [2.5, 12.5])


def _check(folder, rows) -> None:
    found = ds.dataset(str(folder), format="parquet").to_table()
    assert found.column("row").to_pylist() == list(range(len(rows)))
    assert found.column("squares").to_pylist() == [(row.astype("float32") ** 2).tolist() for row in rows]


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


def test_a_pipeline_equals_the_whole_model(cluster, tmp_path):
    model = write_model(tmp_path, SCALE)
    rng = np.random.default_rng(0)
    x, bias = rng.random((7, 3), "float32"), rng.random(7, "float32")
    with xrt.XRTModule(model, engine="ort") as module:
        expected = module(x, bias)
        parts = [module(x[i : i + 1], bias[i : i + 1]) for i in range(7)]
    with pipeline(model, 2, engine="ort", micro_batch=2) as found:
        assert [process.threads for process in found.processes] == [1, 1]
        assert [sum(len(launch.nodes) for launch in stage.plan.launches) for stage in found.stages] == [2, 2]
        for mine, whole in zip(found(x, bias=bias), expected, strict=True):
            np.testing.assert_array_equal(mine, whole)
        streamed = list(found.map((x[i : i + 1], bias[i : i + 1]) for i in range(7)))
        for mine, whole in zip(streamed, parts, strict=True):
            for a, b in zip(mine, whole, strict=True):
                np.testing.assert_array_equal(a, b)
        with pytest.raises(xrt.errors.InputError) as caught:
            found(x.astype("float64"), bias)
        assert str(caught.value) == "input 'x' must be float32; got float64; convert it with .astype('float32')"
    with pytest.raises(OptionError) as closed:
        found(x, bias)
    assert str(closed.value) == "the pipeline is closed; make another one: xrt.ray.pipeline(...)"


def test_a_stage_that_dies_ends_the_call(cluster, tmp_path):
    import ray

    with pipeline(write_model(tmp_path, SCALE), 2, engine="toy") as found:
        ray.kill(found._actors[1])
        with pytest.raises(ray.exceptions.RayError):
            found(np.ones((1, 3), "float32"), np.ones(1, "float32"))


def test_an_error_in_a_stage_is_the_engines(cluster, tmp_path):
    text = LOOKUP.replace("y = Gather (table, index)", "z = Gather (table, index) y = Neg (z)")
    with pipeline(write_model(tmp_path, text), 2, engine="toy") as found:
        good, bad = np.array([1, 2]), np.array([99])
        with pytest.raises(EngineError):
            found(bad)
        np.testing.assert_array_equal(found(good), [-2, -4])
