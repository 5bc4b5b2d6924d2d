"""Run PyTorch's samples of its operators through `xrt.from_torch`, and write the outcomes.

The samples are those of ``op_db``, with which PyTorch tests its operators; they need ``expecttest``. Each sample becomes a module
that calls the operator. ``python -m tools.torch_operators`` writes docs/pytorch-operators.json and
docs/reference/pytorch-operators.md, in about 20 minutes on two processors. With names, only these operators are run again; with
``--page``, only the page is written.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import xrt
from xrt.cache import CompileCache
from xrt.errors import ModelError, PlanError
from xrt.frontends.torch.capture import Capture, capture
from xrt.frontends.torch.dtypes import share_tensor
from xrt.frontends.torch.module import collect_arrays

TOP = Path(__file__).parents[1]
RECORD = TOP / "docs" / "pytorch-operators.json"
PAGE = TOP / "docs" / "reference" / "pytorch-operators.md"
ENGINES = ("toy", "ort", "torch")
MAX_SAMPLES = 40
SAMPLES = {torch.float32: 2, torch.int64: 1, torch.bool: 1}
"""Element type to the number of samples, which are spread over the first `MAX_SAMPLES`."""
TIES = frozenset(
    {"sort", "msort", "argsort", "topk", "kthvalue", "mode", "median", "nanmedian", "max", "min", "cummax", "cummin"}
)
"""Operators that return indices, which PyTorch does not define for equal elements. Only their values are compared."""
PASSED, FAILED, DECLINED = "passed", "failed", "declined"

Outcome = tuple[str, str]
"""``passed``, ``failed`` or ``declined``, with the reason unless it is ``passed``."""


class Sample(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not seen by the type checker
    """A module that calls an operator on tensors, with the other arguments of a sample."""

    def __init__(self, operator: Any, sample: Any) -> None:
        super().__init__()
        self.operator = operator
        self.leaves, self.spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.tensor_indices = [index for index, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]

    def copy_tensors(self) -> tuple[torch.Tensor, ...]:
        return tuple(self.leaves[index].clone() for index in self.tensor_indices)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.leaves)
        for index, tensor in zip(self.tensor_indices, tensors, strict=True):
            leaves[index] = tensor
        first, args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        return self.operator(first, *args, **kwargs)


def list_samples(operator: Any) -> Iterator[Sample]:
    """Yield samples of an operator, as many per element type as `SAMPLES` says."""
    for dtype, count in SAMPLES.items():
        if dtype in operator.dtypes:
            samples = list(itertools.islice(operator.sample_inputs("cpu", dtype, requires_grad=False), MAX_SAMPLES))
            step = max(1, len(samples) // count)
            yield from (Sample(operator, sample) for sample in samples[::step][:count])


def run_sample(sample: Sample, name: str) -> tuple[dict[str, Outcome], Mapping[str, str]] | None:
    """Run a sample; return the outcome by engine and the opaque operators with their reasons; None if PyTorch cannot run it."""
    try:
        expected = _run_eager(sample, 0)
        # Results of `empty` are undefined. A random operator computes something else with another seed.
        is_undefined = "empty" in name or not _are_close(_run_eager(sample, 1), expected, name)
    except Exception:  # noqa: BLE001  # any error of PyTorch
        return None
    try:
        captured = capture(sample, sample.copy_tensors())
    except ModelError as error:
        return dict.fromkeys(ENGINES, (DECLINED, str(error))), {}
    except Exception as error:  # noqa: BLE001  # counted as a failure
        return dict.fromkeys(ENGINES, (FAILED, repr(error))), {}
    is_undefined = is_undefined or any(map(_is_random, captured.opaque))
    return {engine: _run_engine(engine, sample, captured, expected, name, is_undefined) for engine in ENGINES}, captured.opaque


def _is_random(operator: str) -> bool:
    """Whether an operator, named as in ``aten.rand.default``, draws random numbers."""
    value: Any = torch.ops
    for part in operator.split("."):
        value = getattr(value, part)
    return torch.Tag.nondeterministic_seeded in value.tags


def _run_eager(sample: Sample, seed: int) -> list[Any]:
    torch.manual_seed(seed)
    return [leaf for leaf in pytree.tree_leaves(sample(*sample.copy_tensors())) if leaf is not None]


def _run_engine(engine: str, sample: Sample, captured: Capture, expected: list[Any], name: str, is_undefined: bool) -> Outcome:
    # Only the engine "torch" runs opaque operators.
    engines = list(dict.fromkeys([engine, *(["torch"] if captured.opaque else []), "toy"]))
    leaves = list(sample.copy_tensors())
    try:
        module = xrt.XRTModule(captured.function, engine=engines, strict=True, cache=CompileCache())
        results = module(*collect_arrays(captured, leaves, []))
        tensors = [share_tensor(result) for result in (results if isinstance(results, tuple) else (results,))]
        picked = (leaf.pick(tensors, leaves) for leaf in captured.leaves)
        outputs = [output for output in picked if output is not None]
    except PlanError as error:
        return DECLINED, str(error)
    except Exception as error:  # noqa: BLE001  # counted as a failure
        return FAILED, repr(error)
    if _are_close(outputs, expected, name, is_undefined=is_undefined):
        return PASSED, ""
    return FAILED, "other numbers than PyTorch's"


def _are_close(outputs: list[Any], expected: list[Any], name: str, *, is_undefined: bool = False) -> bool:
    """Whether results are equal within the tolerance of float32; of undefined results, only types and shapes are compared."""
    if len(outputs) != len(expected):
        return False
    for output, expected_output in zip(outputs, expected, strict=True):
        if not isinstance(expected_output, torch.Tensor):
            if not is_undefined and output != expected_output:
                return False
            continue
        if output.dtype != expected_output.dtype or output.shape != expected_output.shape:
            return False
        is_index = name.partition(".")[0] in TIES and expected_output.dtype is torch.int64
        if not (is_undefined or is_index or torch.allclose(output, expected_output, rtol=2e-4, atol=2e-5, equal_nan=True)):
            return False
    return True


def run_operator(index: int) -> tuple[str, dict[str, Any]]:
    """Run the samples of the operator with this index in ``op_db``; return its name and its entry in the record."""
    from torch.testing._internal.common_methods_invocations import op_db

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    operator = op_db[index]
    name = f"{operator.name}.{operator.variant_test_name}".strip(".")
    outcomes: dict[str, Any] = {engine: Counter() for engine in ENGINES}
    entry: dict[str, Any] = {"samples": 0, "opaque": {}, "why": {}}
    for result in (run_sample(sample, name) for sample in list_samples(operator)):
        if result is None:
            continue
        entry["samples"] += 1
        entry["opaque"].update({name: why.partition("\n")[0][:160] for name, why in result[1].items()})
        for engine, (word, why) in result[0].items():
            outcomes[engine][word] += 1
            if why:
                entry["why"].setdefault(f"{engine} {word}", why.partition("\n")[0][:160])
    return name, {**entry, **outcomes}


# ---------------------------------------------------------------------- the page

_TOP = """\
# Operators of PyTorch

