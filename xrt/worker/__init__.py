"""Run engines in separate processes; values are passed through shared memory."""
