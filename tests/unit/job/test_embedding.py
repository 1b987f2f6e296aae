"""Tables look up like torch's embeddings, and leave no gradient on ids that were not used."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

import onecurve as oc
from onecurve.job.embedding import Embedding, EmbeddingBag, EmbeddingTable, InitialRows, connect, tables_of

IDS = torch.tensor([[5, 900, 5], [-3, 5, 2**40]])


class Watched(InitialRows):
    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[Tensor, Tensor]] = []

    def rows(self, table: EmbeddingTable, ids: Tensor, device: torch.device) -> Tensor:
        rows = super().rows(table, ids, device)
        self.taken.append((ids, rows))
        return rows


def test_a_lookup_takes_the_distinct_rows_as_one_leaf() -> None:
    table, source = Embedding("item", 4), Watched()
    connect(table, source)
    output = table(IDS)
    ((ids, rows),) = source.taken
    assert ids.tolist() == [-3, 5, 900, 2**40]
    places = torch.tensor([[1, 2, 1], [0, 1, 3]])
    assert torch.equal(output, rows[places])
    output.sum().backward()
    assert rows.grad is not None
    assert rows.grad[:, 0].tolist() == [1, 3, 1, 1]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 5, 77])
def test_bags_are_those_of_torch(mode: str, padding: int | None) -> None:
    table, source = EmbeddingBag("item", 4, mode, padding_idx=padding), Watched()
    connect(table, source)
    places, flat = torch.tensor([[1, 2, 1], [0, 1, 3]]), IDS.flatten()
    with torch.no_grad():
        found = table(IDS)
        by_offsets = table(flat, torch.tensor([0, 3]))
    rows = source.taken[0][1]
    bag = nn.EmbeddingBag(4, 4, mode=mode, padding_idx=1 if padding == 5 else None, _weight=rows)
    assert torch.equal(found, bag(places))
    assert torch.equal(found, by_offsets)
    assert not rows.requires_grad


def test_fake_tensors_have_as_many_rows_as_ids() -> None:
    table = Embedding("item", 4)
    with FakeTensorMode() as mode:
        assert table(mode.from_tensor(IDS)).shape == (2, 3, 4)
        assert EmbeddingBag("item", 4)(mode.from_tensor(IDS)).shape == (2, 4)


def test_a_table_has_no_tensors() -> None:
    assert not Embedding("item", 4).state_dict()
    assert "'item', 4, optimizer=RowwiseAdagrad(lr=0.01, eps=1e-08), mode='mean'" in str(EmbeddingBag("item", 4))


def test_modules_that_share_a_table_must_agree() -> None:
    assert list(tables_of(nn.Sequential(Embedding("a", 4), EmbeddingBag("a", 4), Embedding("b", 2)))) == ["a", "b"]
    with pytest.raises(oc.OnecurveError, match="its modules differ"):
        tables_of(nn.Sequential(Embedding("a", 4), Embedding("a", 5)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Embedding("a/b", 4), "letters, digits, '_' and '-'"),
        (lambda: Embedding("a", 0), "width must be an integer of at least 1"),
        (lambda: EmbeddingBag("a", 4, "median"), "mode must be"),
        (lambda: Embedding("a", 4, oc.AdamW()), "optimizer must be onecurve.params.SGD"),
        (lambda: oc.params.SGD(lr=-1), "lr must be a number of at least 0"),
        (lambda: Embedding("a", 4)(torch.zeros(2)), "ids must be integers"),
    ],
)
def test_mistakes(make: object, message: str) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        make()  # type: ignore[operator]
