"""Serve modules or bundles by name with the Open Inference Protocol.

`app` is the ASGI application for HTTP, `start_grpc` the gRPC service, and `run_server` runs both. Calls run in a bounded thread
pool next to the event loop and are batched. Requests cannot run code or load files that the operator did not name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xrt.lazy_names import load_lazily

if TYPE_CHECKING:
    from xrt.serve.application import Application as Application, app as app, run_server as run_server
    from xrt.serve.grpc_service import start_grpc as start_grpc
    from xrt.serve.served_model import ServingOptions as ServingOptions
    from xrt.serve.triton_repository import export_triton as export_triton

__all__, __getattr__, __dir__ = load_lazily(__name__)
