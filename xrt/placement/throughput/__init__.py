"""Throughput as an objective: the configuration that serves most requests per second within a bound on the latency.

Batch size, instances and threads per instance come in as candidates, with something that measures them. Candidates are pruned by
the time of a call, the most promising are put under an open-loop load, and the one with the highest measured rate comes out.
Nothing here makes a module or calls a model: `xrt.module.throughput` does.
"""
