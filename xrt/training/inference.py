"""Inference with the weights of a training module: no Dropout, and batches normalized by the running statistics.

The weights are read at each call (`EvalModule`), or become the constants of a Function (`fix_weights`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.errors import InputError
from xrt.graph import Attribute, Constant, Function, Node, is_training, list_states
from xrt.graph.state import STATE
from xrt.module.module import XRTModule
from xrt.passes import drop_dead_nodes
from xrt.runtime import inputs
from xrt.training.steps import promote

if TYPE_CHECKING:
    from xrt.module.session import Session

__all__ = ["EvalModule", "fix_weights", "make_inference_form"]


def make_inference_form(function: Function) -> Function:
    """Return the Function without outputs that are state, each node in its inference form; what was state is an input. Linear."""
    kept = {state.output for state in list_states(function)}
    metadata = {key: value for key, value in function.metadata.items() if key != STATE}
    outputs = tuple(value for value in function.outputs if value.name not in kept)
    return drop_dead_nodes(_rewrite(function.replace(outputs=outputs, aliases=(), metadata=metadata)))


def _rewrite(function: Function) -> Function:
    return function.replace(nodes=tuple(new for node in function.nodes for new in _list_forms(node, function)))


def _list_forms(node: Node, function: Function) -> Iterator[Node]:
    if not is_training(node, function):
        yield node.map_bodies(_rewrite)
    elif node.op == "Dropout":  # without its flag it does not train
        yield replace(node, inputs=node.inputs[:2])
    else:
        changed = [a for a in node.attributes if a.name != "training_mode"]
        yield replace(node, outputs=node.outputs[:1], attributes=(*changed, Attribute.of("training_mode", 0)))
        for before, after in zip(node.inputs[3:], node.outputs[1:], strict=False):
            if after:
                yield Node("Identity", (before,), (after,))


def fix_weights(function: Function, session: Session) -> Function:
    """Return the Function with the state of the session as its constants, where a constant or an input has the name of one.

    Raises InputError where such a constant has another type.
    """
    _check(function, session)
    with session.borrow() as arrays:
        names = {name for name in (*function.constants, *(value.name for value in function.inputs)) if name in arrays}
        weights = {name: Constant(arrays[name].copy()) for name in names}
    inputs = tuple(value for value in function.inputs if value.name not in names)
    return function.replace(inputs=inputs, constants={**function.constants, **weights})


class EvalModule:
    """A model with the weights that a `TrainModule` has at each call; `TrainModule.eval` makes it.

    It reads the arrays of the session, and changes no state. Calls take the inputs of the model that are no state.
    """

    def __init__(self, function: Function, session: Session, engine: Any, options: Mapping[str, Any]) -> None:
        self._session = session
        states = set(session.state)
        weights = {name: constant for name, constant in function.constants.items() if name in states}
        _check(function, session)
        promoted = promote(function, weights)
        self._others = tuple(value for value in promoted.inputs if value.name not in states)
        self.module = XRTModule(promoted, engine, **options)
        """The XRTModule of the inference form, whose inputs are also the weights."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        """Return the outputs of the model that are no state; raises what a call of an XRTModule does."""
        given = dict(zip((v.name for v in self._others), inputs.bind(self._others, args, named), strict=True))
        with self._session.borrow() as arrays:
            return self.module(*(given[v.name] if v.name in given else arrays[v.name] for v in self.module.inputs))

    def close(self) -> None:
        """Release the executables."""
        self.module.close()

    def __enter__(self) -> EvalModule:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check(function: Function, session: Session) -> None:
    with session.borrow() as arrays:
        for name, constant in function.constants.items():
            found = arrays.get(name, constant.array)
            if (found.shape, found.dtype) != (constant.array.shape, constant.array.dtype):
                raise InputError(
                    f"weight {name!r} is {found.dtype}{list(found.shape)} in training, and {constant.type} in the model to "
                    "evaluate; give the same model in its inference form"
                )
