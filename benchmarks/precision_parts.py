"""The three parts of `benchmarks/precision.py`, each for one model in a process of its own."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from precision_figures import Candidate, make_rows, measure_errors, measure_ratio, run_examples, take_rounds
from precision_models import PrecisionModel, make_model
from precision_tools import ToolFailed, open_onnxruntime, open_openvino, run_tool, write_examples
from precision_trained import TRAINED, train_model

import xrt
from xrt.engines.contract import registry
from xrt.errors import XRTError
from xrt.formats.onnx import to_lowest_model
from xrt.passes import infer_shapes
from xrt.passes.quantize import QuantizationOptions, fold_batch_normalization, fuse_biases, quantize_weights
from xrt.placement.result import describe_plan
from xrt.precision import ErrorBudget

BUDGETS = (0.0, 0.001, 0.01, 0.05)
ACCURACY_DROP = 0.01
MAX_LISTED_NODES = 60
"""The largest number of float32 nodes that a record lists."""
COMPARED_ENGINES = {"ort": open_onnxruntime, "openvino": open_openvino}
"""Engines for quantized models, each with its library alone."""
COMPARED_EXAMPLES = 4
"""Examples for comparing results of quantized models; few, because the reference engine is slow."""


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a run."""

    threads: int
    budget: float
    """Seconds per search."""
    seconds: float
    """Seconds of the rounds of a model."""
    engines: tuple[str, ...] = ("ort", "openvino")
    is_quick: bool = False

    @property
    def counts(self) -> tuple[int, int, int]:
        """Numbers of examples: calibration, validation, unseen."""
        return (4, 6, 8) if self.is_quick else (8, 16, 64)

    def draw(self, model: PrecisionModel, *, has_metric: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
        """Draw examples for calibration and validation, and unseen ones; an accuracy needs more for validation."""
        first, second, third = self.counts
        second = 2 * second if has_metric else second
        examples = [model.draw(seed) for seed in range(first + second + third)]
        return examples[:first], examples[first : first + second], examples[first + second :]


@dataclass
class Bench:
    """The candidates of one model. One that fails is skipped, with the reason in ``left``."""

    model: PrecisionModel
    options: Options
    stack: ExitStack
    calibrate: list[Any]
    candidates: dict[str, Candidate] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def add_module(self, name: str, example: Any, function: Any = None, *, is_exact: bool = False, **options: Any) -> None:
        """Make a module, call it once, and add it."""
        module = None
        try:
            module = xrt.XRTModule(self.model.function if function is None else function, threads=self.options.threads, **options)
            began = time.perf_counter()
            call = _call_module(self.stack.enter_context(module))
            call(example)
        except XRTError as error:
            self.left[name] = _shorten(error)
            return
        limit = options.get("max_error")
        limit = limit.limit if isinstance(limit, ErrorBudget) else limit
        is_auto = name.startswith("auto")
        search, plan = (time.perf_counter() - began, _describe(module)) if is_auto else (None, "")
        self.candidates[name] = Candidate(call, is_exact, limit, search, plan, _list_exact_nodes(module))

    def add_singles(self, example: Any, cache: Path) -> None:
        """Add each engine in float32, in each reduced precision it supports, and with quantized weights only."""
        inputs = {value.name for value in self.model.function.inputs}
        calibrate = [{name: values[name] for name in inputs} for values in self.calibrate]
        for spec in self.options.engines:
            engine = registry.create(spec)
            self.add_module(f"{spec} fp32", example, engine=spec, cache=cache, is_exact=True)
            for name in ("bf16", "fp16"):
                if (reduced := engine.with_precision(name)) is not None:
                    self.add_module(f"{spec} {name}", example, engine=reduced.spec, cache=cache)
            if (integers := engine.with_precision("int8")) is None:
                continue
            self.add_module(f"{spec} int8", example, engine=spec, precision="int8", calibrate=calibrate, cache=cache)
            if (halved := integers.with_precision("bf16")) is not None:
                data = {"precision": "int8", "calibrate": calibrate}
                self.add_module(f"{spec} int8 and bf16", example, engine=halved.spec, cache=cache, **data)
            prepared = infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(infer_shapes(self.model.function)))))
            quantized = quantize_weights(prepared, QuantizationOptions())
            if quantized is not prepared:  # unchanged if it has no weights to quantize
                self.add_module(f"{spec} weights int8", example, quantized, engine=integers.spec, cache=cache)

    def add_auto(self, name: str, example: Any, cache: Path, **options: Any) -> None:
        """Add auto over the engines."""
        common = {"budget": self.options.budget, "progress": False, "cache": cache}
        self.add_module(name, example, engine=[*self.options.engines, "auto"], **common, **options)

    def measure(self, unseen: Sequence[Any], metric: Any = None) -> dict[str, Any]:
        """Measure all candidates in turn, and their errors."""
        exact = next(name for name, candidate in self.candidates.items() if candidate.is_exact)
        rounds = take_rounds(self.candidates, unseen[0], self.options.seconds)
        errors = measure_errors(self.candidates, exact, unseen, metric)
        auto = [name for name in self.candidates if name.startswith("auto")]
        steps = [{"of": a, "to": b, **measure_ratio(rounds[a], rounds[b])} for a, b in pairwise(auto)]
        return {"rows": make_rows(self.candidates, rounds, errors), "steps": steps, "left": self.left, "unseen": len(unseen)}


