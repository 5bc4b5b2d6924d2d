"""``xrt run``, ``verify``, ``inspect``, ``explain``, ``compile`` and ``quantize``: one model on files or random inputs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast, get_args

import click
import numpy as np

from xrt import passes
from xrt.bench.targets import from_files, set_dims, set_shapes
from xrt.cache import CompileCache, default_cache
from xrt.cli import inputs, options
from xrt.cli.screen import print_facts, print_json, print_lines, show_status, show_table
from xrt.comparison import compare
from xrt.engines import RunOptions, split_specs
from xrt.engines.contract import registry
from xrt.engines.toolkit.reference_evaluator import REFERENCE
from xrt.errors import EngineError, InputError, OptionError, PlanError, XRTError
from xrt.formats import onnx
from xrt.formats.bundle import BundleFile, is_bundle
from xrt.formats.calibration_table import CalibrationTable
from xrt.formats.output import replace_file
from xrt.formats.placement_file import ServingConfiguration
from xrt.graph import Function
from xrt.graph.verify import verify
from xrt.html.views import format_bytes, format_count
from xrt.measure.timing import measure_call, time_call
from xrt.module import ModuleOptions, XRTModule
from xrt.module.bundle import SELF_TEST_SECTION
from xrt.module.dispatch import NO_LIMIT
from xrt.module.engines import is_auto
from xrt.module.explain import render_explanation_page
from xrt.module.lockfile import LockedPlacement
from xrt.module.programs import optimize
from xrt.module.tuning import read_serving
from xrt.passes.quantize import QuantizationOptions, quantize, quantize_weights, why_not_quantized
from xrt.passes.quantize.form import prepare_for_quantization
from xrt.placement.records import read_lock
from xrt.placement.report import format_error
from xrt.placement.result import describe_plan
from xrt.placement.sizes import format_sizes, list_open_axes
from xrt.precision import ErrorBudget, byte_sums
from xrt.precision.budget import Measure
from xrt.precision.collectors import METHODS
from xrt.runtime import to_host
from xrt.verify.comparison import find_tolerance
from xrt.verify.regions import find_plan_precision

if TYPE_CHECKING:
    from xrt.formats.placement_file import PrecisionRecord
    from xrt.formats.program_record import StoredProgram


add_verbose = click.option(
    "-v", "--verbose", is_flag=True, help="Also show what engines do on special values, and engines left out by auto"
)


@click.command("run")
@options.run_options
@click.option("-o", "--output", "target", type=options.TARGET, help="Save the outputs as .npz")
@options.option("--repeat", default=1, type=click.IntRange(1), help="Number of runs; the median time is shown")
@click.option("--trace", type=options.TARGET, help="Save a timeline of as many more runs, for Perfetto")
@options.derive(ModuleOptions, "dump_subgraph_dir", "--dump", "dump_subgraph_dir", type=options.FOLDER)
@options.derive(ModuleOptions, "check", type=options.CHECK)
@click.option("--verify", "verified", is_flag=True, help="Compare the outputs with the reference engine")
def run_command(model: str, target: Path | None, repeat: int, trace: Path | None, verified: bool, **params: Any) -> int:
    """Run MODEL: an ONNX file, a bundle or a shipped model (squeezenet, 'bert{layers=2}').

    The exit code is 1 when --verify finds a difference.
    """
    function, module, values = inputs.open_with_inputs(model, params)
    with module:
        results, first = time_call(lambda: _as_tuple(module(**values)))
        seconds = statistics.median(measure_call(partial(module, **values)) for _ in range(repeat))
        plan, build = module.plan, module.specialization
        threads = format_count(module.threads, "thread")
        precision = find_plan_precision(plan, build.engines.by_spec, build.engines.context) if verified else "fp32"
        record = None if build.tuned is None else build.tuned.precision
        if record is not None and record.form is not None:
            precision = "int8"
        if trace is not None:
            # Recorded after the timed calls: recording takes time, and on a device it waits for each region.
            for _ in range(repeat):
                module(**values, options=RunOptions(profile=True))
            module.profile().to_trace(trace)
    title = describe_plan(plan)
    if params["engine"] is None and not is_bundle(model):
        title += " (default engine)"
    regions = format_count(len(plan.launches), "region")
    print_lines(f"{title}: {regions} on {threads}; first call {first:.3f} s, then {1e3 * seconds:.3f} ms")
    outputs = dict(zip((v.name for v in function.outputs), results, strict=True))
    show_table(("output", "type", "smallest", "mean", "largest"), [(name, *_summarize(value)) for name, value in outputs.items()])
    if trace is not None:
        print_lines(f"{trace}: a timeline of {format_count(repeat, 'call')}; open it in ui.perfetto.dev or chrome://tracing")
    if target is not None:
        # Strings are object arrays, which numpy.savez would pickle.
        arrays = {name: value for name, value in outputs.items() if isinstance(value, np.ndarray) and value.dtype != object}
        if len(arrays) != len(outputs):
            raise InputError(f"only tensors of numbers can be saved; not: {', '.join(sorted(set(outputs) - set(arrays)))}")
        replace_file(target, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]  # the stub takes the names for its own option
    return _verify(function, values, results, precision, record) if verified else 0


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return tuple(to_host(result) for result in (results if isinstance(results, tuple) else (results,)))


def _summarize(value: Any) -> tuple[str, ...]:
    if isinstance(value, list):
        return f"list of {len(value)}", "", "", ""
    if not isinstance(value, np.ndarray):
        return str(value), "", "", ""
    type_ = f"{value.dtype}{list(value.shape)}"
    if not value.size or value.dtype.kind not in "fiub":
        return type_, "", "", ""
    return type_, f"{value.min():.6g}", f"{value.mean():.6g}", f"{value.max():.6g}"


def _verify(
    function: Function, values: Mapping[str, Any], results: Sequence[Any], precision: str, record: PrecisionRecord | None
) -> int:
    """Print how each output compares with the reference engine's; return the exit code.

    ``precision``, the one of the plan, sets the tolerance. ``record`` has the error budget of the plan, if there is one: results
    outside the tolerance agree if their error is within the budget.
    """
    try:
        with show_status("running the reference"):
            expected = _as_tuple(XRTModule(function, engine=REFERENCE, strict=True)(**values))
    except (PlanError, EngineError) as error:
        unsupported = error.nodes if isinstance(error, PlanError) else ()
        operators = ", ".join(sorted({node.op for node in function.nodes if node.name in unsupported}))
        advice = (
            f"the reference engine does not take {operators or f'{len(unsupported)} nodes'}. "
            "Write what such an operator computes into the model, as a function of it, "
            "or compare two engines by what each saves: xrt run MODEL -e ENGINE -o FILE"
        )
        print_lines(f"not verified: {advice if unsupported else f'there is no reference, {error}'}")
        return 0  # exit code 1 means a difference, and none was found
    has_difference = False
    lines = []
    in_precision = f" in {precision}" if precision != "fp32" else ""
    for value, actual, reference in zip(function.outputs, results, expected, strict=True):
        comparison = compare(actual, reference, find_tolerance(reference, precision), name=value.name)
        agreement = f"{value.name} agrees{in_precision} with the reference; largest difference {comparison.absolute:.3g}"
        lines.append(comparison.message or agreement)
        if not comparison:
            has_difference = True
    if has_difference and record is not None and record.precision != "fp32" and record.measure in get_args(Measure):
        budget = ErrorBudget(record.limit, cast("Measure", record.measure))
        measured = budget.measure_error([expected], [results], []).error
        if measured <= budget.limit:
            has_difference = False
            lines = [f"agrees with the reference within the error budget: {format_error(measured, budget.name)} of {budget}"]
    print_lines(*lines)
    return int(has_difference)


@click.command("verify")
@options.run_options
@click.option("--outputs-only", is_flag=True, help="Do not compare values inside regions")
@options.add_json
def verify_command(model: str, outputs_only: bool, as_json: bool, **params: Any) -> int:
    """Compare each region of MODEL, and each value inside, with the reference engine; exit code 1 if one differs.

    MODEL is an ONNX file, a bundle or a shipped model.
    """
    _, module, values = inputs.open_with_inputs(model, params)
    with module, show_status("verifying") as status:
        verification = module.verify(
            **values,
            inner=not outputs_only,
            progress=lambda done, count: status.update(f"verifying region {done}/{count}"),
        )
    print_facts(as_json, verification.to_dict(), str(verification))
    return 0 if verification else 1


@click.command("inspect")
@click.argument("model")
@options.add_json
@click.option("--text", "as_text", is_flag=True, help="Print the whole graph as text")
def inspect_command(model: str, as_json: bool, as_text: bool) -> None:
    """Show inputs, outputs, types, opsets, operators and sizes of MODEL: an ONNX file, a bundle or a shipped model."""
    if is_bundle(model):
        # The graphs of a bundle are in its plans, one per program, and are read only to be printed.
        file = BundleFile(model)
        functions = [file.read_plan(program.plan)["function"] for program in file.record.programs] if as_text else []
        facts, show = _read_bundle(file), _show_bundle
    else:
        function = inputs.load_with_options(model)
        verify(function)
        functions = [function]
        facts, show = _read_model(function), _show_model
    if as_text:
        print_lines(*map(str, functions))
    elif as_json:
        print_json(facts)
    else:
        show(facts)


def _read_model(function: Function) -> dict[str, Any]:
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


def _show_model(facts: Mapping[str, Any]) -> None:
    opsets = ", ".join(f"{domain} {version}" for domain, version in facts["opsets"].items())
    weights = f"{facts['parameters']:,} elements, {format_bytes(facts['constant_bytes'])}"
    print_lines(f"{facts['name']}: {facts['nodes']} nodes, opset {opsets}", f"{facts['constants']} constants, {weights}")
    _show_inputs_and_outputs(facts)
    show_table(("operator", "nodes"), list(facts["operators"].items()), numbers=("nodes",))


def _show_inputs_and_outputs(facts: Mapping[str, Any]) -> None:
    rows = [("input", name, type_) for name, type_ in facts["inputs"].items()]
    rows += [("output", name, type_) for name, type_ in facts["outputs"].items()]
    show_table(("", "name", "type"), rows)


def _read_bundle(file: BundleFile) -> dict[str, Any]:
    record, serving = file.record, read_serving(file)
    facts = record.facts
    return {
        "writer": f"xrt {facts['writer']}",
        "model": "an ONNX model or Function" if facts["model"] else "traces of a graph",
        "engines": {engine["spec"]: engine["version"] for engine in facts["engines"]},
        "device": facts["device"],
        "inputs": {value.name: str(value.type or "?") for value in record.inputs},
        "outputs": {value.name: str(value.type or "?") for value in record.outputs},
        "self_test": SELF_TEST_SECTION in file.sections,
        "programs": [_read_program(program, file) for program in record.programs],
        "bytes": file.section_bytes,
        **({} if serving is None else {"serving": serving.replace(rows=()).to_dict()}),
    }


def _read_program(program: StoredProgram, file: BundleFile) -> dict[str, Any]:
    regions = [
        {
            "name": launch["name"],
            "engine": launch["engine"],
            "nodes": len(launch["nodes"]),
            "compiled": bool(form.section),
            "machine": dict(form.ingredients).get("machine", ""),
            "reason": form.reason,
        }
        for launch, form in zip(file.read_plan(program.plan)["launches"], program.compiled, strict=False)
    ]
    return {"inputs": {value.name: str(value.type) for value in program.inputs}, "fetch": list(program.fetch), "regions": regions}


def _show_bundle(facts: Mapping[str, Any]) -> None:
    total, weights = format_bytes(sum(facts["bytes"].values())), format_bytes(facts["bytes"]["weights"])
    print_lines(f"a bundle of {facts['writer']}: {facts['model']}, for {facts['device']}; {total}, weights {weights}")
    _show_inputs_and_outputs(facts)
    show_table(("engine", "version"), list(facts["engines"].items()))
    rows = []
    for program in facts["programs"]:
        input_types = ", ".join(program["inputs"].values())
        for region in program["regions"]:
            compiled = "yes" if region["compiled"] else region["reason"]
            rows.append((input_types, region["name"], region["engine"], region["nodes"], compiled))
    show_table(("program", "region", "engine", "nodes", "compiled form"), rows, numbers=("nodes",))
    if "serving" in facts:
        print_lines(f"tuned for throughput: {ServingConfiguration(**facts['serving'])}")


@click.command("explain")
@options.run_options
@click.option("--memory", "with_memory", is_flag=True, help="Compile, and show the memory of weights, arena and engines")
@options.add_html
@options.add_json
@add_verbose
def explain_command(model: str, with_memory: bool, html: Path | None, as_json: bool, verbose: bool, **params: Any) -> None:
    """Show how MODEL, an ONNX file, a bundle or a shipped model, is divided.

    The output has the regions in order, with sizes and boundaries, and the reason for each node that is not on the first
    engine. For a plan that was chosen by measurement (-e auto) it also has the costs of regions and the plans that
    lost.
    """
    function, module = inputs.open_model(model, params)
    files = params["files"]
    with module:
        # Measuring needs inputs, and sizes of input files select the specialization. The plans of a bundle are stored.
        if not is_bundle(model):
            is_measured = is_auto(options.module_keywords(params)["engine"])
            if is_measured:
                options.check_sizes(set_shapes(function, from_files(files, function)))
            if files or is_measured:
                module.plan_for(**inputs.all_inputs(files, function, params["seed"]))
        if with_memory:
            module.compile()
        explanation = module.explain()
        memory = module.memory() if with_memory else None
    options.write_page(html, lambda: render_explanation_page(explanation, model))
    if as_json:
        print_json(explanation.to_dict() | ({} if memory is None else {"memory": memory.to_dict()}))
        return
    print_lines(explanation.describe(deviations=verbose, left_out=verbose))
    if memory is not None:
        print_lines(f"memory:\n{memory}")


@click.command("compile")
@options.run_options
@click.option("-o", "--output", "target", type=options.TARGET, help="The bundle [default: MODEL.xrt here]")
@add_verbose
def compile_command(model: str, target: Path | None, verbose: bool, **params: Any) -> None:
    """Compile MODEL, an ONNX file or a shipped model, run it once, and save it as a bundle: weights and compiled forms.

    --dim fixes the size of a symbolic dim: the bundle accepts that size alone. If you give a name more than once, its dim stays
    symbolic and all combinations are compiled (--dim batch=4 --dim tokens=16 --dim tokens=128). Without --dim, the model is
    compiled for every size where all engines can do that, otherwise for 1, or for the sizes of the --input files. For other
    sizes of symbolic dims, the bundle compiles when it meets them. With --lock the sizes are those of the lock, and so is the
    plan: a lock that does not hold is an error.
    """
    path = options.choose_target(target, model, ".xrt")
    function = inputs.load_with_options(model)
    inputs.replace_batch_by_dim(function, params)
    choices = options.parse_choices(params["dims"])
    fixed = {name: sizes[0] for name, sizes in choices.items() if len(sizes) == 1}
    several = {name: sizes for name, sizes in choices.items() if len(sizes) > 1}
    keywords = options.module_keywords(params)
    if (lock := params["lock"]) is not None:
        if several:
            raise OptionError("a lock is for one size of each dim; give each --dim once, or leave --lock out")
        fixed = inputs.add_locked_dims(model, function, fixed, lock)
        # A bundle is shipped: it has the plan of the lock, or there is no bundle.
        keywords["lock"] = LockedPlacement(read_lock(lock), repr(lock), must_hold=True)
    function = set_dims(function, fixed)
    files = params["files"]
    combinations = [dict(zip(several, sizes, strict=True)) for sizes in product(*several.values())]
    examples = [inputs.all_inputs(files, set_dims(function, sizes), params["seed"]) for sizes in combinations]
    began = perf_counter()
    # A cache without a limit: otherwise early sizes could be evicted before all are saved.
    cache = CompileCache(disk=default_cache().disk, max_bytes=NO_LIMIT)
    with XRTModule(function, **keywords, cache=cache) as module:
        if files and is_auto(keywords["engine"]):
            module.plan_for(**examples[0])  # measured on these inputs instead of random ones
        try:
            module.compile()  # for all sizes of symbolic dims
            is_open = True
        except InputError:  # an engine needs the sizes
            for values in examples:
                module.compile(**values)
            is_open = False
        module(**examples[0])  # no bundle is written of a model that fails
        self_test_inputs = list(examples[0].values()) if files else []
        module.save(path, *self_test_inputs)
        explanation = module.explain().describe(deviations=verbose, left_out=verbose)
    supplied = from_files(files, function)
    axes = [(function.inputs[index].name, axis, dim) for index, axis, dim in list_open_axes(function.inputs)]
    chosen = {*several, *(dim for name, _, dim in axes if name in supplied)}
    sizes = [{dim: values[name].shape[axis] for name, axis, dim in axes} for values in examples]
    print_lines(explanation, *_describe_sizes(fixed, chosen, sizes, is_open=is_open))
    print_lines(f"{path}: {format_bytes(path.stat().st_size)}, in {perf_counter() - began:.2f} s")


def _describe_sizes(
    fixed: Mapping[str, int], chosen: Collection[str], sizes: Sequence[Mapping[str, int]], *, is_open: bool
) -> list[str]:
    """Describe the dims of a bundle: those ``fixed`` at one size, and the open ones with the ``sizes`` that have programs.

    ``chosen`` are the open dims whose size an option or a file sets. With ``is_open`` one program serves all sizes.
    """
    lines = [f"fixed at {format_sizes(fixed)}: an input of another size is an error"] if fixed else []
    names = list(sizes[0])
    if names and is_open:
        lines.append(f"compiled once for every size of {', '.join(names)}, which its engines leave open")
    elif names:
        size_list = "; ".join(map(format_sizes, sizes))
        default = [name for name in names if name not in chosen]
        hint = f" ({', '.join(default)} as no --dim says otherwise)" if default else ""
        lines.append(f"compiled for {size_list}{hint}; for other sizes the bundle compiles when it meets them")
    return lines


_PROCESSORS = {
    False: "weights of 8 bits: for this processor, x86 with VNNI, and ARM; --portable makes a file for all",
    True: "weights of 7 bits: for all processors",
}
"""Text about the processors that a quantized file is for; the key says whether its weights have 7 bits."""
_DEFAULT_ORT = "ort{config.session.x64quantprecision=0}"
"""ONNX Runtime with its default option, as in other programs: on x86 without VNNI it sums 8-bit products in 16 bits."""


@click.command("quantize")
@click.argument("model")
@click.option("-o", "--output", "target", type=options.TARGET, required=True, help="The quantized model, as ONNX")
@click.option("--data", type=click.Path(exists=True), help="Examples: FILE.npz, FILE.npy, or a folder of such files")
@options.add_choice("--method", [*METHODS], "How ranges are chosen")
@click.option("--weights-only", type=click.Choice(["int8"]), help="Store weights in this type, and compute in floating point")
@options.derive(QuantizationOptions, "include", multiple=True, metavar="PATTERN")
@options.derive(QuantizationOptions, "exclude", multiple=True, metavar="PATTERN")
@options.add_choice("--activations", ["uint8", "int8"], "Type of values")
@click.option("--per-tensor", is_flag=True, help="One scale for each weight, not one per channel")
@click.option("--portable", is_flag=True, help="Weights of 7 bits: a file for all processors, x86 without VNNI too")
@click.option("--table", "table_file", type=click.Path(dir_okay=False), help="Ranges from this calibration table")
@click.option("--save-table", type=options.TARGET, help="Write the calibration table")
@options.add_engines("Engines that calibrate and measure, first choice first: tvm,ort")
@options.add_dims
def quantize_command(model: str, target: Path, table_file: str | None, save_table: Path | None, **params: Any) -> None:
    """Quantize MODEL, an ONNX file or a shipped model, and write it as ONNX that any runtime reads.

    Products and convolutions are computed in 8 bits, with ranges that are measured on the examples. The error of the outputs is
    measured on the same examples.
    """
    settings, is_weight_only = _make_quantization_options(params), params["weights_only"] is not None
    function = inputs.load_with_sizes(model, params)
    if any("quantize" in node.op.lower() or "QLinear" in node.op for node in function.nodes):
        raise OptionError(f"the model {function.name!r} is quantized already: it has QuantizeLinear or operators like it")
    # Fold constants, and merge normalizations and biases into the operators before them.
    function = prepare_for_quantization(optimize(passes.infer_shapes(function), fold=True))
    batches = inputs.read_batches(Path(params["data"]), function) if params["data"] else []
    engines = split_specs(params["engine"]) if params["engine"] else params["engine"]
    with show_status("quantizing") as status:
        # A table from an earlier run replaces calibration; with --weights-only no ranges of values are needed.
        table = CalibrationTable.load(table_file) if table_file is not None and not is_weight_only else None
        if table is None and not is_weight_only:
            if not batches:
                raise InputError("ranges are measured on examples: pass --data, a --table, or --weights-only for weights alone")
            status.update(f"calibrating on {len(batches)} batches")
            with XRTModule(function, engines, cache=CompileCache()) as module:
                table = module.calibrate(batches, params["method"])
        if save_table and table is not None:
            table.save(save_table)
        count = sum(why_not_quantized(node, function, settings) is None for node in function.nodes)
        if not count:
            raise OptionError("nothing of the model is quantized: no node of the patterns has constant weights of float32")
        quantized = quantize_weights(function, settings) if table is None else quantize(function, table, settings)
        if batches:
            status.update("measuring the error")
            expected = _run_batches(function, engines, batches)
            actual = _run_batches(quantized, engines, batches)
            error = ErrorBudget(1.0).measure_error(expected, actual, batches).error
        onnx.save(quantized, target)
    print_lines(f"quantized {format_count(count, 'node')} with weights")
    if batches:
        where = "on the examples" if is_weight_only else "on the examples that were calibrated on"
        print_lines(f"largest relative error of an output: {error:.3%}, {where}")
    if not is_weight_only:
        print_lines(_PROCESSORS[settings.reduce_range])
    print_lines(f"{target}: {format_bytes(target.stat().st_size)}")


def _make_quantization_options(params: Mapping[str, Any]) -> QuantizationOptions:
    """Make the options of quantization. Without ``--portable``, a run of ONNX Runtime decides between weights of 7 and 8 bits."""
    patterns: dict[str, Any] = {"include": params["include"]} if params["include"] else {}
    # Sums of 8-bit products saturate on x86 without VNNI, except with weights of 7 bits. Weight-only quantization multiplies in
    # float32, so it cannot overflow.
    needs_7_bits = not params["weights_only"]
    if needs_7_bits and not params["portable"]:
        with suppress(XRTError):  # without ONNX Runtime this processor cannot be tested: keep the portable 7 bits
            needs_7_bits = not byte_sums.sums_bytes_exactly(registry.create(_DEFAULT_ORT))
    return QuantizationOptions(
        **patterns,
        exclude=params["exclude"],
        activations=params["activations"],
        per_channel=not params["per_tensor"],
        reduce_range=needs_7_bits,
    )


def _run_batches(
    function: Function, engines: Sequence[str] | None, batches: Sequence[Mapping[str, Any]]
) -> list[tuple[Any, ...]]:
    with XRTModule(function, engines, cache=CompileCache()) as module:
        return [_as_tuple(module(**batch)) for batch in batches]
