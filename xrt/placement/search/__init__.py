"""The search: plans worth measuring. It is deterministic: no clock, no files, no random numbers; its bounds are counts."""
