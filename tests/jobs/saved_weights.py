"""Saves a tensor that is sharded over two ranks: `torchrun --nproc-per-node 2 saved_weights.py FILE ROWS`.

Each rank prints the bytes that this has added on its device, at most. A row has 4 KiB.
"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from onecurve.checkpoint.weights import save_weights
from onecurve.device.device import local_device
from onecurve.device.local_tensor import local_tensor_of
from onecurve.device.world import World

path, rows = Path(sys.argv[1]), int(sys.argv[2])
world = World.from_environment()
device = local_device(world.local_rank)
world.join(device)
mesh = init_device_mesh(device.kind, (2,), mesh_dim_names=("shard",))
local = torch.zeros(rows // 2, 1024, device=device.torch_device)
weight = local_tensor_of("weight", DTensor.from_local(local, mesh, [Shard(0)]), True, dist.group.WORLD)
devices = torch.get_device_module(device.kind)
device.wait()
devices.reset_peak_memory_stats()
before = devices.memory_allocated()
save_weights([weight], path, writer=world.rank == 0)
device.wait()
print(f"added {devices.max_memory_allocated() - before}\n", end="", flush=True)
world.leave()
