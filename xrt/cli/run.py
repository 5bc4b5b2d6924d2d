"""``xrt run``, ``verify``, ``inspect``, ``explain`` and ``compile``: one model on files or seeded random inputs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click
import numpy as np
from rich.status import Status

from xrt.cache import CompileCache, default_cache
from xrt.cli.inputs import all_inputs, from_files, open_model, read_bundle_facts, set_shapes, show_bundle
from xrt.cli.options import (
    add_json,
    add_locked_dims,
    check_sizes,
    check_writable,
    derive,
    input_options,
    isolation_options,
    load_with_options,
    module_keywords,
    module_options,
    parse_check,
    parse_choices,
    set_dims,
    settle_batch,
)
from xrt.cli.screen import WorkStatus, human_bytes, out, show_table
from xrt.comparison import compare, tolerance_for
from xrt.engines import RunOptions
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import EngineError, InputError, OptionError, PlanError
from xrt.formats.bundle import BundleFile, is_bundle
from xrt.formats.output import replace_file
from xrt.graph import Function, TensorType
from xrt.graph.verify import verify
from xrt.measure.timing import seconds_per_call, time_call
from xrt.models import sample_inputs
from xrt.module import ModuleOptions, XRTModule
from xrt.module.explain import render_explanation_page
from xrt.module.lockfile import LockedPlacement
from xrt.module.programs import NO_LIMIT
from xrt.placement.engine_list import is_auto
from xrt.placement.records import read_lock
from xrt.placement.report import describe_prediction, format_seconds
from xrt.placement.result import describe_plan, format_count
from xrt.runtime import to_host

if TYPE_CHECKING:
    from xrt.placement import CostReport

__all__ = ["command", "compile_command", "explain_command", "inspect_command", "verify_command"]


@click.command("run")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="Save the outputs as .npz")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), help="Number of runs; the median time is shown")
@click.option("--trace", type=click.Path(dir_okay=False), help="Save a timeline of as many more runs, for Perfetto")
@derive(ModuleOptions, "dump_subgraph_dir", "--dump", "dump_subgraph_dir", kind="folder")
@derive(ModuleOptions, "check", callback=parse_check)
@click.option("--verify", "verified", is_flag=True, help="Compare the outputs with the reference engine")
def command(
    model: str,
    files: tuple[str, ...],
    seed: int,
    target: str | None,
    repeat: int,
    trace: str | None,
    verified: bool,
    **params: Any,
) -> int:
    """Run MODEL: an ONNX file, a bundle or a shipped model (squeezenet, 'bert{layers=2}').

    The exit code is 1 when --verify finds a difference.
    """
    for path in filter(None, (target, trace)):
        check_writable(Path(path))
    status = WorkStatus("compiling")
    progress = lambda done, count: status.update(f"compiling {done}/{count}")  # noqa: E731  # called once per region
    function, module = open_model(model, params, progress=progress)
    values = all_inputs(files, function, seed)
    with module:
        with status:
            results, first = time_call(lambda: _as_tuple(module(**values)))
        seconds = [seconds_per_call(partial(module, **values)) for _ in range(repeat)]
        plan = module.plan
        if trace is not None:
            with status:
                _trace(module, values, repeat, trace, status)
    outputs = dict(zip((v.name for v in function.outputs), results, strict=True))
    is_default = params["engine"] is None and not is_bundle(model)
    title = f"{describe_plan(plan)}{' (default engine)' * is_default}"
    what = f"{title}: {format_count(len(plan.launches), 'region')} on {format_count(module.threads, 'thread')}"
    out.print(f"{what}; first call {first:.3f} s, then {1e3 * statistics.median(seconds):.3f} ms", markup=False)
    show_table(("output", "type", "smallest", "mean", "largest"), [(name, *_summary(value)) for name, value in outputs.items()])
    if trace is not None:
        out.print(
            f"{trace}: a timeline of {format_count(repeat, 'call')}; open it in ui.perfetto.dev or chrome://tracing",
            markup=False,
            soft_wrap=True,
        )
    if target is not None:
        _save(outputs, Path(target))
    return _verify(function, values, results) if verified else 0


def _trace(module: XRTModule, values: Mapping[str, Any], calls: int, target: str, status: Status) -> None:
    """Make calls that are recorded, after those that are timed: recording takes time, and on a device waits for each region."""
    for number in range(calls):
        status.update(f"recording call {number + 1} of {calls}")
        module(**values, options=RunOptions(profile=True))
    module.profile().to_trace(target)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(to_host(result) for result in (results if isinstance(results, tuple) else (results,)))


def _summary(value: Any) -> tuple[str, str, str, str]:
    if not isinstance(value, np.ndarray):
        return (f"{type(value).__name__} of {len(value)}" if isinstance(value, list) else str(value), "", "", "")
    kind = f"{value.dtype}{list(value.shape)}"
    if value.size == 0 or value.dtype.kind not in "fiub":
        return (kind, "", "", "")
    return (kind, f"{value.min():.6g}", f"{value.mean():.6g}", f"{value.max():.6g}")


def _save(outputs: Mapping[str, Any], target: Path) -> None:
    """Write all outputs or none."""
    arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype != object}
    if len(arrays) != len(outputs):
        raise InputError(f"only tensors of numbers can be saved; not: {', '.join(sorted(set(outputs) - set(arrays)))}")
    replace_file(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # the stub takes the names for its own option


def _why_no_reference(function: Function, error: PlanError | EngineError) -> str:
    """Return why the reference engine does not run the model, and what else can be compared with."""
    if not isinstance(error, PlanError) or not error.nodes:
        return f"there is no reference, {error}"
    operators = ", ".join(sorted({function.node(name).op for name in error.nodes if name in {n.name for n in function.nodes}}))
    return (
        f"the reference engine does not take {operators or f'{len(error.nodes)} nodes'}. Write what such an operator computes "
        "into the model, as a function of it, or compare two engines by what each saves: xrt run MODEL -e ENGINE -o FILE"
    )


def _verify(function: Function, values: Mapping[str, Any], results: Sequence[Any]) -> int:
    try:
        with WorkStatus("running the reference"):
            expected = _as_tuple(XRTModule(function, engine=REFERENCE, strict=True)(**values))
    except (PlanError, EngineError) as error:
        out.print(f"not verified: {_why_no_reference(function, error)}", markup=False)
        return 0
    differs = 0
    for value, mine, reference in zip(function.outputs, results, expected, strict=True):
        tolerance = tolerance_for(reference.dtype, "network") if isinstance(reference, np.ndarray) else None
        comparison = compare(mine, reference, tolerance, name=value.name)
        agrees = f"{value.name} agrees with the reference; largest difference {comparison.absolute:.3g}"
        out.print(comparison.message or agrees, markup=False)
        differs |= not comparison
    return int(differs)


@click.command("verify")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("--outputs-only", is_flag=True, help="Do not compare values inside regions")
@add_json
def verify_command(model: str, files: tuple[str, ...], seed: int, outputs_only: bool, as_json: bool, **params: Any) -> int:
    """Compare each region of MODEL, and each value inside, with the reference engine; exit code 1 where one differs.

    MODEL is an ONNX file, a bundle or a shipped model.
    """
    function, made = open_model(model, params)
    values = all_inputs(files, function, seed)
    status = WorkStatus("verifying")
    progress = lambda done, count: status.update(f"verifying region {done}/{count}")  # noqa: E731  # called once per region
    with made as module, status:
        verification = module.verify(**values, inner=not outputs_only, progress=progress)
    if as_json:
        out.print_json(json.dumps(verification.to_dict()))
    else:
        out.print(str(verification), markup=False, soft_wrap=True)
    return 0 if verification else 1


@click.command("inspect")
@click.argument("model")
@add_json
@click.option("--text", "as_text", is_flag=True, help="Print the whole graph as text")
def inspect_command(model: str, as_json: bool, as_text: bool) -> None:
    """Show inputs, outputs, types, opsets, operators and sizes of MODEL: an ONNX file, a bundle or a shipped model."""
    if is_bundle(model):
        _inspect_bundle(model, as_json=as_json, as_text=as_text)
        return
    function = load_with_options(model)
    verify(function)
    facts = read_model_facts(function)
    if as_text:
        out.print(str(function), markup=False)
    elif as_json:
        out.print_json(json.dumps(facts))
    else:
        _show(facts)


def _inspect_bundle(path: str, *, as_json: bool, as_text: bool) -> None:
    facts = read_bundle_facts(path)
    if as_text:
        file = BundleFile(path)
        out.print("\n".join(str(file.read_plan(program.plan)["function"]) for program in file.record.programs), markup=False)
    elif as_json:
        out.print_json(json.dumps(facts))
    else:
        show_bundle(facts)


def read_model_facts(function: Function) -> dict[str, Any]:
    """Return what there is to say of a model, as plain data."""
    operators = Counter(node.op for _, node in function.walk())
    constants = function.constants.values()
    return {
        "name": function.name,
        "opsets": {domain or "ai.onnx": version for domain, version in function.opsets.items()},
        "inputs": {value.name: str(value.type) for value in function.inputs},
        "outputs": {value.name: str(value.type) for value in function.outputs},
        "nodes": sum(operators.values()),
        "operators": dict(operators.most_common()),
        "constants": len(function.constants),
        "constant_bytes": sum(constant.nbytes for constant in constants),
        "parameters": sum(constant.array.size for constant in constants),
    }


def _show(facts: dict[str, Any]) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    out.print(f"{facts['name']}: {facts['nodes']} nodes, opset {opsets}", markup=False)
    out.print(
        f"{facts['constants']} constants, {facts['parameters']:,} elements, {human_bytes(facts['constant_bytes'])}", markup=False
    )
    rows = [(kind, name, type_) for kind in ("inputs", "outputs") for name, type_ in facts[kind].items()]
    show_table(("", "name", "type"), [(kind[:-1], name, type_) for kind, name, type_ in rows])
    show_table(("operator", "nodes"), list(facts["operators"].items()), numbers=("nodes",))


@click.command("explain")
@click.argument("model")
@module_options
@isolation_options
@input_options
@click.option("--memory", "with_memory", is_flag=True, help="Compile, and show the memory of weights, arena and engines")
@click.option("--html", type=click.Path(dir_okay=False), help="Write a page with the plan as pictures")
@add_json
@click.option("-v", "--verbose", is_flag=True, help="Also show what engines do on special values, and engines left out by auto")
def explain_command(
    model: str,
    files: tuple[str, ...],
    seed: int,
    with_memory: bool,
    html: str | None,
    as_json: bool,
    verbose: bool,
    **params: Any,
) -> None:
    """Show how MODEL, an ONNX file, a bundle or a shipped model, is divided.

    The output has the regions in order, with sizes and boundaries, and the reason for each node that is not on the first
    engine. For a plan that was chosen by measurement (-e auto) it also has the costs of regions and boundaries, the plans that
    lost, and the operators whose support would save most.
    """
    if html is not None:
        check_writable(Path(html))
    function, module = open_model(model, params)
    is_measured = not is_bundle(model) and is_auto(module_keywords(params)["engine"])
    if is_measured:
        check_sizes(set_shapes(function, from_files(files, function)))
    if (files and not is_bundle(model)) or is_measured:
        module.plan_for(**all_inputs(files, function, seed))
    if with_memory:
        module.compile()
    explanation = module.explain()
    if html is not None:
        page = render_explanation_page(explanation, model).encode()
        replace_file(Path(html), lambda file: file.write(page))
    if as_json:
        out.print_json(json.dumps(explanation.to_dict() | ({"memory": module.memory().to_dict()} if with_memory else {})))
        return
    out.print(replace(explanation, account=None).describe(deviations=verbose, left_out=verbose), markup=False)
    if explanation.account is not None:
        show_explain(explanation.account)
    if with_memory:
        out.print(f"memory:\n{module.memory()}", markup=False, soft_wrap=True)


def show_explain(account: CostReport) -> None:
    """Print what the parts of a chosen plan cost, as tables."""
    if account.parts:
        out.print(describe_prediction(account), markup=False)
        rows = [
            (x.name, x.engine, x.nodes, format_seconds(x.predicted), x.source, format_seconds(x.measured)) for x in account.parts
        ]
        columns = ("region", "engine", "nodes", "predicted", "known", "took")
        show_table(columns, rows, numbers=("nodes", "predicted", "took"), whole=("region", "known"))
    if account.boundaries:
        crossing = [(x.value, x.source, x.target, human_bytes(x.bytes), format_seconds(x.seconds)) for x in account.boundaries]
        show_table(("value", "from", "to", "size", "costs"), crossing, numbers=("size", "costs"))
    if account.unlocks:
        out.print("what would unlock the graph, by the prediction:", markup=False)
        gains = [(x.operator, x.engine, x.nodes, format_seconds(x.seconds)) for x in account.unlocks]
        show_table(("operator", "engine", "nodes", "saves"), gains, numbers=("nodes", "saves"))


@click.command("compile")
@click.argument("model")
@module_options
@isolation_options
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="The bundle [default: MODEL.xrt here]")
@click.option("-v", "--verbose", is_flag=True, help="Also show what engines do on special values, and engines left out by auto")
def compile_command(model: str, target: str | None, verbose: bool, **params: Any) -> None:
    """Compile MODEL, an ONNX file or a shipped model, run it once, and save it as a bundle: weights and compiled forms.

    --dim fixes the size of a symbolic dim: the bundle accepts that size alone. If you give a name more than once, its dim stays
    symbolic and all combinations are compiled (--dim batch=4 --dim tokens=16 --dim tokens=128). Without --dim, the model is
    compiled for every size where all engines can do that, otherwise for 1. For other sizes of symbolic dims, the bundle
    compiles when it meets them. With --lock the sizes are those of the lock, and so is the plan: a lock that does not hold is an
    error.
    """
    path = Path(target) if target else Path(f"{Path(model).stem}.xrt")
    check_writable(path)
    function = load_with_options(model)
    settle_batch(function, params)
    choices = parse_choices(params["dims"])
    fixed = {name: sizes[0] for name, sizes in choices.items() if len(sizes) == 1}
    keywords = module_keywords(params)
    if (lock := params["lock"]) is not None:
        if len(fixed) < len(choices):
            raise OptionError("a lock is for one size of each dim; give each --dim once, or leave --lock out")
        fixed = add_locked_dims(model, function, fixed, lock)
        # A bundle is shipped: it has the plan of the lock, or there is no bundle.
        keywords["lock"] = LockedPlacement(read_lock(lock), repr(lock), must_hold=True)
    function = set_dims(function, fixed)
    sizes = list(_combinations(function, {name: several for name, several in choices.items() if name not in fixed}))
    examples = [sample_inputs(set_dims(function, chosen)) for chosen in sizes]
    began = perf_counter()
    status = WorkStatus("compiling")
    with XRTModule(function, **keywords, cache=CompileCache(disk=default_cache().disk, max_bytes=NO_LIMIT)) as module, status:
        is_open = _compile(module, examples)
        module.save(path)
        explanation = module.explain().describe(deviations=verbose, left_out=verbose)
    out.print(explanation, markup=False)
    for line in _describe_sizes(fixed, _names(function), sizes, is_open=is_open):
        out.print(line, markup=False, soft_wrap=True)
    out.print(f"{path}: {human_bytes(path.stat().st_size)}, in {perf_counter() - began:.2f} s", markup=False)


def _compile(module: XRTModule, examples: Sequence[Mapping[str, Any]]) -> bool:
    """Compile once for every size, where the engines can, else for each of the examples; return which it was.

    The model runs on the first example, so that no bundle is written of one that cannot run.
    """
    try:
        module.compile()
        is_open = True
    except InputError:
        for values in examples:
            module.compile(**values)
        is_open = False
    module(**examples[0])
    return is_open


def _names(function: Function) -> list[str]:
    """Return the names of the extents that are open, in the order of the inputs; a ``?`` for one without a name."""
    tensors = [value.type for value in function.inputs if isinstance(value.type, TensorType)]
    dims = [dim for type_ in tensors for dim in type_.shape or () if not isinstance(dim, int)]
    return list(dict.fromkeys(dim or "?" for dim in dims))


def _combinations(function: Function, choices: Mapping[str, Sequence[int]]) -> Iterator[dict[str, int]]:
    """Yield the sizes of each program; raises OptionError for a name that no input has."""
    set_dims(function, {name: sizes[0] for name, sizes in choices.items()})
    for sizes in product(*choices.values()):
        yield dict(zip(choices, sizes, strict=True))


def _describe_sizes(
    fixed: Mapping[str, int], names: Sequence[str], sizes: Sequence[Mapping[str, int]], *, is_open: bool
) -> Iterator[str]:
    """Yield lines that say which sizes the bundle takes, and for which it has a program."""
    if fixed:
        yield f"fixed at {_spell(fixed)}: an input of another size is an error"
    if names and is_open:
        yield f"compiled once for every size of {', '.join(names)}, which its engines leave open"
    elif names:
        listed = "; ".join(_spell({name: chosen.get(name, 1) for name in names}) for chosen in sizes)
        absent = [name for name in names if name not in sizes[0]]
        hint = f" ({', '.join(absent)} as no --dim says otherwise)" if absent else ""
        yield f"compiled for {listed}{hint}; for other sizes the bundle compiles when it meets them"


def _spell(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={size}" for name, size in sizes.items())
