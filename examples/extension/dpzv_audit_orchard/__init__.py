"""A method, an attack and a data set that dpzv-audit finds where this package is installed."""
