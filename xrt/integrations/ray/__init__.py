"""Run XRT's modules on Ray, with the CPUs that Ray assigns to each process.

`predictor` is for Ray Data, `cluster_job` for ``xrt batch --address``, `deployments` for Ray Serve.
"""
