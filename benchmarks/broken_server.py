"""`onecurve serve` with a planted fault, for params_faults.py: it confirms pushes before its backup has them."""

import asyncio
import sys
from collections.abc import Iterable

from onecurve.cli.main import main
from onecurve.params.messages import Relay, Sent
from onecurve.params.replication import RowServer
from onecurve.params.row_service import RowService

_LATE_SECONDS = 0.05
_send = RowService._send


def send_relays_late(self: RowService, sent: Iterable[Sent]) -> None:
    messages = list(sent)
    late = [(receiver, message) for receiver, message in messages if isinstance(message, Relay)]
    _send(self, [(receiver, message) for receiver, message in messages if not isinstance(message, Relay)])
    asyncio.get_running_loop().call_later(_LATE_SECONDS, _send, self, late)


RowServer._is_confirmed = lambda *_: True  # type: ignore[method-assign]
RowService._send = send_relays_late  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
