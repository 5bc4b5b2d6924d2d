"""What `benchmarks/precision.py` measures of one model, in a process of its own."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from xrt.formats.onnx import lowest_model
from xrt.graph import Function
from xrt.passes import infer_shapes
from xrt.passes.quantize import QuantizationOptions, fold_batch_normalization, fuse_biases, quantize_weights
from xrt.placement.result import describe_plan
from xrt.precision import ErrorBudget

__all__ = ["PARTS", "Asked", "measure_live", "measure_qdq", "measure_trained"]

BUDGETS = (0.0, 0.001, 0.01, 0.05)
ACCURACY_DROP = 0.01
WEIGHTS = {"weights int8": QuantizationOptions()}
MOST_NAMED = 60
"""Nodes in float32 that a record names."""
COMPARED_ENGINES = {"ort": open_onnxruntime, "openvino": open_openvino}
"""Engines for quantized models, each with its library alone."""
COMPARED = 4
"""Examples on which the answers to a quantized model are compared, with the reference engine's too, which is slow."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run is asked for."""

    threads: int
    budget: float
    """Seconds of each search."""
    seconds: float
    """Of the turns of a model."""
    engines: tuple[str, ...] = ("ort", "openvino")
    is_quick: bool = False

    @property
    def counts(self) -> tuple[int, int, int]:
        """Examples of calibration, of validation, and unseen ones."""
        return (4, 6, 8) if self.is_quick else (8, 16, 64)

    def draw(self, model: PrecisionModel, *, has_metric: bool = False) -> tuple[list[Any], list[Any], list[Any]]:
        """Return examples of calibration, of validation, and unseen ones; an accuracy needs more of validation."""
        first, second, third = self.counts
        second = 2 * second if has_metric else second
        found = [model.draw(seed) for seed in range(first + second + third)]
        return found[:first], found[first : first + second], found[first + second :]


@dataclass
class Bench:
    """The candidates of one model, made one after the other; what fails is left out, with the reason."""

    model: PrecisionModel
    asked: Asked
    stack: ExitStack
    calibrate: list[Any]
    candidates: dict[str, Candidate] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)

    def add_module(self, name: str, example: Any, function: Any = None, *, is_exact: bool = False, **options: Any) -> None:
        """Make a module, call it once, and add it."""
        module = None
        try:
            module = xrt.XRTModule(self.model.function if function is None else function, threads=self.asked.threads, **options)
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
        self.candidates[name] = Candidate(call, is_exact, limit, search, plan, _list_kept(module))

    def add_singles(self, example: Any, cache: Path) -> None:
        """Add each engine in float32, in each lower precision that it has here, and with quantized weights alone."""
        inputs = {value.name for value in self.model.function.inputs}
        calibrate = [{name: one[name] for name in inputs} for one in self.calibrate]
        for spec in self.asked.engines:
            engine = registry.create(spec)
            self.add_module(f"{spec} fp32", example, engine=spec, cache=cache, is_exact=True)
            for name in ("bf16", "fp16"):
                if (lowered := engine.lower_precision(name)) is not None:
                    self.add_module(f"{spec} {name}", example, engine=lowered.spec, cache=cache)
            if (integers := engine.lower_precision("int8")) is None:
                continue
            self.add_module(f"{spec} int8", example, engine=spec, precision="int8", calibrate=calibrate, cache=cache)
            if (halved := integers.lower_precision("bf16")) is not None:
                data = {"precision": "int8", "calibrate": calibrate}
                self.add_module(f"{spec} int8 and bf16", example, engine=halved.spec, cache=cache, **data)
            for name, function in self._list_weight_only():
                self.add_module(f"{spec} {name}", example, function, engine=integers.spec, cache=cache)

    def _list_weight_only(self) -> Iterator[tuple[str, Function]]:
        prepared = infer_shapes(fuse_biases(infer_shapes(fold_batch_normalization(infer_shapes(self.model.function)))))
        for name, options in WEIGHTS.items():
            function = quantize_weights(prepared, options)
            if function is not prepared:  # a network of convolutions alone has no weights of 4 bits
                yield name, function

    def add_auto(self, name: str, example: Any, cache: Path, **options: Any) -> None:
        """Add auto over the engines."""
        common = {"budget": self.asked.budget, "progress": False, "cache": cache}
        self.add_module(name, example, engine=[*self.asked.engines, "auto"], **common, **options)

    def measure(self, unseen: Sequence[Any], metric: Any = None) -> dict[str, Any]:
        """Let all take turns, and measure their errors."""
        exact = next(name for name, one in self.candidates.items() if one.is_exact)
        rounds = take_rounds(self.candidates, unseen[0], self.asked.seconds)
        errors = measure_errors(self.candidates, exact, unseen, metric)
        auto = [name for name, one in self.candidates.items() if name.startswith("auto")]
        steps = [{"of": a, "to": b, **measure_ratio(rounds[a], rounds[b])} for a, b in pairwise(auto)]
        return {"rows": make_rows(self.candidates, rounds, errors), "steps": steps, "left": self.left, "unseen": len(unseen)}


