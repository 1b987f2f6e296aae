"""What the environment says about this process. This module does not import torch."""

import os


def is_rank_of_launcher() -> bool:
    """True if torchrun, or a launcher that sets the same variables, started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ
