import json
from pathlib import Path

import pytest
import samples
import torch
from safetensors.torch import save_file

from onecurve.checkpoint.pretrained import load_weights
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh

NAMES = {name: name for name in samples.SHAPES}


def folder_of(place: Path, without: str = "", **more: torch.Tensor) -> Path:
    """As Hugging Face lays a large model out: two files and an index."""
    place.mkdir()
    tensors = {name: samples.value(name, 5) for name in samples.SHAPES if name != without} | more
    first = dict(list(tensors.items())[:2])
    rest = {name: tensor for name, tensor in tensors.items() if name not in first}
    save_file(first, place / "model-1.safetensors")
    save_file(rest, place / "model-2.safetensors")
    index = {**dict.fromkeys(first, "model-1.safetensors"), **dict.fromkeys(rest, "model-2.safetensors")}
    (place / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return place


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(shard=4), Mesh(replicate=2, shard=2)], ids=str)
def test_every_rank_takes_its_own_part(mesh: Mesh, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "model")
    for rank in range(mesh.size):
        held = samples.local_tensors(mesh, rank, seed=1)
        assert load_weights(folder, held, NAMES) == ""
        for local_tensor, right in zip(held, samples.local_tensors(mesh, rank, seed=5), strict=True):
            assert torch.equal(local_tensor.local, right.local)


def test_what_does_not_fit_is_told(tmp_path: Path) -> None:
    told = load_weights(
        folder_of(tmp_path / "a", without="bias", head=torch.zeros(2)), samples.local_tensors(Mesh(), 0, 1), NAMES
    )
    assert "as the constructor made them: bias" in told
    assert "but not in the model: head" in told
    with pytest.raises(OnecurveError, match="none of its tensors has a name of the model's"):
        load_weights(folder_of(tmp_path / "b"), samples.local_tensors(Mesh(), 0, 1), {})
    wrong = folder_of(tmp_path / "c", without="bias", bias=torch.zeros(7))
    with pytest.raises(OnecurveError, match=r"bias has shape \(7,\), the model's bias has \(6,\)"):
        load_weights(wrong, samples.local_tensors(Mesh(), 0, 1), NAMES)
    with pytest.raises(OnecurveError, match=r"no such file|cannot be read"):
        load_weights(tmp_path / "nothing", samples.local_tensors(Mesh(), 0, 1), NAMES)


def test_a_tied_weight_is_found_by_any_of_its_names(tmp_path: Path) -> None:
    save_file({"head.weight": samples.value("embed.weight", 5)}, tmp_path / "one.safetensors")
    held = samples.local_tensors(Mesh(), 0, 1)
    load_weights(tmp_path / "one.safetensors", held, {**NAMES, "head.weight": "embed.weight"})
    assert torch.equal(held[0].local, samples.value("embed.weight", 5))


def test_links_of_hugging_faces_cache_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "revision"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    save_file({name: samples.value(name, 5) for name in NAMES}, tmp_path / "blobs" / "0a1b")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blobs" / "0a1b")
    held = samples.local_tensors(Mesh(), 0, 1)
    assert load_weights(snapshot, held, NAMES) == ""
    assert torch.equal(held[0].local, samples.value("embed.weight", 5))