def _call_module(module: xrt.XRTModule) -> Callable[[Any], Sequence[Any]]:
    names = [value.name for value in module.inputs]

    def call(example: Any) -> Sequence[Any]:
        found = module(**{name: example[name] for name in names})
        return found if isinstance(found, tuple) else (found,)

    return call


def _describe(module: xrt.XRTModule) -> str:
    record = module.tuned.precision if module.tuned is not None else None
    kept = f", {len(record.kept)} nodes in fp32" if record is not None and record.kept else ""
    return f"{record.precision if record else 'fp32'} on {describe_plan(module.plan)}{kept}"


def _list_kept(module: xrt.XRTModule) -> tuple[str, ...]:
    record = module.tuned.precision if module.tuned is not None else None
    return tuple(one.name for one in record.kept[:MOST_NAMED]) if record is not None else ()


# ---------------------------------------------------------------------- random weights, budgets of error


def measure_live(name: str, asked: Asked) -> dict[str, Any]:
    """Return the figures of a model of random weights: single engines in all precisions, and auto within each budget."""
    model = make_model(name, is_small=asked.is_quick)
    calibrate, validate, unseen = asked.draw(model)
    with ExitStack() as stack:
        cache = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))
        bench = Bench(model, asked, stack, calibrate)
        bench.add_singles(unseen[0], cache)
        bench.add_auto("auto fp32", unseen[0], cache)
        for limit in BUDGETS:
            data = {"max_error": limit, "calibrate": calibrate, "validate": validate}
            bench.add_auto(f"auto {100 * limit:g}%", unseen[0], cache, **data)
        return bench.measure(unseen)


# ---------------------------------------------------------------------- trained classifiers, a budget of accuracy


def measure_trained(name: str, asked: Asked) -> dict[str, Any]:
    """Return the figures of a trained classifier, and of what other tools make of it in their own runtimes."""
    model = train_model(name, is_small=asked.is_quick)
    calibrate, validate, unseen = asked.draw(model, has_metric=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))
        bench = Bench(model, asked, stack, calibrate)
        bench.add_singles(unseen[0], folder / "singles")
        bench.add_auto("auto fp32", unseen[0], folder / "exact")
        budget = ErrorBudget(ACCURACY_DROP, model.metric)
        data = {"max_error": budget, "calibrate": calibrate, "validate": validate}
        bench.add_auto("auto, 1 point", unseen[0], folder / "lowered", **data)  # finds all by itself: its time counts
        _add_other_tools(bench, folder, validate)
        return bench.measure(unseen, model.metric)


