"""``xrt export-triton``: a bundle into a model repository of NVIDIA Triton."""

from __future__ import annotations

from typing import Any

import click

from xrt.cli.options import parse_wait
from xrt.cli.screen import out
from xrt.cli.serve import parse_batch

__all__ = ["command"]


@click.command("export-triton")
@click.argument("bundle")
@click.argument("repository", type=click.Path(file_okay=False))
@click.option("--name", default="", help="Name of the model  [default: that of the file]")
@click.option("--version", "version", default=1, show_default=True, type=click.IntRange(1), help="Version of the model")
@click.option("--threads", type=click.IntRange(1), help="Thread budget of each instance  [default: as tuned, or saved]")
@click.option("--instances", type=click.IntRange(1), help="Instances, each a process of Triton's  [default: as tuned, or 1]")
@click.option("--batch", callback=parse_batch, help="Rows of a batch, at most: 8; or its sizes: 1,2,4,8  [default: as tuned]")
@click.option("--max-wait", callback=parse_wait, metavar="TIME", help="How long a request waits for its batch to fill: 2ms")
def command(bundle: str, repository: str, **given: Any) -> None:
    """Write BUNDLE as a model of Triton's Python backend into the folder REPOSITORY."""
    from xrt.serve.triton_repository import export_triton

    model = export_triton(bundle, repository, **{name: value for name, value in given.items() if value is not None})
    out.print(f"{model}: config.pbtxt, {given['version']}/model.py and {given['version']}/model.xrt", markup=False)
