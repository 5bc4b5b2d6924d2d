"""From operators to loops, by TVM's own rules.

TVM calls a rule while it holds a builder with an open block. Where the rule raises, the builder goes with the block open,
and writes a warning to stderr. So what a rule raises is kept until TVM's pass has ended, and raised then.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tvm_ffi
from tvm import relax
from tvm.ir import IRModule, Op

from xrt.engines.tvm.export import compiler_lock

__all__ = ["legalize_operators"]

_failures: list[Exception] = []
"""What rules have raised in the pass that is running; guarded by the lock of the compiler."""


def legalize_operators(module: IRModule) -> IRModule:
    """Return the module with its operators as loops; raises what the first rule that failed has raised."""
    with compiler_lock:
        try:
            legal = relax.transform.LegalizeOps(_rules())(module)
            if _failures:
                raise _failures[0]
            return legal
        finally:
            _failures.clear()


@cache
def _rules() -> Any:
    """Return TVM's rule for each operator that has one, none of which raises."""
    found = {name: Op.get(name).get_attr("FLegalize") for name in Op.list_op_names() if name.startswith("relax.")}
    return tvm_ffi.convert({name: _without_raising(rule) for name, rule in found.items() if rule is not None})


def _without_raising(rule: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def legalize(builder: Any, call: Any) -> Any:
        try:
            return rule(builder, call)
        except Exception as error:  # noqa: BLE001  # whatever TVM raises is why it cannot
            _failures.append(error)
            return call

    return legalize