def _add_other_tools(bench: Bench, folder: Path, validate: list[Any]) -> None:
    """Add the models of other tools in the sessions of their own runtimes, and the exact model there."""
    _write_model(bench.model, folder, bench.calibrate, validate)
    threads = bench.asked.threads
    bench.candidates["onnxruntime alone, fp32"] = Candidate(open_onnxruntime(folder / "model.onnx", threads))
    bench.candidates["openvino alone, fp32"] = Candidate(open_openvino(folder / "model.onnx", threads))
    options = {"drop": ACCURACY_DROP, "is_transformer": bench.model.name.startswith("texts")}
    for tool, title in (("onnxruntime", "onnxruntime, quantize_static"), ("nncf accuracy", "openvino, NNCF accuracy control")):
        try:
            found = run_tool(tool, folder, threads, **options)
            call = open_onnxruntime(found.path, threads) if tool == "onnxruntime" else open_openvino(found.path, threads)
            bench.candidates[title] = Candidate(call, search=found.seconds)
            if tool != "onnxruntime":
                default = open_openvino(found.path, threads, None)
                bench.candidates[f"{title}, default hint"] = Candidate(default, search=found.seconds)
        except (ToolFailed, RuntimeError) as error:  # a runtime that refuses the model raises its own errors
            bench.left[title] = _shorten(error)


def _shorten(error: Exception) -> str:
    """Return an error in one line, without the names of folders that are gone."""
    return re.sub(r"\S*/xrt-precision-\w+/", "", " ".join(str(error).split()))[:300]


def _write_model(model: PrecisionModel, folder: Path, calibrate: list[Any], validate: list[Any]) -> None:
    onnx.save(lowest_model(model.function, least_opset=13), folder / "model.onnx")
    write_examples(folder, "calibrate", calibrate)
    write_examples(folder, "validate", validate)


# ---------------------------------------------------------------------- quantized models of other tools


def measure_qdq(name: str, asked: Asked) -> dict[str, Any]:
    """Return what XRT's engines take for quantized models that ONNX Runtime and NNCF have made, over the libraries alone."""
    load = train_model if name in TRAINED else make_model
    model = load(name, is_small=asked.is_quick)
    calibrate, validate, unseen = asked.draw(model)
    examples = unseen[:COMPARED]
    rows: list[dict[str, Any]] = []
    left: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="xrt-precision-") as directory:
        folder = Path(directory)
        _write_model(model, folder, calibrate, validate)
        exact = run_examples(open_onnxruntime(folder / "model.onnx", asked.threads), examples)
        for tool in ("onnxruntime", "nncf"):
            options = {"is_transformer": not name.startswith(("convnext", "mobilenet", "images"))}
            try:
                found = run_tool(tool, folder, asked.threads, **options)
            except ToolFailed as error:
                left[tool] = _shorten(error)
                continue
            more, refused = _compare_engines(found.path, asked, examples, exact)
            rows += [{"tool": tool, **row} for row in more]
            left |= {f"{tool}: {engine}": reason for engine, reason in refused.items()}
    return {"rows": rows, "left": left}


def _compare_engines(
    path: Path, asked: Asked, examples: list[Any], exact: list[list[Any]]
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a row for each engine and its library, all of which take turns, and what was refused."""
    candidates: dict[str, Candidate] = {}
    left: dict[str, str] = {}
    with ExitStack() as stack:
        for spec, open_alone in COMPARED_ENGINES.items():
            try:
                call = open_alone(path, asked.threads)
                call(examples[0])
                module = stack.enter_context(xrt.XRTModule(path, engine=spec, threads=asked.threads, cache=_make_folder(stack)))
                ours = _call_module(module)
                ours(examples[0])
            except Exception as error:  # noqa: BLE001  # the libraries' errors have no common base
                left[spec] = _shorten(error)
                continue
            candidates |= {spec: Candidate(ours), f"{spec} alone": Candidate(call)}
        rounds = take_rounds(candidates, examples[0], asked.seconds)
        outputs = {name: run_examples(one.call, examples) for name, one in candidates.items()}
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


def _measure_difference(expected: list[list[Any]], found: list[list[Any]]) -> float:
    return ErrorBudget(1.0).measure_error(expected, found, expected).error


def _make_folder(stack: ExitStack) -> Path:
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="xrt-precision-")))


PARTS: Mapping[str, Callable[[str, Asked], dict[str, Any]]] = {
    "live": measure_live,
    "trained": measure_trained,
    "qdq": measure_qdq,
}
