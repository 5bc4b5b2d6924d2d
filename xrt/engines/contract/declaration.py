"""What an engine declares of itself before it is imported: its rank, color, libraries and the words that mean it.

The module that an entry point names has the declaration as a constant. It is read off the source, as setuptools reads a version:
neither the engine nor its library is imported, so one that is missing, slow or broken is described too.
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass, fields
from importlib.machinery import ModuleSpec, PathFinder

__all__ = ["EngineDeclaration", "read_declaration"]


@dataclass(frozen=True, slots=True)
class EngineDeclaration:
    """Facts about an engine. Each default is that of an engine which declares nothing."""

    name: str
    """The name by which the engine is registered."""
    rank: int = 100
    """Engines of low rank are tried first where nothing is measured; of equal rank, by name."""
    color: str = ""
    """The color of its regions in drawings: one of `xrt.html.colors.PALETTE`; empty: one that no other engine there has."""
    description: str = ""
    """What the engine is, for a person who does not know it."""
    libraries: tuple[str, ...] = ()
    """Distributions that it computes with: ``xrt doctor`` shows their versions, and their names suggest the engine."""
    aliases: tuple[str, ...] = ()
    """Other words that suggest the engine to a person who mistakes its name."""
    environment: tuple[str, ...] = ()
    """Beginnings of the names of variables that change what its libraries do; ``xrt doctor`` shows those that are set."""
    thread_variables: tuple[str, ...] = ()
    """Variables from which its libraries take a number of threads when they load; ``xrt bench`` sets them."""

    def is_valid(self) -> bool:
        """Whether each field has the type that it should have: what a file says is checked nowhere else."""
        standard = EngineDeclaration("")
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not type(getattr(standard, field.name)):
                return False
            if isinstance(value, tuple) and not all(isinstance(one, str) for one in value):
                return False
        return True


def read_declaration(module: str, name: str) -> EngineDeclaration:
    """Return what a module declares of an engine; one without a declaration that can be read gets the defaults.

    A declaration is a constant at the top level of the module, ``X = EngineDeclaration("name", rank=1)``, all of literals.
    """
    try:
        for statement in ast.parse(_read_source(module)).body:
            call = getattr(statement, "value", None)
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(EngineDeclaration.__name__):
                given = [ast.literal_eval(one) for one in call.args]
                found = EngineDeclaration(*given, **{one.arg or "": ast.literal_eval(one.value) for one in call.keywords})
                if found.name == name and found.is_valid():
                    return found
    except Exception:  # noqa: BLE001  # an import of the module says what is wrong with it; nothing here needs it to be right
        return EngineDeclaration(name)
    return EngineDeclaration(name)


def _read_source(module: str) -> str:
    """Return the source of a module, which is not imported, nor are the packages around it; empty where there is none."""
    top, *rest = module.split(".")
    spec: ModuleSpec | None = importlib.util.find_spec(top)
    for part in rest:
        spec = PathFinder.find_spec(f"{spec.name}.{part}", spec.submodule_search_locations) if spec else None
    read = getattr(spec.loader if spec else None, "get_source", None)
    return (read(spec.name) if read and spec else None) or ""
