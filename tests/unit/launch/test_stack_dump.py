"""The line that a process executes, asked for by a signal while it holds the interpreter lock."""

import os
import subprocess
import sys
import time

from onecurve.launch.stack_dump import StackDump, line_in

HOLDS_LOCK = """
import os, sys
from onecurve.launch.stack_dump import answer_signal

descriptor = answer_signal()
os.set_inheritable(descriptor, True)
print(descriptor, flush=True)

def busy():
    sum(range(10**10))

busy()
"""


def test_a_process_that_holds_the_lock_answers() -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS_LOCK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        descriptor = int(process.stdout.readline())
        dump = StackDump(os.open(f"/proc/{process.pid}/fd/{descriptor}", os.O_RDONLY))
        time.sleep(0.3)
        for _ in range(2):  # also a second time
            dump.ask(process.pid)
            deadline = time.monotonic() + 10
            while not dump.line and time.monotonic() < deadline:
                time.sleep(0.05)
            assert dump.line == "<string>:10 in busy"
        dump.close()
        process.kill()


def test_lines_of_libraries_are_left_out() -> None:
    dump = (
        "Current thread 0x1 (most recent call first):\n"
        '  File "/lib/torch/nn/modules/linear.py", line 5 in forward\n'
        '  File "/home/me/train.py", line 12 in forward\n'
        '  File "/lib/onecurve/train/trainer.py", line 60 in step\n'
    )
    assert line_in(dump) == "train.py:12 in forward"
    assert line_in("") == ""
