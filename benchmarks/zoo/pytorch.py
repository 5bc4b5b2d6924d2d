"""Run the zoo's modules of PyTorch, without files: ``python -m benchmarks.zoo.pytorch`` writes into docs/zoo.json.

Each module runs as an `XRTModule` and by ``torch.compile(backend="xrt")`` on each list of engines, twice, with other sizes the
second time. Its results are compared with PyTorch's own. What is not run keeps its record; `benchmarks.zoo.page` writes the page.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any
from unittest import mock

from benchmarks.zoo.model import Module
from benchmarks.zoo.run import changed_record, try_all
from benchmarks.zoo.trial import find_difference

ENGINE_LISTS: Mapping[str, Any] = {"ort": "ort", "openvino": "openvino", "ort, torch": ["ort", "torch"], "auto": "auto"}
BUDGET = 2.0
WAYS = ("module", "compile")
TIMEOUT_SECONDS = 600.0


def list_modules() -> list[Module]:
    """Return every module of the zoo."""
    from benchmarks.zoo import python_models, torch_models, transformer_models

    return [module for source in (transformer_models, torch_models, python_models) for module in source.list_modules()]


# ---------------------------------------------------------------------- in a process of its own


def try_module(module: Module, lists: Sequence[str]) -> dict[str, Any]:
    """Run a module; return its outcome by list of engines and way, and the number of graphs that Dynamo creates."""
    import torch

    from xrt.frontends.torch import module as frontend

    model, calls = module.make()
    captures: dict[str, Any] = {}

    def capture_once(model: Any, args: Any, kwargs: Any = None, shapes: Any = None, **options: Any) -> Any:
        """Capture a model once and reuse the result for other lists of engines, since it does not depend on the engine."""
        leaves = torch.utils._pytree.tree_leaves((args, kwargs))
        key = f"{[tuple(leaf.shape) for leaf in leaves if hasattr(leaf, 'shape')]} {shapes}"
        if key not in captures:
            captures[key] = capture(model, args, kwargs, shapes, **options)
        return captures[key]

    capture = frontend.capture
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = copy.deepcopy(model)
        expected = run_calls(reference, reference, calls)
        writes = any(not torch.equal(before, after) for before, after in zip(model.buffers(), reference.buffers(), strict=True))
        outcome: dict[str, Any] = {"family": module.family, "graphs": count_graphs(copy.deepcopy(model), calls)}
        with mock.patch.object(frontend, "capture", capture_once):
            for name in lists:
                if writes:
                    captures.clear()
                module_copy = copy.deepcopy(model) if writes else model  # a capture holds the tensors of its module
                outcome[name] = {
                    "module": run(partial(run_module, module_copy, calls, name), expected, module.tolerance),
                    "compile": run(partial(run_compiled, copy.deepcopy(model), calls, name), expected, module.tolerance),
                }
    return outcome


def run(call: Callable[[], Any], expected: Sequence[Any], tolerance: float) -> dict[str, Any]:
    """Call a module in one way; return the verdict and the number of nodes by engine."""
    import xrt

    try:
        results, plans, graphs = call()
    except xrt.XRTError as error:
        return {"verdict": "declined", "reason": " ".join(str(error).split())[:300]}
    except Exception as error:  # noqa: BLE001  # anything but an error of XRT's is a defect, and the run goes on
        return {"verdict": "error", "reason": f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]}
    faults = []
    for tensors, references in zip(results, expected, strict=True):
        if len(tensors) != len(references):
            faults.append(f"{len(tensors)} tensors for {len(references)}")
            continue
        for tensor, reference in zip(tensors, references, strict=True):
            if tensor.dtype is not reference.dtype:
                faults.append(f"{tensor.dtype} for {reference.dtype}")
            elif fault := find_difference(tensor.numpy(), reference.numpy(), tolerance):
                faults.append(fault)
    nodes = Counter(launch.engine.partition("{")[0] for plan in plans for launch in plan.launches for _ in launch.nodes)
    return {"verdict": "wrong" if faults else "right", "reason": "; ".join(faults[:3]), "nodes": dict(nodes), "graphs": graphs}


def run_calls(call: Callable[..., Any], model: Any, calls: Iterable[Any]) -> list[list[Any]]:
    """Call a module; return the tensors of results and inputs after each call, and finally its buffers."""
    from benchmarks.zoo.torch_export import flatten

    tensors = []
    for inputs in calls:
        arguments = copy.deepcopy(inputs)
        results = call(**arguments)
        # Copies, because the next call may write to the tensors.
        tensors.append([tensor.clone() for tensor in flatten((results, arguments))])
    return [*tensors, [tensor.clone() for tensor in model.buffers()]]


def run_module(model: Any, calls: Iterable[Any], name: str) -> Any:
    import xrt

    module = xrt.XRTModule(model, engine=ENGINE_LISTS[name], **make_options(name))
    results = run_calls(module, model, calls)
    plans = list_plans(module.parts or [module])
    return results, plans, len(plans)


def list_plans(modules: Sequence[Any]) -> list[Any]:
    """Return the plans of modules, without those of a graph that no call has reached."""
    import xrt

    plans = []
    for module in modules:
        with contextlib.suppress(xrt.XRTError):
            plans.append(module.plan)
    return plans


def run_compiled(model: Any, calls: Iterable[Any], name: str) -> Any:
    import torch

    from xrt.frontends.torch import backend

    modules: list[Any] = []

    def make(*args: Any, **options: Any) -> Any:
        modules.append(original(*args, **options))
        return modules[-1]

    original = backend.XRTModule
    torch._dynamo.reset()
    with mock.patch.object(backend, "XRTModule", make):
        compiled = torch.compile(model, backend="xrt", options={"engine": ENGINE_LISTS[name], **make_options(name)})
        results = run_calls(compiled, model, calls)
    return results, list_plans(modules), len(modules)


def make_options(name: str) -> dict[str, Any]:
    return {"budget": BUDGET} if name == "auto" else {}


def count_graphs(model: Any, calls: Iterable[Any]) -> int:
    """Count the graphs that Dynamo creates for the calls with a backend that does nothing, behind AOTAutograd as for Inductor.

    AOTAutograd changes the count: it may find guards on sizes for which Dynamo compiles code after a graph break again.
    """
    import torch
    from torch._dynamo.backends.debugging import aot_eager

    graphs = 0

    def count(graph: Any, inputs: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return aot_eager(graph, inputs)

    torch._dynamo.reset()
    compiled = torch.compile(model, backend=count)
    for call in calls:
        compiled(**copy.deepcopy(call))
    return graphs


def try_modules(lists: Sequence[str], names: Sequence[str]) -> None:
    """Try each module and print the outcome."""
    modules = {module.name: module for module in list_modules()}
    for name in names:
        print(json.dumps({"begin": name}), flush=True)
        print(json.dumps({"model": name, "verdict": "", **try_module(modules[name], lists)}), flush=True)


# ---------------------------------------------------------------------- all of them


def main(arguments: Sequence[str]) -> None:
    """Run the selected modules; write the record after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="")
    parser.add_argument("--lists", default=";".join(ENGINE_LISTS), help="lists of engines, separated by semicolons")
    parser.add_argument("--limit", type=float, default=TIMEOUT_SECONDS, help="seconds that a module may take")
    parser.add_argument("--child", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    lists = options.lists.split(";")
    if options.child is not None:
        try_modules(lists, options.child)
        return
    every = [module.name for module in list_modules()]
    names = [name for name in options.models.split(",") if name] or every
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.zoo.pytorch", "--lists", options.lists, "--child"]
    for outcome in try_all(command, names, options.limit):
        name, failure, reason = outcome["model"], outcome["verdict"], outcome.get("reason", "")
        outcomes = {key: value for key, value in outcome.items() if key not in ("model", "verdict", "reason")}
        if failure:
            outcomes.update((engines, {way: {"verdict": failure, "reason": reason} for way in WAYS}) for engines in lists)
        with changed_record() as record:
            record.setdefault("pytorch", {}).setdefault(name, {}).update(outcomes)
            record["pytorch_modules"] = sorted(every)
        print(
            name, *(f"{engines}: {', '.join(describe(outcomes[engines][way]) for way in WAYS)};" for engines in lists), flush=True
        )


def describe(outcome: Mapping[str, Any]) -> str:
    """Return the verdict, with the share of nodes on other engines than torch."""
    share = get_share(outcome)
    parts = [
        outcome["verdict"],
        f"{share:.0%}" if share is not None else "",
        f"({outcome['reason']})" if outcome["reason"] else "",
    ]
    return " ".join(part for part in parts if part)


def get_share(outcome: Mapping[str, Any]) -> float | None:
    """Compute the share of nodes on engines other than torch; None if XRT ran no node."""
    total = sum(outcome.get("nodes", {}).values())
    return 1 - outcome["nodes"].get("torch", 0) / total if total else None


if __name__ == "__main__":
    main(sys.argv[1:])
