"""A module's part in lower precision: the examples that it is given, int8 without a budget, and engines that compute so."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from xrt.cache import CompileCache
from xrt.engines.contract import registry
from xrt.engines.contract.options import LOWER_PRECISIONS, Precision
from xrt.errors import CalibrationError, OptionError, did_you_mean
from xrt.partition.options import Pin
from xrt.placement.byte_sums import needs_reduced_range
from xrt.placement.engine_list import is_auto
from xrt.placement.lockfile import QuantizedForm, fit_table, list_quantizable_nodes, prepare_for_quantization
from xrt.precision.examples import read_examples
from xrt.precision.lowering import LoweringWithinBudget
from xrt.precision.terms import PrecisionTerms

if TYPE_CHECKING:
    from xrt.engines import GraphCompiler
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import Function, Node, NodePattern
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.placement.engine_list import EngineList
    from xrt.precision import ErrorBudget

__all__ = [
    "NO_CHOICE",
    "PrecisionChoice",
    "apply_constraints",
    "keep_nodes_exact",
    "lower_engines",
    "make_lowering",
    "make_module_lowering",
    "measure_ranges",
    "override_budget",
    "parse_precision",
    "quantize_as_asked",
    "read_budget",
    "read_precision_options",
]


def make_lowering(settings: ModuleOptions, source: ModelSource) -> LoweringWithinBudget | None:
    """Return what finds plans within the module's error budget; None where it has none.

    Raises CalibrationError or InputError for examples that do not serve, OptionError where there are none.
    """
    budget, inputs = settings.max_error, source.inputs
    if budget is None:
        return None
    if settings.lock is not None and settings.calibrate is None and settings.validate is None:
        return None  # the lock has its own evidence; where it does not hold, nothing is lowered
    calibrate = read_examples(settings.calibrate, "calibrate", inputs, budget)
    validate = read_examples(settings.validate, "validate", inputs, budget)
    if not calibrate.items and not validate.items:
        raise OptionError(
            "max_error= is kept by measuring the outputs on examples: pass validate=, a list of batches, and calibrate=, a list "
            "of others, for int8"
        )
    if not validate.items:
        if len(calibrate) < 3:
            raise CalibrationError(
                f"calibrate= has {len(calibrate)} batch{'es' * (len(calibrate) != 1)}, and the error is measured on two or more "
                "that nothing is calibrated on; pass validate= too, or more batches"
            )
        calibrate, validate = calibrate.split()
    if len(validate) < 2 and all(array.shape[:1] in ((), (1,)) for array in validate.items[0].values):
        raise CalibrationError("validate= has one batch, and the interval of an error needs two examples or more; pass more")
    if calibrate.items and calibrate.digest == validate.digest:
        raise CalibrationError("validate= has the batches of calibrate=; the error must be measured on others")
    choice = settings.choice
    return LoweringWithinBudget(
        PrecisionTerms(
            budget,
            validate,
            calibrate,
            choice.names,
            choice.exact_nodes,
            settings.execution.strict_types,
            choice.table,
            None if source.is_traced else source.get_declared_function,
            tuple(inputs),
        )
    )


# ---------------------------------------------------------------------- without a budget


def lower_engines(engines: Sequence[GraphCompiler]) -> list[GraphCompiler]:
    """Return the engines as they compute a quantized model, those that do it in integers so."""
    return [one.lower_precision("int8") or one for one in engines]


def keep_nodes_exact(engine: Any, settings: ModuleOptions) -> tuple[list[GraphCompiler], ModuleOptions]:
    """Return the engines in bf16 or fp16, each before itself, and options that keep the nodes of constraints from the former.

    Raises OptionError where no engine of the list computes in the precision.
    """
    if is_auto(engine):
        raise OptionError("a constraint on precision with engine='auto' needs an error budget; pass max_error= and validate=")
    if engine is None:
        raise OptionError("a constraint on precision is for an engine that computes in it; name one: engine='openvino'")
    name, listed = cast("Precision", settings.choice.names[0]), engine if isinstance(engine, list | tuple) else [engine]
    engines = [registry.create(one) for one in listed]
    lowered = {one.spec: one.lower_precision(name) for one in engines}
    if not any(lowered.values()):
        raise OptionError(f"no engine of the list computes in {name} here: {', '.join(lowered)}")
    found: list[GraphCompiler] = []
    for one in engines:
        lower = lowered[one.spec]
        found += [one] if lower is None else [lower, one]
    pins = tuple(
        Pin(pattern.patterns, lower.spec, "name" if pattern.by_name else "operator", forbid=True)
        for pattern in settings.choice.exact_nodes
        for lower in lowered.values()
        if lower is not None
    )
    return found, replace(settings, clustering=replace(settings.clustering, pins=(*settings.clustering.pins, *pins)))


def quantize_as_asked(
    function: Function, original: Function, settings: ModuleOptions, engines: Sequence[GraphCompiler]
) -> Function:
    """Return the optimized Function in its quantized form, by the table of the settings, which may be of the original.

    Weights have 7 bits where one of the engines adds products of bytes in 16 bits on this processor.

    Raises CalibrationError for a table of another model, OptionError where nothing can be quantized.
    """
    prepared = prepare_for_quantization(function)
    choice, names = settings.choice, list_quantizable_nodes(prepared)
    kept = {at for at, name in names if any(one.matches(prepared.node(name)) for one in choice.exact_nodes)}
    if len(kept) == len(names):
        raise OptionError(
            f"nothing of model {function.name!r} is quantized: no product or convolution has constant weights of float32"
            if not names
            else f"nothing of model {function.name!r} is quantized: the constraints keep all {len(names)} nodes in float32"
        )
    if settings.execution.strict_types and (
        floats := [node.name for node in prepared.nodes if _is_float_product(node, names, kept)]
    ):
        raise OptionError(
            f"strict_types=True: {len(floats)} of the products and convolutions of model {function.name!r} would stay in "
            f"float32, first {floats[0]!r}; leave strict_types out to allow that"
        )
    assert choice.table is not None  # the module has measured it, where none was given
    table = fit_table(choice.table, prepared, original)
    return QuantizedForm(table, frozenset(kept), reduce_range=needs_reduced_range(engines)).apply(prepared)


def _is_float_product(node: Node, quantizable: Sequence[tuple[int, str]], kept: set[int]) -> bool:
    """Whether a product or convolution stays in float32."""
    quantized = {name for at, name in quantizable if at not in kept}
    return node.op in ("Conv", "ConvTranspose", "Gemm", "MatMul") and node.name not in quantized


def measure_ranges(declared: Function, settings: ModuleOptions, engines: EngineList) -> CalibrationTable:
    """Return the ranges of the values of an optimized model over the batches that the module was given."""
    from xrt.module.module import XRTModule

    prepared = prepare_for_quantization(declared)

    names = [engine for engine in engines.engines if engine.spec != engines.implicit]
    with XRTModule(prepared, names, cache=CompileCache()) as module:
        return module.calibrate(settings.calibrate)


ModulePrecision: TypeAlias = Precision | Literal["int4"]
"""Within an error budget, weights alone may have 4 bits."""
WITHIN_BUDGET: tuple[ModulePrecision, ...] = (*LOWER_PRECISIONS, "int4")


@dataclass(frozen=True, slots=True)
class PrecisionChoice:
    """Which precisions a caller allows, and where."""

    names: tuple[ModulePrecision, ...] = ()
    """The lower precisions; empty where none was named."""
    exact_nodes: tuple[NodePattern, ...] = ()
    """Nodes that stay in float32."""
    table: CalibrationTable | None = None
    """Ranges for int8, where they need not be measured."""

    @property
    def is_quantized(self) -> bool:
        """Whether the caller wants int8 and no other lower precision."""
        return self.names == ("int8",)


NO_CHOICE = PrecisionChoice()


def parse_precision(given: Any) -> PrecisionChoice:
    """Return what ``precision=`` says: a name, constraints such as ``"Softmax|LayerNormalization=fp32"``, or a list of these."""
    from xrt.graph import NodePattern

    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(one, str) for one in texts):
        raise OptionError(f"precision is a name, a constraint such as 'Softmax=fp32', or a list of these; got {given!r}")
    names: list[Any] = []
    patterns = []
    for text in texts:
        before, equals, name = text.rpartition("=")
        _check_name(name.strip() if equals else text)
        if not equals:
            names.append(text)
        elif name.strip() != "fp32":
            raise OptionError(
                f"the constraint {text!r} is not known: a constraint keeps nodes in fp32, as 'Softmax=fp32'; name the lower "
                f"precision without nodes: precision=[{name.strip()!r}, 'Softmax=fp32']"
            )
        else:
            patterns.append(NodePattern.parse(before))
    lower = tuple(dict.fromkeys(name for name in names if name != "fp32"))
    return PrecisionChoice(lower, tuple(patterns))


def _check_name(name: str) -> None:
    known = (*get_args(Precision), "int4")
    if name not in known:
        raise OptionError(f"precision must be one of {', '.join(known)}; got {name!r}.{did_you_mean(name, known)}")


def read_precision_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], PrecisionChoice]:
    """Return the options of an ordinary compile, and what the module itself does about precision.

    An engine is asked for bf16 or fp16 where that is all; int8, lists, constraints and budgets concern the module. Raises
    OptionError for options that contradict each other.
    """
    out = dict(options)
    given = out.pop("precision", None)
    choice = parse_precision(given) if given is not None else NO_CHOICE
    table = out.pop("calibration_table", None)
    has_budget = out.get("max_error") is not None
    if table is not None:
        choice = replace(choice, table=_load_table(table))
    if has_budget:
        return out, replace(choice, names=choice.names or WITHIN_BUDGET)
    _check_without_budget(choice, out)
    if not choice.is_quantized and choice.names and not choice.exact_nodes:
        out["precision"] = choice.names[0]
    return out, choice


def _check_without_budget(choice: PrecisionChoice, options: Mapping[str, Any]) -> None:
    if "int4" in choice.names:
        raise OptionError(
            "precision='int4' is for weights alone, within an error budget: pass engine='auto', max_error=0.01 and validate=; "
            "`xrt quantize --weights-only int4` writes a model with such weights"
        )
    if len(choice.names) > 1:
        raise OptionError(
            f"precision={list(choice.names)!r} leaves a choice, which is made by measurement within an error budget: pass "
            "engine='auto', max_error=0.01 and validate=, or name one precision"
        )
    if options.get("validate") is not None:
        raise OptionError("validate= has examples for an error budget; pass max_error= too, such as max_error=0.01")
    has_data = choice.table is not None or options.get("calibrate") is not None
    if choice.is_quantized and not has_data:
        raise OptionError(
            "int8 needs the ranges of the model's values: pass calibrate=, a list of batches, or calibration_table=, the path of "
            "a table that m.calibrate(batches).save(path) has written"
        )
    if has_data and not choice.is_quantized:
        raise OptionError(
            f"{'calibration_table' if choice.table is not None else 'calibrate'}= is for int8; pass precision='int8' too, or "
            "max_error= with engine='auto'"
        )
    if choice.exact_nodes and not choice.names:
        raise OptionError("a constraint on precision keeps nodes from a lower one, and none is named; add one, such as 'bf16'")


def read_budget(given: Any) -> ErrorBudget | None:
    """Return the error budget that a caller gave; raises OptionError for what is none."""
    if given is None:
        return None
    from xrt.precision.budget import parse_budget  # for those alone who allow an error

    return parse_budget(given)


def _load_table(given: Any) -> CalibrationTable:
    from xrt.formats.calibration_table import CalibrationTable

    if isinstance(given, CalibrationTable):
        return given
    if not isinstance(given, str | os.PathLike):
        raise OptionError(f"calibration_table is a path or an xrt.CalibrationTable; got {given!r}")
    return CalibrationTable.load(given)


def apply_constraints(engine: Any, settings: ModuleOptions) -> tuple[Any, ModuleOptions]:
    """Return the engines and options that keep the nodes of constraints in float32, where others are to be in bf16 or fp16."""
    choice = settings.choice
    if not choice.exact_nodes or choice.is_quantized or settings.max_error is not None:
        return engine, settings

    return keep_nodes_exact(engine, settings)


def make_module_lowering(settings: ModuleOptions, source: ModelSource) -> LoweringWithinBudget | None:
    """Return what finds plans within the error budget of a module; None where it has none."""
    if settings.max_error is None:
        return None

    return make_lowering(settings, source)


def override_budget(settings: ModuleOptions, max_error: Any, calibrate: Any, validate: Any) -> ModuleOptions:
    """Return the settings with what a search was given in place of the module's; raises OptionError for data without a budget."""
    if max_error is None and settings.max_error is None:
        raise OptionError("calibrate= and validate= have examples for an error budget; pass max_error= too")
    return replace(
        settings,
        max_error=settings.max_error if max_error is None else read_budget(max_error),
        calibrate=settings.calibrate if calibrate is None else calibrate,
        validate=settings.validate if validate is None else validate,
        choice=replace(settings.choice, names=settings.choice.names or WITHIN_BUDGET),
    )
