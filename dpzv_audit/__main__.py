"""`python -m dpzv_audit` is the command `dpzv-audit`."""

import os
import sys

if __name__ == "__main__":
    # Python puts the current folder first on the import path: a check imports nothing from there.
    if "--check" in sys.argv and not sys.flags.safe_path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    from .cli import main

    sys.exit(main())
