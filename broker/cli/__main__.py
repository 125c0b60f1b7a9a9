"""``python -m broker.cli``: the same as ``timewheel``."""

from broker.cli import main

main()