def _call_module(module: xrt.XRTModule) -> Callable[[Any], Sequence[Any]]:
    names = [value.name for value in module.inputs]

    def call(example: Any) -> Sequence[Any]:
        results = module(**{name: example[name] for name in names})
        return results if isinstance(results, tuple) else (results,)

    return call


def _describe(module: xrt.XRTModule) -> str:
    record = module.tuned.precision if module.tuned is not None else None
    exact = f", {len(record.exact_nodes)} nodes in fp32" if record is not None and record.exact_nodes else ""
    return f"{record.precision if record else 'fp32'} on {describe_plan(module.plan)}{exact}"


def _list_exact_nodes(module: xrt.XRTModule) -> tuple[str, ...]:
    record = module.tuned.precision if module.tuned is not None else None
    return tuple(node.name for node in record.exact_nodes[:MAX_LISTED_NODES]) if record is not None else ()


# ---------------------------------------------------------------------- random weights, budgets of error


def measure_live(name: str, options: Options) -> dict[str, Any]:
    """Measure a model with random weights: single engines in all precisions, and auto within each budget."""
    model = make_model(name, is_small=options.is_quick)
    calibrate, validate, unseen = options.draw(model)
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))
        bench = Bench(model, options, stack, calibrate)
        bench.add_singles(unseen[0], cache)
        bench.add_auto("auto fp32", unseen[0], cache)
        for limit in BUDGETS:
            data = {"max_error": limit, "calibrate": calibrate, "validate": validate}
            bench.add_auto(f"auto {100 * limit:g}%", unseen[0], cache, **data)
        return bench.measure(unseen)


# ---------------------------------------------------------------------- trained classifiers, a budget of accuracy


def measure_trained(name: str, options: Options) -> dict[str, Any]:
    """Measure a trained classifier, and its forms quantized by other tools in their own runtimes."""
    model = train_model(name, is_small=options.is_quick)
    calibrate, validate, unseen = options.draw(model, has_metric=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))
        bench = Bench(model, options, stack, calibrate)
        bench.add_singles(unseen[0], folder / "singles")
        bench.add_auto("auto fp32", unseen[0], folder / "exact")
        budget = ErrorBudget(ACCURACY_DROP, model.metric)
        data = {"max_error": budget, "calibrate": calibrate, "validate": validate}
        bench.add_auto("auto, 1 point", unseen[0], folder / "reduced", **data)  # with an empty cache: its time counts
        _add_other_tools(bench, folder, validate)
        return bench.measure(unseen, model.metric)


def _add_other_tools(bench: Bench, folder: Path, validate: list[Any]) -> None:
    """Add the models of other tools in the sessions of their own runtimes, and the exact model there."""
    _write_model(bench.model, folder, bench.calibrate, validate)
    threads = bench.options.threads
    bench.candidates["onnxruntime alone, fp32"] = Candidate(open_onnxruntime(folder / "model.onnx", threads))
    bench.candidates["openvino alone, fp32"] = Candidate(open_openvino(folder / "model.onnx", threads))
    options = {"drop": ACCURACY_DROP, "is_transformer": bench.model.name.startswith("texts")}
    for tool, title in (("onnxruntime", "onnxruntime, quantize_static"), ("nncf accuracy", "openvino, NNCF accuracy control")):
        try:
            result = run_tool(tool, folder, threads, **options)
            call = open_onnxruntime(result.path, threads) if tool == "onnxruntime" else open_openvino(result.path, threads)
            bench.candidates[title] = Candidate(call, search=result.seconds)
            if tool != "onnxruntime":
                default = open_openvino(result.path, threads, None)
                bench.candidates[f"{title}, default hint"] = Candidate(default, search=result.seconds)
        except (ToolFailed, RuntimeError) as error:  # of the runtime that refuses the model
            bench.left[title] = _shorten(error)


