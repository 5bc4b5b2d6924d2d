"""``xrt compile``: a model into a bundle, which `xrt.load` and ``xrt run`` take without compiling."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Any

import click

from xrt.cli.options import (
    add_locked_dims,
    check_writable,
    isolation_options,
    load_with_options,
    module_keywords,
    module_options,
    parse_choices,
    set_dims,
    settle_batch,
)
from xrt.cli.screen import WorkStatus, human_bytes, out
from xrt.errors import InputError, OptionError
from xrt.graph import Function, TensorType
from xrt.models import sample_inputs
from xrt.module import XRTModule
from xrt.module.lockfile import LockedPlacement
from xrt.module.specialization_cache import NO_LIMIT
from xrt.placement.lockfile import read_lock

__all__ = ["command"]


@click.command("compile")
@click.argument("model")
@module_options
@isolation_options
@click.option("-o", "--output", "target", type=click.Path(dir_okay=False), help="The bundle [default: MODEL.xrt here]")
@click.option("--add", is_flag=True, help="Add a variant for this processor and thread budget to the bundle")
@click.option("-v", "--verbose", is_flag=True, help="Also show what engines do on special values, and engines left out by auto")
def command(model: str, target: str | None, add: bool, verbose: bool, **given: Any) -> None:
    """Compile MODEL, an ONNX file or a shipped model, run it once, and save it as a bundle: weights and compiled forms.

    --dim fixes the size of a symbolic dim: the bundle accepts that size alone. If you give a name more than once, its dim stays
    symbolic and all combinations are compiled (--dim batch=4 --dim tokens=16 --dim tokens=128). Without --dim, the model is
    compiled for every size where all engines can do that, otherwise for 1. For other sizes of symbolic dims, the bundle
    compiles when it meets them. With --lock the sizes are those of the lock, and so is the plan: a lock that does not hold is an
    error.

    A bundle may have a variant for each kind of processor and thread budget, over one set of weights: --add compiles MODEL, which
    may be the bundle itself, and adds what is made to the bundle. The one that fits is chosen when the bundle is loaded.
    """
    path = Path(target) if target else Path(f"{Path(model).stem}.xrt")
    check_writable(path)
    function = load_with_options(model)
    settle_batch(function, given)
    choices = parse_choices(given["dims"])
    fixed = {name: sizes[0] for name, sizes in choices.items() if len(sizes) == 1}
    keywords = module_keywords(given)
    if (lock := given["lock"]) is not None:
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
    with XRTModule(function, **keywords, max_specialization_bytes=NO_LIMIT) as module, status:
        is_open = _compile(module, examples)
        module.save(path, add=add)
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
