"""The pytest plugin `pytest_dpzv_audit` under a name inside the package, for `pytest -p dpzv_audit.pytest_plugin`."""

pytest_plugins = ("pytest_dpzv_audit",)
