"""TrainModule: a model, its parameters and an optimizer, trained step by step on a list of engines."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xrt.errors import InputError, did_you_mean
from xrt.graph import Function
from xrt.module.model_source import make_source
from xrt.module.module import XRTModule
from xrt.training.models import capture_for_inference, read_model
from xrt.training.steps import list_parameters, step
from xrt.training.updates import RATE, STEP

if TYPE_CHECKING:
    import numpy as np

    from xrt.engines import RunOptions
    from xrt.runtime.profile import Profile
    from xrt.training.inference import EvalModule
    from xrt.training.losses import Loss
    from xrt.training.optimizers import Optimizer

__all__ = ["TrainModule"]


class TrainModule:
    """A model in training: each call is one step, which returns the loss.

    ``loss``, ``optimizer``, ``parameters``, ``clip_norm``, ``accumulation_steps`` and ``seed`` are those of
    `xrt.training.step`; other options are those of `XRTModule`: engines, pins, checks. The parameters and the state of
    the optimizer belong to this module; the model's own constants stay as they are. For a `torch.nn.Module` give example inputs
    as ``args``; its parameters and buffers are the first values here. Raises what `step` and `XRTModule` do.
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
        """What the next step uses; set it between steps for a schedule."""
        read = read_model(model, args, parameters)
        self._model = read.function
        self._source = None if args is None else (model, args)
        self._initial = list_parameters(self._model, read.parameters)
        function = step(
            self._model,
            loss=loss,
            optimizer=optimizer,
            parameters=read.parameters,
            clip_norm=clip_norm,
            accumulation_steps=accumulation_steps,
            seed=seed,
        )
        self._given = (engine, options)
        self.module = XRTModule(function, engine, **options)
        """The XRTModule of the step: its plan, explanation and profile."""
        self.session = self.module.new_session()
        """The session that owns the state."""
        for name, constant in self._initial.items():
            self.session.state[name] = constant.array
        self.session.state.update(read.buffers)

    def __call__(self, *args: Any, options: RunOptions | None = None, **named: Any) -> Any:
        """Make one step and return the outputs of the model, the loss first where a `Loss` makes it.

        ``options`` are those of a call of the module, without buffers: ``RunOptions(profile=True)`` for `profile`.
        """
        import numpy as np

        return self.session(*args, options=options, **named, **{RATE: np.float32(self.learning_rate)})

    def profile(self) -> Profile:
        """Return times and memory of the steps that were made with ``options=RunOptions(profile=True)``."""
        return self.module.profile()

    # ------------------------------------------------------------------ parameters

    @property
    def parameters(self) -> dict[str, np.ndarray[Any, Any]]:
        """Copies of the parameters as they are now."""
        return {name: self.session.state[name] for name in self._initial}

    @property
    def steps(self) -> int:
        """How often the parameters were changed: once in ``accumulation_steps`` calls."""
        return int(self.session.state[STEP])

    def state_dict(self) -> dict[str, np.ndarray[Any, Any]]:
        """Return copies of all state: parameters, what the optimizer remembers, and the number of steps."""
        return dict(self.session.state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a state of `state_dict`; raises InputError, and takes nothing, unless it has the same names."""
        known = list(self.session.state)
        for name in (*known, *state):
            if name not in known or name not in state:
                where = f"is none of the module's.{did_you_mean(name, known)}" if name not in known else "is missing."
                raise InputError(f"the state has other names: {name!r} {where}")
        self.session.state.update(state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint: all of the state, at once or not at all."""
        self.session.save(path)

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Take the state of a checkpoint; the next steps give the numbers that they would have given there."""
        self.session.restore(path)

    def eval(self, model: Any = None) -> EvalModule:
        """Return a module for inference with the weights as they are at each of its calls, in the same memory.

        Dropout is off, and BatchNormalization uses the running statistics. Without ``model`` it is the model of the training in
        this form; a `torch.nn.Module` is captured once more, as after its ``eval()``. A Function of `xrt.from_torch` has batch
        statistics written out: give ``xrt.from_torch(module.eval(), ...)``, whose constants are replaced by the state of the same
        names. Raises InputError where such a constant has another type.
        """
        from xrt.training.inference import EvalModule

        engine, options = self._given
        return EvalModule(self._find_inference_form(model), self.session, engine, options)

    def export(self, model: Any = None) -> Function:
        """Return the model for inference with the weights as they are now, for `xrt.XRTModule` or `xrt.formats.onnx.save`.

        Its form is that of `eval`, which says what ``model`` is for; the running statistics are constants of it too. Raises
        InputError as `eval` does.
        """
        from xrt.training.inference import fix_weights

        return fix_weights(self._find_inference_form(model), self.session)

    def _find_inference_form(self, model: Any) -> Function:
        from xrt.training.inference import make_inference_form

        if model is None and self._source is not None:
            return make_inference_form(capture_for_inference(*self._source))
        return make_inference_form(self._model if model is None else make_source(model).get_declared_function())

    def close(self) -> None:
        """Release the executables."""
        self.module.close()

    def __enter__(self) -> TrainModule:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<TrainModule of {self._model.name!r}: {len(self._initial)} parameters, {self.module!r}>"
