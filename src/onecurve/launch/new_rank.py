"""A rank in a new interpreter, for programs that cannot be forked.

python -m onecurve.launch.new_rank DESCRIPTOR PARENT SCRATCH PROGRAM VERB REQUEST
"""

import os
import sys
from pathlib import Path

from onecurve.device.scratch import use_scratch
from onecurve.launch.template import be_rank

if __name__ == "__main__":
    descriptor, parent, scratch, program, verb, request = sys.argv[1:]
    use_scratch(Path(scratch))
    os._exit(be_rank(program, verb, request, int(descriptor), int(parent)))
