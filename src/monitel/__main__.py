"""``python -m monitel`` is the command ``monitel``."""

import sys

from monitel.console.main import main

if __name__ == "__main__":
    sys.exit(main())
