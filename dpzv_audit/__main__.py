"""`python -m dpzv_audit` is the command `dpzv-audit`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
