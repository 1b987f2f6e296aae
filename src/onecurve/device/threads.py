"""torch's number of threads in a process that is to be forked, and in its children."""

import torch

_DEFAULT_THREADS = torch.get_num_threads()


def use_one_thread() -> None:
    """Keep this process free of threads: a process that has run a parallel loop must not be forked."""
    torch.set_num_threads(1)


def use_all_threads() -> None:
    """Give a rank the number of threads that torch chose for this host, until it gets its share."""
    torch.set_num_threads(_DEFAULT_THREADS)
