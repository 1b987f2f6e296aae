"""Rows behind gRPC, for params.py: the same store, without steps, copies and checks. Prints its port.

A request is an 8-byte count, the ids, and the gradients if it is a push; the answer to a pull is the rows.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import torch

from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import RowwiseAdagrad
from onecurve.params.row_store import RowStore

OPTIONS = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
METHODS = ("/rows/pull", "/rows/push")


class Rows(grpc.GenericRpcHandler):
    def __init__(self, width: int) -> None:
        self._store = RowStore(Embedding("user", width, RowwiseAdagrad(0.05)), 0, torch.float32)
        self._width, self._updates = width, 0

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        work = self._pull if details.method == METHODS[0] else self._push
        return grpc.unary_unary_rpc_method_handler(work)

    def _pull(self, request: bytes, _: object) -> bytes:
        return self._store.get(_ids(request)).numpy().tobytes()

    def _push(self, request: bytes, _: object) -> bytes:
        ids = _ids(request)
        gradients = np.frombuffer(request, np.float32, offset=8 * (1 + len(ids))).reshape(len(ids), self._width)
        self._updates += 1
        self._store.update(ids, torch.from_numpy(gradients.copy()), 0.05, self._updates)
        return b""


def _ids(request: bytes) -> torch.Tensor:
    count = int(np.frombuffer(request, np.int64, 1)[0])
    return torch.from_numpy(np.frombuffer(request, np.int64, count, offset=8).copy())


def main() -> None:
    torch.set_num_threads(1)
    server = grpc.server(ThreadPoolExecutor(2), options=OPTIONS)
    server.add_generic_rpc_handlers((Rows(int(sys.argv[1])),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(port, flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
