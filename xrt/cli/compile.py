"""``xrt compile``: a model into a bundle, which `xrt.load` and ``xrt run`` take without compiling."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Any

import click

from xrt.cli.explain import with_dims
from xrt.cli.options import check_writable, dims_of, isolation_options, loaded, module_keywords, module_options
from xrt.cli.screen import err, human_bytes, out
from xrt.errors import InputError
from xrt.models import sample_inputs
from xrt.module import XRTModule

__all__ = ["command"]


@click.command("compile")
@click.argument("model")
@module_options
@isolation_options
@click.option("--output", "-o", "target", type=click.Path(dir_okay=False), help="The bundle [default: MODEL.xrt here]")
def command(model: str, target: str | None, **given: Any) -> None:
    """Compile MODEL, an ONNX file or a shipped model, and save it as a bundle: weights and the engines' compiled forms.

    Where an engine needs every extent fixed, --dim gives those that are symbolic; without it they are 1.
    """
    path = Path(target) if target else Path(f"{Path(model).stem}.xrt")
    check_writable(path)
    function = with_dims(loaded(model), dims_of(given["dims"]))
    began = perf_counter()
    status = err.status("compiling")
    with XRTModule(function, **module_keywords(given), report=status.update) as module, status:
        try:
            module.compile()
        except InputError:
            module.compile(**sample_inputs(function))
        module.save(path)
        told = str(module.explain())
    out.print(told, markup=False)
    out.print(f"{path}: {human_bytes(path.stat().st_size)}, in {perf_counter() - began:.2f} s", markup=False)