def _shorten(error: Exception) -> str:
    """An error in one line, without the names of temporary folders."""
    return re.sub(r"\S*/xrt-precision-\w+/", "", " ".join(str(error).split()))[:300]


def _write_model(model: PrecisionModel, folder: Path, calibrate: list[Any], validate: list[Any]) -> None:
    onnx.save(to_lowest_model(model.function, min_opset=13), folder / "model.onnx")
    write_examples(folder, "calibrate", calibrate)
    write_examples(folder, "validate", validate)


# ---------------------------------------------------------------------- quantized models of other tools


def measure_qdq(name: str, options: Options) -> dict[str, Any]:
    """Measure models quantized by ONNX Runtime and NNCF on XRT's engines and on their libraries alone."""
    load = train_model if name in TRAINED else make_model
    model = load(name, is_small=options.is_quick)
    calibrate, validate, unseen = options.draw(model)
    examples = unseen[:COMPARED_EXAMPLES]
    rows: list[dict[str, Any]] = []
    left: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="xrt-precision-") as directory:
        folder = Path(directory)
        _write_model(model, folder, calibrate, validate)
        exact = run_examples(open_onnxruntime(folder / "model.onnx", options.threads), examples)
        for tool in ("onnxruntime", "nncf"):
            tool_options = {"is_transformer": not name.startswith(("convnext", "mobilenet", "images"))}
            try:
                result = run_tool(tool, folder, options.threads, **tool_options)
            except ToolFailed as error:
                left[tool] = _shorten(error)
                continue
            more, refused = _compare_engines(result.path, options, examples, exact)
            rows += [{"tool": tool, **row} for row in more]
            left |= {f"{tool}: {engine}": reason for engine, reason in refused.items()}
    return {"rows": rows, "left": left}


def _compare_engines(
    path: Path, options: Options, examples: list[Any], exact: list[list[Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Measure each engine and its library in turn; return a row per engine, and the reasons of those that were refused."""
    candidates: dict[str, Candidate] = {}
    left: dict[str, str] = {}
    with ExitStack() as stack:
        for spec, open_alone in COMPARED_ENGINES.items():
            try:
                call = open_alone(path, options.threads)
                call(examples[0])
                module = stack.enter_context(xrt.XRTModule(path, engine=spec, threads=options.threads, cache=_make_folder(stack)))
                ours = _call_module(module)
                ours(examples[0])
            except Exception as error:  # noqa: BLE001  # errors of the libraries have no common base
                left[spec] = _shorten(error)
                continue
            candidates |= {spec: Candidate(ours), f"{spec} alone": Candidate(call)}
        rounds = take_rounds(candidates, examples[0], options.seconds)
        outputs = {name: run_examples(candidate.call, examples) for name, candidate in candidates.items()}
        reference = run_examples(_call_module(stack.enter_context(xrt.XRTModule(path, engine="toy"))), examples)
    rows = []
    for spec in (spec for spec in COMPARED_ENGINES if spec in candidates):
        alone = f"{spec} alone"
        rows.append(
            {
                "engine": spec,
                "ms": 1e3 * float(np.median(rounds[spec])),
                "alone_ms": 1e3 * float(np.median(rounds[alone])),
                "ratio": measure_ratio(rounds[spec], rounds[alone]),
                "difference": _measure_difference(outputs[alone], outputs[spec]),
                "to_reference": _measure_difference(reference, outputs[spec]),
                "alone_to_reference": _measure_difference(reference, outputs[alone]),
                "error": _measure_difference(exact, outputs[alone]),
            }
        )
    return rows, left


def _measure_difference(expected: list[list[Any]], actual: list[list[Any]]) -> float:
    return ErrorBudget(1.0).measure_error(expected, actual, expected).error


def _make_folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))


PARTS: Mapping[str, Callable[[str, Options], dict[str, Any]]] = {
    "live": measure_live,
    "trained": measure_trained,
    "qdq": measure_qdq,
}
