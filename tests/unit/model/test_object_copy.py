"""Objects that a module may change are copied; the tensors inside them are shared."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.model.object_copy import copy_sharing_tensors


class Cache:
    def __init__(self) -> None:
        self.entries = [torch.ones(4)[2:], torch.ones(3, requires_grad=True) * 2]


def test_tensors_are_shared_and_everything_else_is_copied() -> None:
    for cache in (Cache(), in_fake_mode()):
        copied = copy_sharing_tensors(cache)
        assert copied is not cache
        assert copied.entries is not cache.entries
        assert all(one is other for one, other in zip(copied.entries, cache.entries, strict=True))


def in_fake_mode() -> Cache:
    with FakeTensorMode():
        return Cache()
