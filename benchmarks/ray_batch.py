"""How much of the throughput of one process does a batch job on a cluster of Ray keep, and are rows lost when nodes die?

A cluster of four nodes of one processor, in this machine, takes 20,000 rows of small images (MobileNet v2) and of ragged texts.
In turns: `xrt batch` in one process with as many threads (*process*), and the same job as tasks of the cluster (*cluster*), whose
processes have run such a job before. Then, in turns: `map_batches` with actors of `xrt.ray.Predictor` (*data*), of ONNX Runtime
with one thread as a user would tune it (*tuned*), and of ONNX Runtime's defaults (*default*). Figures are rows per second, and
ratios within each round. Ray Data starts its actors again for each turn, so these three are timed from the moment at which all
actors have loaded their model and Ray Data gives them rows; what comes before is reported on its own.

With ``--kills N`` a node is killed in the middle of a job N times, and another takes its place: every row must be there once,
with equal results.

    python -m benchmarks.ray_batch [--json] [--quick] [--rows 20000] [--nodes 4] [--rounds 3] [--kills 20] [--engine ort]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from benchmarks.ray_models import (
    make_image_model,
    make_text_model,
    split_rows,
    start_cluster,
    write_images,
    write_model,
    write_texts,
)
from xrt.integrations.batch import BatchJob, run_job
from xrt.measure.interleave import take_turns
from xrt.ray import Predictor, run_cluster_job


class TimedPredictor(Predictor):
    """An actor of `Predictor` that notes in a folder when it is ready."""

    def __init__(self, folder: str, model: str, **options: Any) -> None:
        super().__init__(model, **options)
        _note_ready(folder)


class OnnxRuntimeActor:
    """What a user of ONNX Runtime writes for `map_batches`; rows of a text are grouped by their lengths, as in XRT."""

    def __init__(self, folder: str, path: str, threads: int | None, batch: int | None) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        if threads:
            options.intra_op_num_threads = options.inter_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        (self._input,) = self._session.get_inputs()
        self._batch = batch
        _note_ready(folder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        name = self._input.name
        column, count = batch.pop(name), len(batch["row"])
        groups: dict[int, list[int]] = {}
        for row, value in enumerate(column):
            groups.setdefault(len(value), []).append(row)
        found: list[Any] = [None] * count
        for rows in groups.values():
            values = np.stack([column[row] for row in rows])
            size = self._batch or len(rows)
            for start in range(0, len(rows), size):
                part = values[start : start + size].reshape((-1, *self._input.shape[1:])) if self._batch else values
                missing = size - len(part)
                full = np.concatenate([part, np.repeat(part[-1:], missing, 0)]) if missing else part
                results = self._session.run(None, {name: full})[0]
                for row, result in zip(rows[start : start + size], results, strict=False):
                    found[row] = result
        return {**batch, "result": np.stack(found)}


def _note_ready(folder: str) -> None:
    Path(folder, str(os.getpid())).write_text(repr(time.time()), encoding="ascii")


def run_data(
    starts: list[float], rows: str, nodes: int, batch: int, actor: Any, arguments: Sequence[Any], **options: Any
) -> float:
    """Run a pool of actors over the rows; return the seconds from when all are ready, and note those before."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.wait_for_min_actors_s = 600  # no actor gets rows before all are ready
    size = max(1, nodes - 1)  # one processor reads the rows
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        data = ray.data.read_parquet(rows).map_batches(
            actor,
            batch_size=batch,
            num_cpus=1,
            compute=ray.data.ActorPoolStrategy(size=size),
            fn_constructor_args=[folder, *arguments],
            **options,
        )
        for _ in data.iter_internal_ref_bundles():
            pass
        ended = time.time()
        ready = [float(path.read_text(encoding="ascii")) for path in Path(folder).iterdir()]
    if len(ready) != size:
        raise RuntimeError(f"{len(ready)} actors of {size} were ready")
    starts.append(max(ready) - began)
    return ended - max(ready)


