"""`onecurve serve` with a planted fault, for params_faults.py: it confirms pushes that its backup does not have."""

import sys

from onecurve.cli.main import main
from onecurve.params.replication import RowServer

RowServer._is_confirmed = lambda *_: True  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
