"""``python -m tfs``: the same as the ``tfs`` command."""

import sys

from tfs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
