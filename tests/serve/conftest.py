"""Run tests that are coroutines, each on a new event loop."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

from tests.serve.serving import HANGS


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), HANGS))
    return True
