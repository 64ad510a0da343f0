"""`python -m kvformat.cli`: the same as the `kvformat` script."""

import sys

from kvformat.cli import main

if __name__ == "__main__":
    sys.exit(main())
