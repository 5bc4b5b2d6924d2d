"""How fast are reduced precisions, how large is their error, and what does auto choose within a budget of error or of accuracy?

*live*: BERT-base, GPT-2 (six layers; also with outlier channels), ConvNeXt-T and MobileNet v2 with random weights scaled so that
activations have about unit size. Each engine in each of its precisions, and auto with error budgets of 0, 0.1, 1 and 5 %. Errors
are those of outputs, on examples used neither for calibration nor for validation. *trained*: classifiers that are trained here,
auto with a budget of one point of accuracy, ONNX Runtime's static quantization and NNCF's accuracy control in their own
runtimes. *qdq*: models quantized by these tools, on XRT's engines and on the libraries alone. All candidates of a model take
turns in one process.

    python benchmarks/precision.py [--quick] [--json] [--parts live,trained,qdq] [--models bert,...]
        [--budget S] [--seconds S] [--threads N] [--engines ort,openvino]

Needs the extras `all` and `benchmarks`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))  # also if a test imports this module

from output import ChildFailed, limit_pools, make_parser, print_figures, run_python
from precision_figures import drop_rounds, make_mean

from xrt.bench import machine
from xrt.runtime import count_available_cores

MODELS = {
    "live": ("bert", "gpt", "gpt_hard", "convnext", "mobilenet"),
    "trained": ("images", "images_hard", "texts", "texts_hard"),
    "qdq": ("bert", "gpt", "convnext", "mobilenet", "images", "texts"),
}
MEANS = ("auto 0.1%", "auto 1%", "auto 5%")


# ---------------------------------------------------------------------- one model


def list_pieces(parts: list[str], models: list[str] | None) -> Iterator[tuple[str, str]]:
    """Yield the selected parts, each with its selected models."""
    for part in parts:
        for model in MODELS[part]:
            if models is None or model in models:
                yield part, model


def measure_piece(part: str, model: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure a model in a new process; if that fails, return the reason as ``failed``."""
    began, load = time.perf_counter(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="xrt-precision-") as cache:
        environment = {**limit_pools(options["threads"]), "XRT_CACHE_DIR": cache}
        try:
            figures = run_python([__file__, "--child", part, model, json.dumps(options)], environment, shows_errors=True)
        except ChildFailed as error:
            return {"failed": str(error).partition(":")[0]}
    return {**figures, "seconds": time.perf_counter() - began, "load": load}


def run_child(part: str, model: str, options: str) -> None:
    from precision_parts import PARTS, Options

    values = json.loads(options)
    print(json.dumps(PARTS[part](model, Options(**{**values, "engines": tuple(values["engines"])}))))


def log(text: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S} {text}", file=sys.stderr, flush=True)


# ---------------------------------------------------------------------- all of them


def measure(pieces: list[tuple[str, str]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Measure the selected models of each part."""
    figures: dict[str, Any] = {}
    for part, model in pieces:
        log(f"{part} {model}")
        record = measure_piece(part, model, options)
        figures.setdefault(part, {})[model] = record
        if "failed" in record:
            log(f"{part} {model} failed: {record['failed']}")
    records = [record for part in figures.values() for record in part.values()]
    seconds = sum(record.get("seconds", 0.0) for record in records)
    load = max((record.get("load", 0.0) for record in records), default=0.0)
    live = figures.get("live", {})
    return {
        "machine": machine("onnxruntime", "openvino", "nncf"),
        **options,
        "means": {name: mean for name in MEANS if (mean := make_mean(live, name)) is not None},
        **{part: {model: drop_rounds(record) for model, record in models.items()} for part, models in figures.items()},
        "run": {"date": datetime.now(UTC).date().isoformat(), "load": load, "seconds": seconds},
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true", help="small models and short searches: shows that it works")
    parser.add_argument("--parts", default=",".join(MODELS), help=f"parts (default {','.join(MODELS)})")
    parser.add_argument("--models", help="models of these parts (default: all)")
    parser.add_argument("--budget", type=float, help="seconds of each search (default 40; quick 8)")
    parser.add_argument("--seconds", type=float, help="seconds of the turns of a model (default 30; quick 2)")
    parser.add_argument(
        "--threads", type=int, default=count_available_cores(), help="threads of each candidate (default: all cores)"
    )
    parser.add_argument("--engines", default="ort,openvino", help="the single engines, and those of auto (default ort,openvino)")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        run_child(*arguments.child)
        return
    parts, models = arguments.parts.split(","), arguments.models.split(",") if arguments.models else None
    selectable = {model for part in parts for model in MODELS.get(part, ())}
    if other := sorted({*parts} - {*MODELS}) or sorted({*(models or ())} - selectable):
        parser.error(f"there is no {other[0]!r}; parts: {', '.join(MODELS)}; models: {', '.join(sorted(selectable))}")
    options = {
        "threads": arguments.threads,
        "budget": arguments.budget or (8.0 if arguments.quick else 40.0),
        "seconds": arguments.seconds or (2.0 if arguments.quick else 30.0),
        "engines": arguments.engines.split(","),
        "is_quick": arguments.quick,
    }
    figures = measure(list(list_pieces(parts, models)), options)
    print_figures("precision", figures, as_json=arguments.json)


if __name__ == "__main__":
    main()
