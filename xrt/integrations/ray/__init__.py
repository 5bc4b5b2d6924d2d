"""Ray: rows, requests and parts of a model come in by Ray's processes; each has a module of the threads that Ray grants.

`predictor` is for Ray Data, `cluster_job` for ``xrt batch --address``, `deployments` for Ray Serve, and `stage_actors` for a
model in parts. Nothing here schedules, retries or transports.
"""
