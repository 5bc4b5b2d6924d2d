"""The toolkit: what an engine author may use: known issues, memory planning, operators written in others, array operations."""
