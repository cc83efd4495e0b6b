"""``python -m xframe.cli``: the same commands, where the script ``xframe`` is not installed."""

import sys

from xframe.cli import main

sys.exit(main())
