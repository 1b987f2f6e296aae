"""A rank in a new interpreter, for programs that cannot be forked.

python -m onecurve.launch.new_rank DESCRIPTOR PARENT PROGRAM VERB REQUEST
"""

import os
import sys

from onecurve.launch.template import be_rank

if __name__ == "__main__":
    descriptor, parent, program, verb, request = sys.argv[1:]
    os._exit(be_rank(program, verb, request, int(descriptor), int(parent)))
