"""Frames: what is sent arrives, and what is no frame is refused."""

from contextlib import suppress
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.job.row_point import StepVerdict
from onecurve.params.frame import HEADER_BYTES, FrameError, decode, encode, lengths
from onecurve.params.messages import Copy, Message, Pull, Push, Pushed, Refused, Relay, Rows
from onecurve.params.step_log import RowCrew, StepLog

CREW = RowCrew(2, 3, start=5)
ABOUT: dict[str, Any] = {"epoch": 7, "piece": 1_024, "sender": "rank0"}


def sent(messages: list[Message]) -> bytes:
    return b"".join(bytes(buffer) for buffer in encode(messages))


def received(frame: bytes) -> list[Message]:
    body, tensors = lengths(frame[:HEADER_BYTES])
    assert len(frame) == HEADER_BYTES + body + tensors
    begin = HEADER_BYTES + body
    return decode(frame[HEADER_BYTES:begin], bytearray(frame[begin:]))


def test_messages_arrive_as_they_were_sent() -> None:
    ids, gradients = torch.tensor([1, -9]), torch.randn(2, 3, dtype=torch.float64)
    push = Push(**ABOUT, step=6, rank=1, crew=CREW, part={"item": (ids, gradients)}, verdicts={5: StepVerdict(0.5)})
    log = StepLog[Any](CREW, staged={6: {1: {"item": (ids, gradients)}}}, verdicts={5: StepVerdict()}, received={0: 5})
    messages: list[Message] = [
        push,
        Pull(**ABOUT, step=6, rank=1, crew=CREW, ids={"item": ids, "none": torch.empty(0, dtype=torch.int64)}),
        Rows(**ABOUT, crew=2, step=6, rank=1, number=3, rows={"item": torch.randn(2, 3), "none": torch.empty(0, 3)}),
        Pushed(**ABOUT, crew=2, step=6, rank=1, squares=torch.zeros(4, dtype=torch.float64)),
        Refused(**ABOUT),
        Relay(**ABOUT, push=push, verdicts={5: StepVerdict(is_skipped=True)}, received={0: 5, 1: 6}, points=(3, 5)),
        Copy(**ABOUT, rows={"values": {"item": (ids, gradients)}}, log=log),
    ]
    for before, after in zip(messages, received(sent(messages)), strict=True):
        assert type(after) is type(before)
        assert plain(after) == plain(before)


def plain(value: Any) -> Any:
    """Values that can be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), value.tolist()
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    return value


@given(st.binary(max_size=200).filter(lambda raw: not raw.startswith(b"ocr1")))
def test_bytes_that_are_no_header_are_refused(raw: bytes) -> None:
    with pytest.raises(FrameError):
        lengths((raw + bytes(HEADER_BYTES))[:HEADER_BYTES])


def test_absurd_lengths_are_refused() -> None:
    header = sent([Refused(**ABOUT)])[:HEADER_BYTES]
    for begin, count in ((4, 4), (8, 8)):
        with pytest.raises(FrameError, match="more than allowed"):
            lengths(header[:begin] + b"\xff" * count + header[begin + count :])


@given(st.data())
def test_a_changed_frame_is_read_or_refused(data: st.DataObject) -> None:
    """But nothing else happens."""
    frame = bytearray(sent([Pull(**ABOUT, step=6, rank=1, crew=CREW, ids={"item": torch.arange(9)})]))
    body, _ = lengths(bytes(frame[:HEADER_BYTES]))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(HEADER_BYTES, HEADER_BYTES + body - 1))
        frame[at] = data.draw(st.integers(0, 255))
    with suppress(FrameError):
        received(bytes(frame))
