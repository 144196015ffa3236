"""``python -m oxidize_host`` is ``oxidize``."""

import sys

from oxidize_host.cli import main

sys.exit(main())
