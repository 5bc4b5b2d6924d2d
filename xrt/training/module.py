"""TrainModule and EvalModule: train a model on a list of engines, and evaluate it with the current weights."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from xrt.errors import InputError, did_you_mean
from xrt.graph import Attribute, Constant, Function, Node, list_states
from xrt.graph.state import STATE_KEY
from xrt.module.model_source import make_source
from xrt.module.module import XRTModule
from xrt.operators import is_training
from xrt.passes import drop_dead_nodes
from xrt.runtime import inputs
from xrt.training.optimizers import RATE, STEP, Optimizer
from xrt.training.steps import Loss, capture_for_inference, list_parameters, promote, read_model, step

if TYPE_CHECKING:
    import numpy as np

    from xrt.engines import RunOptions
    from xrt.module.state import Session
    from xrt.runtime.profile import Profile


class TrainModule:
    """A model in training: each call makes one step and returns the loss.

    ``loss``, ``optimizer``, ``parameters``, ``clip_norm``, ``accumulation_steps`` and ``seed`` are as in `xrt.training.step`.
    Further options are those of `XRTModule`. The module trains copies of the parameters; the model does not change. For a
    `torch.nn.Module`, pass example inputs as ``args``; training starts from its parameters and buffers. Raises the errors of
    `step` and `XRTModule`.
    """

    def __init__(
        self,
        model: Any,
        engine: Any = None,
        *,
        loss: str | Loss | None = None,
        optimizer: Optimizer | None = None,
        parameters: str | Sequence[str] = "*",
        clip_norm: float | None = None,
        accumulation_steps: int = 1,
        seed: int = 0,
        learning_rate: float = 1e-3,
        args: tuple[Any, ...] | None = None,
        **options: Any,
    ) -> None:
        self.learning_rate = learning_rate
        """Learning rate of the next step; change it between steps for a schedule."""
        trained = read_model(model, args, parameters)
        self._model = trained.function
        self._source = None if args is None else (model, args)
        self._initial = list_parameters(self._model, trained.parameters)
        function = step(
            self._model,
            loss=loss,
            optimizer=optimizer,
            parameters=trained.parameters,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            seed=seed,
        )
        self._engine_options = (engine, options)
        self.module = XRTModule(function, engine, **options)
        """The XRTModule of the step, for its plan, explanation and profile."""
        self.session = self.module.new_session()
        """Holds the parameters and the optimizer state."""
        for name, constant in self._initial.items():
            self.session.state[name] = constant.array
        # Running statistics, for example, start at the values of the PyTorch module.
        self.session.state.update(trained.buffers)

    def __call__(self, *args: Any, options: RunOptions | None = None, **named: Any) -> Any:
        """Make one step; return the outputs of the model, preceded by the loss if a `Loss` computes it.

        ``options`` are those of a module call, without output buffers. With ``RunOptions(profile=True)``, `profile` includes
        the step.
        """
        import numpy as np

        return self.session(*args, options=options, **named, **{RATE: np.float32(self.learning_rate)})

    def profile(self) -> Profile:
        """Times and memory of the steps called with ``options=RunOptions(profile=True)``."""
        return self.module.profile()

    @property
    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the current parameters."""
        return {name: self.session.state[name] for name in self._initial}

    @property
    def steps(self) -> int:
        """Number of parameter updates: one per ``accumulation_steps`` calls."""
        return int(self.session.state[STEP])

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copy the whole state: parameters, optimizer state and step counter."""
        return dict(self.session.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned; raises InputError, without changes, if the names differ."""
        names = list(self.session.state)
        for name in state:
            if name not in names:
                raise InputError(f"the state has other names: {name!r} is none of the module's.{did_you_mean(name, names)}")
        if missing := [name for name in names if name not in state]:
            raise InputError(f"the state has other names: {missing[0]!r} is missing.")
        self.session.state.update(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint of the whole state atomically."""
        self.session.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Load a checkpoint that `save` wrote. Training then continues as it would have without the interruption."""
        self.session.restore(path)

    def eval(self, model: Any = None) -> EvalModule:
        """Make a module for inference, each call of which reads the current weights.

        Dropout is off, and BatchNormalization uses running statistics. The default model is the training model in inference form;
        a `torch.nn.Module` is captured again in eval mode.

        ``model`` is needed for a Function that `xrt.from_torch` captured in training mode, because its batch statistics are plain
        operators: pass ``xrt.from_torch(module.eval(), ...)``. Its constants are replaced by the trained values of the same
        names; raises InputError if one has another type.
        """
        engine, options = self._engine_options
        return EvalModule(self._make_inference_form(model), self.session, engine, options)

    def export(self, model: Any = None) -> Function:
        """Build the model for inference with the current weights as constants, for `xrt.XRTModule` or `xrt.formats.onnx.save`.

        ``model`` is as in `eval`. Running statistics become constants, too. Raises InputError like `eval`.
        """
        function = self._make_inference_form(model)
        _check_weight_types(function, self.session)
        with self.session.borrow() as arrays:
            names = {name for name in (*function.constants, *(value.name for value in function.inputs)) if name in arrays}
            # Copies, because the session changes its arrays in later steps.
            weights = {name: Constant(arrays[name].copy()) for name in names}
        inputs = tuple(value for value in function.inputs if value.name not in names)
        return function.replace(inputs=inputs, constants={**function.constants, **weights})

    def _make_inference_form(self, model: Any) -> Function:
        """Convert ``model``, by default the training model, to inference form. Its states are read as inputs, not updated."""
        if model is None and self._source is not None:
            function = capture_for_inference(*self._source)
        else:
            function = self._model if model is None else make_source(model).get_declared_function()
        next_states = {state.output for state in list_states(function)}
        metadata = {key: value for key, value in function.metadata.items() if key != STATE_KEY}
        outputs = tuple(value for value in function.outputs if value.name not in next_states)
        return drop_dead_nodes(_to_inference(function.replace(outputs=outputs, aliases=(), metadata=metadata)))

    def close(self) -> None:
        self.module.close()

    def __enter__(self) -> TrainModule:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TrainModule of {self._model.name!r}: {len(self._initial)} parameters, {self.module!r}>"


def _to_inference(function: Function) -> Function:
    return function.replace(nodes=tuple(new for node in function.nodes for new in _to_inference_nodes(node, function)))


def _to_inference_nodes(node: Node, function: Function) -> Iterator[Node]:
    if not is_training(node, function):
        yield node.map_bodies(_to_inference)
    elif node.op == "Dropout":
        yield replace(node, inputs=node.inputs[:2])  # without the training flag
    else:
        # BatchNormalization in training mode.
        attributes = [attribute for attribute in node.attributes if attribute.name != "training_mode"]
        yield replace(node, outputs=node.outputs[:1], attributes=(*attributes, Attribute.create("training_mode", 0)))
        # In inference the running statistics do not change.
        for before, after in zip(node.inputs[3:], node.outputs[1:], strict=False):
            if after:
                yield Node("Identity", (before,), (after,))


class EvalModule:
    """A model for inference with the current weights of a `TrainModule`; made by `TrainModule.eval`.

    A call takes the inputs of the model that are not state.
    """

    def __init__(self, function: Function, session: Session, engine: Any, options: Mapping[str, Any]) -> None:
        self._session = session
        states = set(session.state)
        weights = {name: constant for name, constant in function.constants.items() if name in states}
        _check_weight_types(function, session)
        # Weights become inputs, so that each call passes the current arrays.
        promoted = promote(function, weights)
        self._inputs = tuple(value for value in promoted.inputs if value.name not in states)
        self.module = XRTModule(promoted, engine, **options)
        """The XRTModule of the inference form, with the weights as inputs."""

    def __call__(self, *args: Any, **named: Any) -> Any:
        names = [value.name for value in self._inputs]
        arguments = dict(zip(names, inputs.bind(self._inputs, args, named), strict=True))
        # Borrowed, so that no weight is copied.
        with self._session.borrow() as arrays:
            values = {**arrays, **arguments}
            return self.module(*(values[value.name] for value in self.module.inputs))

    def close(self) -> None:
        self.module.close()

    def __enter__(self) -> EvalModule:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _check_weight_types(function: Function, session: Session) -> None:
    """Raise InputError for a constant whose type differs from that of the state of the same name."""
    with session.borrow() as arrays:
        for name, constant in function.constants.items():
            weight = arrays.get(name, constant.array)
            if (weight.shape, weight.dtype) != (constant.array.shape, constant.array.dtype):
                raise InputError(
                    f"weight {name!r} is {weight.dtype}{list(weight.shape)} in training, and {constant.type} in the model to "
                    "evaluate; give the same model in its inference form"
                )