Generated by `python -m tools.torch_operators`; a test compares the page with its record.

PyTorch tests its operators with samples of its own (`op_db`). Of each operator, up to two samples
of float32, one of int64 and one of bool are captured by `xrt.from_torch` and run on an engine list
that begins with the engine named. Results are compared with PyTorch's, of random operators only
types and shapes. {libraries}

| engine | passed | failed | declined |
| --- | --- | --- | --- |
{counts}

{samples} samples of {operators} operators. {lowered} operators became nodes of ONNX alone; {opaque}
have opaque nodes, which only the engine `torch` supports. Declined are what `torch.export` does not
capture, types without an ONNX form (sparse tensors) and what the engine `torch` refuses to call.

## Failures and declined samples

| operator | engine and outcome | reason |
| --- | --- | --- |
{why}

## Opaque operators

| operator of ATen | reason |
| --- | --- |
{reasons}
"""


def make_page(record: Mapping[str, Any]) -> str:
    operators = record["operators"]
    counts = []
    for engine in ENGINES:
        words = Counter[str]()
        for entry in operators.values():
            words.update(entry[engine])
        counts.append(f"| `{engine}` | {words[PASSED]:,} | {words[FAILED]:,} | {words[DECLINED]:,} |")
    cases: dict[tuple[str, str, str], list[str]] = {}
    for name, entry in sorted(operators.items()):
        for case, text in entry["why"].items():
            engine, _, word = case.partition(" ")
            cases.setdefault((name, word, _remove_engines(text)), []).append(engine)
    why = [f"| `{name}` | {word} on {', '.join(engines)} | {_escape(text)} |" for (name, word, text), engines in cases.items()]
    reasons: dict[str, str] = {}
    for entry in operators.values():
        reasons.update(entry["opaque"])
    return _TOP.format(
        libraries=" ".join(f"{name} {version}." for name, version in record["libraries"].items()),
        counts="\n".join(counts),
        samples=f"{sum(entry['samples'] for entry in operators.values()):,}",
        operators=len(operators),
        lowered=sum(not entry["opaque"] for entry in operators.values()),
        opaque=sum(bool(entry["opaque"]) for entry in operators.values()),
        why="\n".join(why),
        reasons="\n".join(f"| `{name}` | {_escape(reason)} |" for name, reason in sorted(reasons.items())),
    )


def _remove_engines(reason: str) -> str:
    """Remove the list of engines from a reason, so that equal reasons of several engines share a row."""
    return re.sub(r"no engine of the list \(.*", "no engine supports a node of it", reason)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(arguments: list[str]) -> None:
    """Run the operators, unless only the page is to be written."""
    if arguments != ["--page"]:
        from torch.testing._internal.common_methods_invocations import op_db

        with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
            entries = json.loads(RECORD.read_text(encoding="utf-8"))["operators"] if arguments else {}
            indices = [index for index, operator in enumerate(op_db) if not arguments or operator.name in arguments]
            for name, entry in pool.map(run_operator, indices, chunksize=4):
                print(name, {engine: dict(entry[engine]) for engine in ENGINES}, flush=True)
                entries[name] = entry
        libraries = {name: metadata.version(name) for name in ("torch", "onnxruntime")}
        record = {"libraries": libraries, "operators": dict(sorted(entries.items()))}
        RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(make_page(json.loads(RECORD.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
