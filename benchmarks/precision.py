"""How fast are lower precisions, how large is their error, and what does auto make of a budget of error or of accuracy?

*live*: BERT-base, GPT-2 (six layers; also with outlier channels), ConvNeXt-T and MobileNet v2 with random weights whose
activations are live. Each engine in each precision that it has here, and auto with budgets of 0, 0.1, 1 and 5 %: errors are of
outputs, on examples that were neither calibrated nor validated on. *trained*: classifiers that are trained here, auto with a
budget of one point of accuracy, and ONNX Runtime's static quantization and NNCF's accuracy control in their own runtimes.
*qdq*: quantized models that these tools have made, on XRT's engines and on the libraries alone. All candidates of a model take
turns in one process.

    python benchmarks/precision.py [--quick] [--json] [--parts live,trained,qdq] [--models bert,...] [--work DIR]
        [--budget S] [--seconds S] [--threads N] [--engines ort,openvino]

With ``--work`` what was found of a model is kept in a directory, and a later run with the same options measures only what is not
there: a long run may be made in pieces, by ``--parts`` and ``--models``. Needs the extras `all` and `benchmarks`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also where this is imported by a test

from precision_figures import drop_rounds, find_losing_steps, find_other_answers, find_over, find_slower, find_slowest, make_mean

from xrt.bench import machine
from xrt.runtime import available_cores

MODELS = {
    "live": ("bert", "gpt", "gpt_hard", "convnext", "mobilenet"),
    "trained": ("images", "images_hard", "texts", "texts_hard"),
    "qdq": ("bert", "gpt", "convnext", "mobilenet", "images", "texts"),
}
MEANS = ("auto 0.1%", "auto 1%", "auto 5%")


# ---------------------------------------------------------------------- one model


def list_pieces(parts: list[str], models: list[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the parts, each with its models, of those that are asked for."""
    for part in parts:
        for model in MODELS[part]:
            if models is None or model in models:
                yield part, model


def measure_piece(part: str, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a process of its own found; where it failed, the reason."""
    pools = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(options["threads"]))
    path = os.pathsep.join(filter(None, [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, __file__, "--child", part, model, json.dumps(options)]
    began, load = time.perf_counter(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="xrt-precision-") as cache:
        environment = {**os.environ, **pools, "PYTHONPATH": path, "XRT_CACHE_DIR": cache}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        return {"failed": f"the process ended with code {done.returncode}"}
    return {**json.loads(done.stdout.splitlines()[-1]), "seconds": seconds, "load": load}


def measure_kept(part: str, model: str, options: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Return what an earlier run with the same options has found, else measure it now and keep it, unless it failed."""
    path = work / f"{part}-{model}.json"
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        if kept["options"] == dict(options):
            tell(f"{part} {model}: as found before")
            return dict(kept["found"])
    tell(f"{part} {model}")
    found = measure_piece(part, model, options)
    if "failed" not in found:
        work.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"options": options, "found": found}), encoding="utf-8")
    return found


def run_child(part: str, model: str, options: str) -> None:
    from precision_parts import PARTS, Asked

    given = json.loads(options)
    print(json.dumps(PARTS[part](model, Asked(**{**given, "engines": tuple(given["engines"])}))))


