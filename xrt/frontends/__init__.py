"""Front ends: models of other libraries become Functions. Each is optional, and nothing else of the package imports one."""
