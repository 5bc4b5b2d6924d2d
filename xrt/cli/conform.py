"""``xrt conform``: the node tests of the installed onnx package on an engine or a mixture."""

from __future__ import annotations

import json

import click
from rich.text import Text

from xrt.cli.options import split_specs
from xrt.cli.screen import out, progress, show_table
from xrt.testing import conformance

__all__ = ["command"]