def tell(words: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {words}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- all of them


def measure(pieces: list[tuple[str, str]], options: Mapping[str, Any], work: Path) -> dict[str, Any]:
    """Measure the pieces, and return what the page needs."""
    found: dict[str, Any] = {}
    for part, model in pieces:
        record = measure_kept(part, model, options, work)
        found.setdefault(part, {})[model] = record
        tell("\n" + "\n".join(list_lines(part, model, record)))
    records = [record for part in found.values() for record in part.values()]
    seconds, load = sum(one.get("seconds", 0.0) for one in records), max((one.get("load", 0.0) for one in records), default=0.0)
    live = found.get("live", {})
    return {
        "machine": machine("onnxruntime", "openvino", "nncf"),
        **options,
        "means": {name: mean for name in MEANS if (mean := make_mean(live, name)) is not None},
        **{part: {model: drop_rounds(record) for model, record in models.items()} for part, models in found.items()},
        "run": {"date": datetime.now(UTC).date().isoformat(), "load": load, "seconds": seconds},
    }


# ---------------------------------------------------------------------- as text


def list_lines(part: str, model: str, record: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each row of a model."""
    if "failed" in record:
        yield f"{model}: {record['failed']}"
        return
    for row in record["rows"]:
        yield f"{model:11} {describe_comparison(row) if part == 'qdq' else describe_row(row)}"
    for name, reason in record["left"].items():
        yield f"{model:11} {name} is left out: {reason}"


def describe_row(row: Mapping[str, Any]) -> str:
    gain, error = row["gain"], f"{row['error']:.3%}"
    metric = f" {row['metric']:.2%}" if "metric" in row else ""
    search = f" found in {row['search']:.1f} s" if "search" in row else ""
    fault = f" WRONG: {row['fault']}" if "fault" in row else ""
    times = f"{row['ms']:9.3f} ms {gain['median']:5.2f} x ({gain['low']:.2f} to {gain['high']:.2f})"
    return f"{row['candidate']:31} {times} error {error:>8}{metric}{search} {row.get('plan', '')}{fault}"


def describe_comparison(row: Mapping[str, Any]) -> str:
    ratio = f"{row['ratio']['median']:.3f} ({row['ratio']['low']:.3f} to {row['ratio']['high']:.3f})"
    times = f"{row['ms']:9.3f} ms, alone {row['alone_ms']:9.3f} ms: {ratio}"
    return f"{row['tool']:11} {row['engine']:27} {times}; {describe_answers(row)}, error {row['error']:.3%}"


def describe_answers(row: Mapping[str, Any]) -> str:
    own, alone = (f"{row[name]:.2g}" for name in ("to_reference", "alone_to_reference"))
    return f"differs by {row['difference']:.2g}, from the reference by {own} (alone {alone})"


def list_summary(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is said of all models together."""
    yield f"{found['machine']}; {found['threads']} threads, searches of {found['budget']:g} s"
    for name, mean in found["means"].items():
        spread = f"{mean['median']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})"
        yield f"{name}: gain {spread} over the best engine in float32, geometric mean of {mean['models']}"
    judged = {**found.get("live", {}), **found.get("trained", {})}
    over, worst = find_other_answers(found.get("qdq", {})), find_slowest(found.get("qdq", {}))
    for engine, (ratio, name) in worst.items():
        yield f"quantized models on {engine}: at most {ratio:.2f} of the library alone ({name})"
    for what, listed in (
        ("other answers to quantized models than the library's, and no nearer to the reference", over),
        ("slower than 0.98 of the best engine in float32 for certain", find_slower(judged)),
        ("slower with a larger budget for certain", find_losing_steps(judged)),
        ("over the budget, or wrong, on unseen examples", find_over(judged)),
    ):
        yield f"{what}: {'; '.join(listed) or 'none'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small models and short searches: it works, no more")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--parts", default=",".join(MODELS), help=f"which parts (default {','.join(MODELS)})")
    parser.add_argument("--models", help="which models of these parts (default all)")
    parser.add_argument("--work", type=Path, help="a directory to keep what is found, and to go on from")
    parser.add_argument("--budget", type=float, help="seconds of each search (default 40; quick 8)")
    parser.add_argument("--seconds", type=float, help="seconds of the turns of a model (default 30; quick 2)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="what all may use (default: all cores)")
    parser.add_argument("--engines", default="ort,openvino", help="the single engines, and those of auto (default ort,openvino)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    a = parser.parse_args()
    if a.child:
        run_child(*a.child)
        return
    parts, models = a.parts.split(","), a.models.split(",") if a.models else None
    known = {model for part in parts for model in MODELS.get(part, ())}
    if other := sorted({*parts} - {*MODELS}) or sorted({*(models or ())} - known):
        parser.error(f"there is no {other[0]!r}; parts: {', '.join(MODELS)}; models: {', '.join(sorted(known))}")
    options = {
        "threads": a.threads,
        "budget": a.budget or (8.0 if a.quick else 40.0),
        "seconds": a.seconds or (2.0 if a.quick else 30.0),
        "engines": a.engines.split(","),
        "is_quick": a.quick,
    }
    with tempfile.TemporaryDirectory(prefix="xrt-precision-") as folder:
        found = measure(list(list_pieces(parts, models)), options, a.work or Path(folder))
    print(json.dumps(found, indent=1) if a.json else "\n".join(list_summary(found)))


if __name__ == "__main__":
    main()
