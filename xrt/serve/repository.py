"""The models of a server by name and version, made from what the operator gives: modules, bundles, ONNX files."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from xrt.engines.contract.registry import why_not_chosen
from xrt.errors import OptionError
from xrt.formats.bundle import is_bundle
from xrt.module import XRTModule, load
from xrt.serve.metrics import Metrics
from xrt.serve.options import ServingOptions
from xrt.serve.refusal import UNKNOWN, RequestRefusal
from xrt.serve.served_model import ServedModel

__all__ = ["Repository", "open_module"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,127}")


def open_module(path: str | os.PathLike[str], options: Mapping[str, Any]) -> XRTModule:
    """Return the module of a bundle or an ONNX file; ``options`` are keywords of `xrt.load` or of XRTModule.

    ``engine`` is for ONNX files. A bundle has its engines; one that may name files or code must be in ``engine`` too.
    Raises BundleError or ModelError where the file is missing or damaged.
    """
    if os.fspath(path).endswith(".onnx") and not is_bundle(path):
        return XRTModule(path, **options)
    engines = options.get("engine", ())
    named = [one for one in ([engines] if isinstance(engines, str) else engines) if why_not_chosen(str(one), "bundle")]
    module = load(path, **{**options, "engine": named})
    tuned = getattr(getattr(module, "serving", None), "threads", None)
    if "threads" in options or tuned in (None, module.threads):
        return module
    module.close()
    return load(path, **{**options, "engine": named, "threads": tuned})  # what the instances of its configuration have


class Repository:
    """The models that are served. Each has a name and one or more versions; the highest is the default.

    ``models`` is a module, a path, or a list of paths, which are named by their files; or a mapping from names to a module, a
    path, or a mapping from versions to such. Modules that are opened here are closed by `close`.
    """

    def __init__(self, models: Any, options: ServingOptions, metrics: Metrics, opening: Mapping[str, Any]) -> None:
        self._models: dict[str, dict[str, ServedModel]] = {}
        self._opened: list[XRTModule] = []
        for name, version, model in _list_models(models):
            for kind, text in (("name", name), ("version", version)):
                if not _NAME.fullmatch(text):
                    raise OptionError(f"a model's {kind} has letters, digits, '.', '-' and '_'; got {text!r}: give name=path")
            if version in self._models.setdefault(name, {}):
                raise OptionError(f"model {name!r} is given twice; give each its own name, or a version: name:2=path")
            modules = self._open(model, opening)
            chosen = options.complete(getattr(modules[0], "serving", None))
            again = partial(self._open_again, model, opening) if isinstance(model, str | os.PathLike) else None
            self._models[name][version] = ServedModel(
                name, version, modules, chosen, metrics, is_wanted=options.batch is not None, open_again=again
            )
        if not self._models:
            raise OptionError("there is no model to serve; give at least one")

    def _open(self, model: Any, opening: Mapping[str, Any]) -> list[XRTModule]:
        if isinstance(model, XRTModule):
            if type(model) is not XRTModule:
                raise OptionError(f"a {type(model).__name__} takes tensors of PyTorch; save it and serve its bundle")
            return [model]
        if not isinstance(model, str | os.PathLike):
            raise OptionError(f"a model is an XRTModule or the path of a bundle or ONNX file; got {type(model).__name__}")
        self._opened.append(open_module(model, opening))
        return self._opened[-1:]

    def _open_again(self, model: Any, opening: Mapping[str, Any]) -> XRTModule:
        return self._open(model, opening)[0]

    def __iter__(self) -> Iterator[ServedModel]:
        for versions in self._models.values():
            yield from versions.values()

    def find(self, name: str, version: str | None) -> ServedModel:
        """Return the model; the highest version where none is named. Raises RequestRefusal."""
        versions = self._models.get(name)
        if versions is None:
            raise RequestRefusal(f"there is no model {name[:200]!r}; there is: {', '.join(self._models)}", UNKNOWN)
        chosen = self.list_versions(name)[-1] if version is None or version == "" else version
        if chosen not in versions:
            raise RequestRefusal(f"model {name!r} has no version {chosen[:200]!r}; it has: {', '.join(versions)}", UNKNOWN)
        return versions[chosen]

    def list_versions(self, name: str) -> tuple[str, ...]:
        """Return the versions of a model: numbers in their order, other texts before them."""
        return tuple(sorted(self._models[name], key=lambda text: (text.isdecimal(), int(text) if text.isdecimal() else 0, text)))

    def close(self) -> None:
        """Take all models out of service, and close the modules that were opened here."""
        for model in self:
            model.close()
        for module in self._opened:
            module.close()


def _list_models(models: Any) -> Iterator[tuple[str, str, Any]]:
    if isinstance(models, Mapping):
        for name, given in models.items():
            versions = given if isinstance(given, Mapping) else {"1": given}
            yield from ((str(name), str(version), model) for version, model in versions.items())
        return
    for model in models if isinstance(models, Sequence) and not isinstance(models, str) else [models]:
        yield (Path(model).stem if isinstance(model, str | os.PathLike) else "model", "1", model)
