"""The options of a module about precision: names, lists of names, constraints on nodes, examples, the budget."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from xrt.engines.contract.options import LOWER_PRECISIONS, Precision
from xrt.errors import OptionError, did_you_mean

if TYPE_CHECKING:
    from xrt.formats.calibration_table import CalibrationTable
    from xrt.graph import NodePattern
    from xrt.module.model_source import ModelSource
    from xrt.module.options import ModuleOptions
    from xrt.precision import ErrorBudget
    from xrt.precision.lowering import LoweringWithinBudget

__all__ = [
    "NO_CHOICE",
    "PrecisionChoice",
    "apply_constraints",
    "load_table",
    "make_module_lowering",
    "override_budget",
    "parse_precision",
    "read_budget",
    "read_precision_options",
]


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
    precision = out.pop("precision", None)
    choice = parse_precision(precision) if precision is not None else NO_CHOICE
    has_budget = out.get("max_error") is not None
    if (table := load_table(out.get("calibrate"))) is not None:
        del out["calibrate"]
        choice = replace(choice, table=table)
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
            "int8 needs the ranges of the model's values: pass calibrate=, a list of batches or the path of a table that "
            "m.calibrate(batches).save(path) has written"
        )
    if has_data and not choice.is_quantized:
        raise OptionError("calibrate= is for int8; pass precision='int8' too, or max_error= with engine='auto'")
    if choice.exact_nodes and not choice.names:
        raise OptionError("a constraint on precision keeps nodes from a lower one, and none is named; add one, such as 'bf16'")


def read_budget(given: Any) -> ErrorBudget | None:
    """Return the error budget that a caller gave; raises OptionError for what is none."""
    if given is None:
        return None
    from xrt.precision.budget import parse_budget  # for those alone who allow an error

    return parse_budget(given)


def load_table(calibrate: Any) -> CalibrationTable | None:
    """The calibration table that ``calibrate`` is, or is the path of; None for batches."""
    if calibrate is None or isinstance(calibrate, list | tuple):
        return None

    from xrt.formats.calibration_table import CalibrationTable

    if isinstance(calibrate, CalibrationTable):
        return calibrate
    return CalibrationTable.load(calibrate) if isinstance(calibrate, str | os.PathLike) else None


def apply_constraints(engine: Any, settings: ModuleOptions) -> tuple[Any, ModuleOptions]:
    """Return the engines and options that keep the nodes of constraints in float32, where others are to be in bf16 or fp16."""
    choice = settings.choice
    if not choice.exact_nodes or choice.is_quantized or settings.max_error is not None:
        return engine, settings

    from xrt.module.precision import keep_nodes_exact  # slow to import, and rarely needed

    return keep_nodes_exact(engine, settings)


def make_module_lowering(settings: ModuleOptions, source: ModelSource) -> LoweringWithinBudget | None:
    """Return what finds plans within the error budget of a module; None where it has none."""
    if settings.max_error is None:
        return None

    from xrt.module.precision import make_lowering  # slow to import, and rarely needed

    return make_lowering(settings, source)


def override_budget(settings: ModuleOptions, max_error: Any, calibrate: Any, validate: Any) -> ModuleOptions:
    """Return the settings with what a search was given in place of the module's; raises OptionError for data without a budget."""
    if max_error is None and settings.max_error is None:
        raise OptionError("calibrate= and validate= have examples for an error budget; pass max_error= too")
    table = load_table(calibrate)
    return replace(
        settings,
        max_error=settings.max_error if max_error is None else read_budget(max_error),
        calibrate=settings.calibrate if calibrate is None or table is not None else calibrate,
        validate=settings.validate if validate is None else validate,
        choice=replace(settings.choice, names=settings.choice.names or WITHIN_BUDGET, table=table or settings.choice.table),
    )
