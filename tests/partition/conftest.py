"""Settings of hypothesis for this room: no deadline, because a busy machine is no defect."""

from hypothesis import settings

settings.register_profile("partition", deadline=None)
settings.load_profile("partition")
