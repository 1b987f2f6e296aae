"""A row server most of whose rows are in a file, in a control group with little memory, for params.py.

python benchmarks/spilling_row_server.py FOLDER MEMORY GROUP
"""

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import msgspec

from onecurve.describe.row_servers import ServerOrder
from onecurve.device.parent_process import die_with_parent
from onecurve.servers.row_process import RowProcess


def main() -> None:
    folder, memory, group = sys.argv[1:]
    Path(group, "cgroup.procs").write_text(str(os.getpid()))
    order = msgspec.json.decode(sys.stdin.readline(), type=ServerOrder)
    assert order.parent is not None
    die_with_parent(order.parent)
    asyncio.run(RowProcess(replace(order, spill=folder, memory=int(memory))).run())


if __name__ == "__main__":
    main()
