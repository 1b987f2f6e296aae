import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import sample_checkpoints as samples
from onecurve.checkpoint.pretrained import load_weights
from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import Mesh

NAMES = {name: [name] for name in samples.SHAPES}


def write_folder(folder: Path, without: str = "", **more: torch.Tensor) -> Path:
    """Write weights in Hugging Face's layout of a large model: two files and an index."""
    folder.mkdir()
    tensors = {name: samples.value(name, 5) for name in samples.SHAPES if name != without} | more
    first = dict(list(tensors.items())[:2])
    rest = {name: tensor for name, tensor in tensors.items() if name not in first}
    save_file(first, folder / "model-1.safetensors")
    save_file(rest, folder / "model-2.safetensors")
    index = {**dict.fromkeys(first, "model-1.safetensors"), **dict.fromkeys(rest, "model-2.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    return folder


@pytest.mark.parametrize("mesh", [Mesh(), Mesh(shard=4), Mesh(replicate=2, shard=2)], ids=str)
def test_every_rank_loads_its_own_elements(mesh: Mesh, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "model")
    for rank in range(mesh.size):
        tensors = samples.local_tensors(mesh, rank, seed=1)
        assert load_weights(folder, tensors, NAMES) == ""
        for loaded, expected in zip(tensors, samples.local_tensors(mesh, rank, seed=5), strict=True):
            assert torch.equal(loaded.local, expected.local)


def test_mismatches_are_reported(tmp_path: Path) -> None:
    message = load_weights(
        write_folder(tmp_path / "a", without="bias", head=torch.zeros(2)), samples.local_tensors(Mesh(), 0, 1), NAMES
    )
    assert "initialized by the model's constructor: bias" in message
    assert "but not in the model, so ignored: head" in message
    with pytest.raises(OnecurveError, match="no tensor name matches the model's"):
        load_weights(write_folder(tmp_path / "b"), samples.local_tensors(Mesh(), 0, 1), {})
    wrong = write_folder(tmp_path / "c", without="bias", bias=torch.zeros(7))
    with pytest.raises(OnecurveError, match=r"bias has shape \(7,\), but bias of the model has shape \(6,\)"):
        load_weights(wrong, samples.local_tensors(Mesh(), 0, 1), NAMES)
    with pytest.raises(OnecurveError, match="cannot be read"):
        load_weights(tmp_path / "nothing", samples.local_tensors(Mesh(), 0, 1), NAMES)


def test_a_tied_weight_is_found_by_any_of_its_names(tmp_path: Path) -> None:
    save_file({"head.weight": samples.value("embed.weight", 5)}, tmp_path / "one.safetensors")
    tensors = samples.local_tensors(Mesh(), 0, 1)
    load_weights(tmp_path / "one.safetensors", tensors, {**NAMES, "head.weight": ["embed.weight"]})
    assert torch.equal(tensors[0].local, samples.value("embed.weight", 5))


def test_links_in_the_hugging_face_cache_are_followed(tmp_path: Path) -> None:
    snapshot = tmp_path / "snapshots" / "revision"
    snapshot.mkdir(parents=True)
    (tmp_path / "blobs").mkdir()
    save_file({name: samples.value(name, 5) for name in NAMES}, tmp_path / "blobs" / "0a1b")
    (snapshot / "model.safetensors").symlink_to(tmp_path / "blobs" / "0a1b")
    tensors = samples.local_tensors(Mesh(), 0, 1)
    assert load_weights(snapshot, tensors, NAMES) == ""
    assert torch.equal(tensors[0].local, samples.value("embed.weight", 5))
