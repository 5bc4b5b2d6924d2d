"""The contract between XRT and an engine. Engine authors import its names from `xrt.engines`."""
