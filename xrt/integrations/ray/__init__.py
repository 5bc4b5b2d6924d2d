"""Ray: rows and requests come in by Ray's processes; each has a module of the threads that Ray grants.

`predictor` is for Ray Data, `cluster_job` for ``xrt batch --address``, `deployments` for Ray Serve. Nothing here schedules,
retries or transports.
"""
