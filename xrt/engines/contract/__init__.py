"""The contract: what an engine author reads. `xrt.engines` exports the names that engines are written with."""
