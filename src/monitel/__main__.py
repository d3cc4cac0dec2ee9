"""``python -m monitel`` is the command ``monitel``."""

import sys

from monitel_run.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
