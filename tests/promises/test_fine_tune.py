"""Fine-tuning from a Hugging Face folder, with an export to another Hugging Face folder."""

import json
from pathlib import Path

import pytest
import torch

from harness import JOBS, onecurve

transformers = pytest.importorskip("transformers")
FINE_TUNE = str(JOBS / "fine_tune.py")


def run(*arguments: str, cwd: Path) -> str:
    done = onecurve(*arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return done.stdout


def save_base_model(folder: Path, tied: bool) -> "transformers.PreTrainedModel":
    """Save a small random Llama in several files; return the model."""
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


@pytest.mark.parametrize("tied", [pytest.param(False, marks=pytest.mark.slow), True], ids=["untied", "tied"])
def test_a_fine_tune_from_folder_to_folder(tied: bool, tmp_path) -> None:
    base = save_base_model(tmp_path / "base", tied)
    assert (tmp_path / "base" / "model.safetensors.index.json").exists()
    ids = torch.arange(24).view(2, 12)
    out = run("run", FINE_TUNE, "folder=base", "--plan", "shard2 mb4", "--out", "a", cwd=tmp_path)
    assert "warning" not in out
    exported = json.loads(run("export", "a", "--to", "hf", "--out", "tuned", "--json", cwd=tmp_path))
    assert exported["step"] == 6
    tuned, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert (tmp_path / "tuned" / "tokenizer_config.json").exists()

    # The same training on one device.
    run("run", FINE_TUNE, "folder=base", "--plan", "mb8", "--out", "b", cwd=tmp_path)
    run("export", "b", "--to", "hf", "--out", "one_device", cwd=tmp_path)
    one_device = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "one_device")
    with torch.no_grad():
        logits = [model(ids).logits for model in (base, tuned, one_device)]
    torch.testing.assert_close(logits[1], logits[2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)

    # The model that from_pretrained loads is bitwise equal to the final weights of the run.
    run("export", "a", "--to", "safetensors", "--out", "tuned.safetensors", cwd=tmp_path)
    final = transformers.LlamaForCausalLM(base.config)
    from safetensors.torch import load_model

    load_model(final, tmp_path / "tuned.safetensors")
    with torch.no_grad():
        assert torch.equal(final(ids).logits, logits[1])
