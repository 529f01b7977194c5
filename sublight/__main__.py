"""`python -m sublight` is `sublight`."""

import sys

from sublight.cli import main

sys.exit(main())
