"""A snapshot in the memory of another host, as a rank reads it and as a keeper sends it there."""

import json

from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.describe.generation import SnapshotPoint
from onecurve.device.snapshot_memory import SnapshotMemory

_CONNECT_SECONDS = 10.0


class RemoteSnapshot:
    """What one rank has copied, read from the keeper that has it."""

    def __init__(self, host: str, port: int, key: bytes, point: SnapshotPoint, rank: int) -> None:
        self._keeper = SealedSocket.connect(host, port, key, _CONNECT_SECONDS)
        self._question = {"generation": point.generation, "step": point.step, "rank": rank}
        self._where = f"{host}:{port}"
        self.size = self._ask("texts")
        self._texts = self._keeper.receive(), self._keeper.receive()

    def texts(self) -> tuple[bytes, bytes]:
        return self._texts

    def read(self, begin: int, size: int) -> bytearray:
        self._ask("read", begin=begin, size=size)
        content = bytearray(size)
        self._keeper.receive_into(memoryview(content))
        return content

    def close(self) -> None:
        self._keeper.close()

    def _ask(self, operation: str, **fields: int) -> int:
        self._keeper.send(json.dumps({"op": operation, **self._question, **fields}).encode())
        answer = json.loads(self._keeper.receive())
        if "size" not in answer:
            raise ConnectionError(
                f"the keeper at {self._where} no longer has the snapshot of rank {self._question['rank']}"
            )
        return int(answer["size"])


def send_snapshot(keeper: SealedSocket, generation: int, rank: int, slot: int, memory: SnapshotMemory) -> int | None:
    """Send a snapshot to another keeper, which has it on return; return its step.

    None if it is not complete, or was overwritten meanwhile.
    """
    step = memory.step
    if step is None:
        return None
    question = {"op": "keep", "generation": generation, "rank": rank, "step": step, "slot": slot, "size": memory.size}
    keeper.send(json.dumps(question).encode())
    for text in memory.texts():
        keeper.send(text)
    keeper.send_all(memory.data)
    is_unchanged = memory.step == step
    keeper.send(json.dumps({"unchanged": is_unchanged}).encode())
    keeper.receive()
    return step if is_unchanged else None
