"""XRT on a small cluster of Ray: threads as granted, and every row once whatever dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import xrt
from tests.integrations.clusters import start_cluster
from tests.integrations.models import LOOKUP, SCALE, TEXT, check_squares, read_results, write_model, write_texts
from xrt.errors import EngineError
from xrt.integrations.batch import BatchJob
from xrt.integrations.ray import count_next_chunks, load_once
from xrt.ray import Predictor, predict, run_cluster_job
from xrt.runtime import count_available_cores

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # the warnings of Ray and its libraries are theirs


@pytest.fixture(scope="module")
def cluster():
    with start_cluster(2, 1) as (cluster, _):
        yield cluster


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
    assert ray.get(actor.count_threads.remote()) == min(threads, count_available_cores())
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
    result = data.map_batches(
        Predictor, fn_constructor_args=[model], fn_constructor_kwargs=options, batch_size=16, num_cpus=1, compute=pool
    )
    result = sorted(result.take_all(), key=lambda row: row["row"])
    assert [row["row"] for row in result] == list(range(40))
    for row, ids in zip(result, rows, strict=True):
        np.testing.assert_array_equal(row["s"], ids.astype("float32") ** 2)


@pytest.mark.full
def test_a_model_and_rows_are_read_again_after_a_change(cluster, tmp_path):
    import ray

    def run(model):
        return predict({"index": np.array([0, 1, 2])}, model=model, engine="ort")["y"].tolist()

    wrapped, result = ray.remote(run), []
    for turn, table in enumerate(("1.0, 2.0, 4.0", "1.0, 3.0, 9.0")):
        model = write_model(tmp_path, LOOKUP.replace("1.0, 2.0, 4.0", table))
        result.append(ray.get(wrapped.remote(model)))
        numbers = [turn, 2, 1, 0]
        pq.write_table(pa.table({"index": pa.array(numbers)}), tmp_path / "rows.parquet", row_group_size=4 - turn)
        job = BatchJob(model, ("ort",), part_rows=2)
        run_cluster_job(job, [str(tmp_path / "rows.parquet")], tmp_path / str(turn))
        built = read_results(tmp_path / str(turn)).column("y").to_pylist()
        assert built == [result[-1][number] for number in numbers]
    assert result == [[1, 2, 4], [1, 3, 9]]


def test_threads_load_models_at_once():
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(8) as pool:
            keys = [f"{number % 7}" for number in range(20_000)]
            assert list(pool.map(lambda key: load_once(key, lambda: key), keys)) == keys
    finally:
        sys.setswitchinterval(interval)


@given(st.integers(1, 5000), st.integers(1, 64))
def test_tasks_get_smaller_until_all_is_given_away(chunks, workers):
    given_away = []
    while sum(given_away) < chunks:
        given_away.append(count_next_chunks(chunks - sum(given_away), workers))
    assert sum(given_away) == chunks
    assert given_away == sorted(given_away, reverse=True)
    assert max(given_away) <= 8
    assert given_away[-min(workers, len(given_away)) :] == [1] * min(workers, len(given_away))


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
    check_squares(tmp_path / "out", rows)


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
    completed = subprocess.run([sys.executable, "-c", _KILLED, cluster.address, *job], check=False, env=dict(os.environ))
    assert completed.returncode == -signal.SIGKILL
    assert 4 <= len(list((tmp_path / "out").glob("part-*"))) < 20
    report = run_cluster_job(BatchJob(model, ("ort",), part_rows=3), job[1:2], job[2])
    assert report.present + report.written == 60
    assert report.present >= 12
    check_squares(tmp_path / "out", rows)


def test_an_error_of_a_row_is_the_one_of_this_machine(cluster, tmp_path):
    pq.write_table(pa.table({"index": [1, 99]}), tmp_path / "rows.parquet")
    with pytest.raises(EngineError):
        run_cluster_job(BatchJob(write_model(tmp_path, LOOKUP), ("toy",)), [str(tmp_path / "rows.parquet")], tmp_path / "out")
