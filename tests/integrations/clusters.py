"""Small clusters of Ray in this machine, for the tests of one module."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

STORE = 100 << 20
"""Bytes of the object store of a node."""


@contextmanager
def start_cluster(head: int, *others: int) -> Iterator[tuple[Any, list[Any]]]:
    """Start a cluster of nodes with those processors, connect to it, and end all of it."""
    os.environ |= {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        # on a busy machine a proxy may start and answer late, and is no worse for it
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "300",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "300",
    }
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": head, "object_store_memory": STORE, "include_dashboard": False},
    )
    try:
        nodes = [cluster.add_node(num_cpus=cpus, object_store_memory=STORE) for cpus in others]
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()