def compare(model: str, rows: str, count: int, arguments: Any, batch: int | None) -> dict[str, Any]:
    """Return rows per second of each candidate, and their ratios."""
    nodes, folder = arguments.nodes, Path(tempfile.mkdtemp(dir=Path(rows).parent))
    job = BatchJob(model, (arguments.engine,), batch=batch)
    number = iter(range(10**6))
    own = {"engine": arguments.engine, "batch": batch}
    starts: list[float] = []
    pieces = split_rows(rows, folder / "pieces", 8 * nodes)
    data = partial(run_data, starts, pieces, nodes, max(1, min(8 * (batch or 32), count // (4 * nodes))))
    jobs: Mapping[str, Callable[[], float]] = {
        "process": lambda: _time(partial(run_job, job, [rows], folder / str(next(number)), workers=nodes)),
        "cluster": lambda: _time(partial(run_cluster_job, job, [rows], folder / str(next(number)))),
    }
    pools: Mapping[str, Callable[[], float]] = {
        "data": lambda: data(TimedPredictor, [model], fn_constructor_kwargs=own),
        "tuned": lambda: data(OnnxRuntimeActor, [model, 1, batch]),
        "default": lambda: data(OnnxRuntimeActor, [model, None, batch]),
    }
    jobs["cluster"]()  # its processes have imported XRT and loaded the model
    seconds = {**take_turns(jobs, arguments.rounds), **take_turns(pools, arguments.rounds)}
    ratios = {"cluster/process": ("cluster", "process"), "data/tuned": ("data", "tuned"), "data/default": ("data", "default")}
    return {
        "rows_per_second": {name: count / statistics.median(taken) for name, taken in seconds.items()},
        "seconds": seconds,
        "start_seconds": statistics.median(starts),
        "ratios": {
            name: statistics.median(b / a for a, b in zip(seconds[one], seconds[other], strict=True))
            for name, (one, other) in ratios.items()
        },
    }


def _time(call: Callable[[], Any]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def kill_nodes(cluster: Any, model: str, rows: str, count: int, arguments: Any) -> dict[str, Any]:
    """Kill a node at a random part of each job; count the jobs whose rows are all there once, equal to those of one process."""
    folder, chance = Path(tempfile.mkdtemp(dir=Path(rows).parent)), random.Random(0)
    job = BatchJob(model, (arguments.engine,), part_rows=max(1, count // 40))
    run_job(job, [rows], folder / "whole")
    expected = _read(folder / "whole")
    right, seconds = 0, []
    for turn in range(arguments.kills):
        node, at = cluster.add_node(num_cpus=1, object_store_memory=256 << 20), chance.randrange(1, 20)

        def kill(report: Any, node: Any = node, at: int = at) -> None:
            if report.parts == at:
                cluster.remove_node(node, allow_graceful=False)

        seconds.append(_time(partial(run_cluster_job, job, [rows], folder / str(turn), progress=kill)))
        found = _read(folder / str(turn))
        same = found[0] == expected[0] and np.allclose(found[1], expected[1], rtol=1e-5, atol=1e-6)
        right += int(same)
    return {"kills": arguments.kills, "right": right, "seconds": seconds}


def _read(folder: Path) -> tuple[list[int], Any]:
    table = ds.dataset(str(folder), format="parquet").to_table()
    name = next(name for name in table.column_names if name != "row")
    return table.column("row").to_pylist(), np.array(table.column(name).to_pylist())


def measure(arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"nodes": arguments.nodes, "rows": arguments.rows, "engine": arguments.engine}
    with tempfile.TemporaryDirectory() as name, start_cluster(arguments.nodes) as cluster:
        folder = Path(name)
        images = write_images(folder / "images.parquet", arguments.rows, arguments.image)
        mobilenet = write_model(make_image_model(arguments.image, arguments.batch), folder / "mobilenet.onnx")
        texts = write_texts(folder / "texts.parquet", arguments.rows)
        encoder = write_model(make_text_model(), folder / "encoder.onnx")
        found["images"] = compare(mobilenet, images, arguments.rows, arguments, arguments.batch)
        found["texts"] = compare(encoder, texts, arguments.rows, arguments, None)
        if arguments.kills:
            few = write_texts(folder / "few.parquet", min(arguments.rows, 2000))
            found["kills"] = kill_nodes(cluster, encoder, few, min(arguments.rows, 2000), arguments)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="400 rows, 2 nodes, one round, one kill")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--image", type=int, default=32)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--engine", default="ort")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.rows, arguments.nodes, arguments.rounds, arguments.kills = 400, 2, 1, 1
    found = measure(arguments)
    if arguments.json:
        print(json.dumps(found))
        return
    for what in ("images", "texts"):
        print(f"{what}: {arguments.rows} rows on {arguments.nodes} nodes")
        for name, rate in found[what]["rows_per_second"].items():
            print(f"  {name:16}{rate:10.1f} rows/s")
        for name, value in found[what]["ratios"].items():
            print(f"  {name:16}{value:10.3f} x")
        print(f"  a pool's start  {found[what]['start_seconds']:10.1f} s")
    if "kills" in found:
        kills = found["kills"]
        print(f"kills: {kills['right']} of {kills['kills']} jobs had every row once, in {max(kills['seconds']):.1f} s at most")


if __name__ == "__main__":
    main()
