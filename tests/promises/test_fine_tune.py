"""A Hugging Face folder in, a Hugging Face folder out."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
FINE_TUNE = str(Path(__file__).parents[1] / "jobs" / "fine_tune.py")


def onecurve(*arguments: str, cwd: Path) -> str:
    command = [sys.executable, "-m", "onecurve", *arguments]
    done = subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def made(folder: Path, tied: bool) -> "transformers.PreTrainedModel":
    torch.manual_seed(1)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
        max_position_embeddings=32,
        tie_word_embeddings=tied,
    )
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(folder, max_shard_size="20KB")
    (folder / "tokenizer_config.json").write_text("{}")
    return model


@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
def test_a_fine_tune_from_folder_to_folder(tied: bool, tmp_path) -> None:
    first = made(tmp_path / "base", tied)
    assert (tmp_path / "base" / "model.safetensors.index.json").exists()
    ids = torch.arange(24).view(2, 12)
    out = onecurve("run", FINE_TUNE, "folder=base", "--plan", "shard2 mb4", "--out", "a", cwd=tmp_path)
    assert "warning" not in out
    exported = json.loads(onecurve("export", "a", "--to", "hf", "--out", "tuned", "--json", cwd=tmp_path))
    assert exported["step"] == 6
    tuned, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (tmp_path / "tuned" / "tokenizer_config.json").exists()

    # The same training on one device, never put into a folder in between.
    onecurve("run", FINE_TUNE, "folder=base", "--plan", "mb8", "--out", "b", cwd=tmp_path)
    onecurve("export", "b", "--to", "hf", "--out", "alone", cwd=tmp_path)
    alone = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "alone")
    with torch.no_grad():
        logits = [model(ids).logits for model in (first, tuned, alone)]
    torch.testing.assert_close(logits[1], logits[2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)

    # What from_pretrained made is what the run ended with, to the last bit.
    onecurve("export", "a", "--to", "safetensors", "--out", "tuned.safetensors", cwd=tmp_path)
    same = transformers.LlamaForCausalLM(first.config)
    from safetensors.torch import load_model

    load_model(same, tmp_path / "tuned.safetensors")
    with torch.no_grad():
        assert torch.equal(same(ids).logits, logits[1])
