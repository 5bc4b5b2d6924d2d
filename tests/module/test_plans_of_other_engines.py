"""A plan that names an engine which is not there: of a bundle, of a lock, of the store."""

from __future__ import annotations

import pytest

from tests.module.small_models import relu
from xrt.cache import CompileCache
from xrt.engines import CompileContext, create
from xrt.errors import PlanError
from xrt.module.explain import explain
from xrt.partition import partition
from xrt.placement.engine_list import EngineList
from xrt.runtime import compile_plan

PLAN = partition(relu((4, 3)), [create("toy")])


def test_it_is_explained() -> None:
    told = str(explain(PLAN, EngineList((create("ort"),), None, CompileContext(threads=1))))
    assert "engine 'toy' is not among this module's, which plans again at its first call" in told


def test_it_is_not_compiled() -> None:
    ort = create("ort")
    with pytest.raises(PlanError, match=r"^the plan has \w+ on engine 'toy', and the engines are: 'ort'$"):
        compile_plan(PLAN, {ort.spec: ort}, CompileContext(threads=1), CompileCache())
