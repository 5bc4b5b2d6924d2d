"""Functions as text, and back: `to_text` leaves nothing out, `parse` gives an equal Function.

The form is the one that `xrt.graph.printer` describes; ``#`` begins a comment. In short, with names in quotes where they
are no plain words:

    function  = "function" name "(" values ")" "->" "(" values ")" "{" statement... "}"
    values    = name ":" type, ...
    statement = "opset" domain number | "doc" string | "meta" string "=" string | "alias" input "=" output
              | "type" name ":" type | "const" name ":" type "=" content
              | outputs "=" [domain "::"] operator "(" inputs ")" ["{" attribute "=" value, ... "}"] ["@" name] ["on" string]
                ["after" names]
    type      = dtype "[" extent, ... "]" | dtype "[...]" | "seq(" type ")" | "optional(" type ")" | "map(" dtype "," type ")"
              | "?"
    content   = number | "[" number, ... "]" | "base64" string
"""

from __future__ import annotations

from typing import Any

from xrt.formats.text_parser import parse
from xrt.graph import Function
from xrt.graph.printer import format_function

__all__ = ["parse", "to_text"]


def to_text(function_or_plan: Any) -> str:
    """Return all of a Function as text; of a Plan, its folded Function, with what the Plan says of it as comments."""
    if isinstance(function_or_plan, Function):
        return format_function(function_or_plan, complete=True) + "\n"
    comments = "".join(f"# {line}\n" for line in str(function_or_plan).splitlines())
    return f"{comments}{format_function(function_or_plan.function, complete=True)}\n"
