"""XRT: one model on several engines."""
