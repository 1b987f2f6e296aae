"""LoRA with unchanged peft models: only adapters are trained, saved and exported; the base is loaded anew."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import onecurve as oc
from harness import EXAMPLES, onecurve

LORA = str(EXAMPLES / "lora.py")
SMALL = ("context=16", "batch=8", "rank=4")


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of a small Llama."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("base")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(vocab_size=256, num_hidden_layers=2, **sizes)).save_pretrained(folder)
    return folder


def test_check_holds(base, tmp_path) -> None:
    plans = ("replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2")
    words = [word for plan in plans for word in ("--plan", plan)]
    held = onecurve("check", LORA, f"folder={base}", *SMALL, *words, cwd=tmp_path)
    assert held.returncode == 0, held.stdout + held.stderr


@pytest.mark.slow
def test_check_holds_on_four_ranks(base, tmp_path) -> None:
    plans = ("replicate2 shard2 mb2", "shard4 mb2", "shard2 tensor2 mb4", "pipeline2 shard2 mb2×2")
    words = [word for plan in plans for word in ("--plan", plan)]
    held = onecurve("check", LORA, f"folder={base}", *SMALL, *words, cwd=tmp_path)
    assert held.returncode == 0, held.stdout + held.stderr


def test_only_adapters_are_saved_and_exported(base, tmp_path) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = shutil.copytree(base, tmp_path / "base")

    def run(*words: str, code: int = 0) -> str:
        done = onecurve("run", LORA, f"folder={base}", *SMALL, "lr=0.05", *words, "--no-check", cwd=tmp_path)
        assert done.returncode == code, done.stderr
        return done.stderr

    run("steps=8", "--plan", "mb8", "--out", "whole")
    run("steps=4", "--plan", "shard2 mb4", "--out", "parts")
    run("steps=8", "--plan", "replicate2 mb4", "--out", "parts", "--change", "steps")
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    assert all("lora_" in name for name in whole)
    size = sum(file.stat().st_size for file in (tmp_path / "parts" / "checkpoints").rglob("*.safetensors"))
    assert size < 4 * 3 * sum(tensor.nbytes for tensor in whole.values())  # with two moments; two checkpoints

    loaded = oc.load(tmp_path / "whole")
    tokens = torch.arange(12)[None]
    expected = loaded(input_ids=tokens).logits
    exported = onecurve("export", "whole", "--to", "hf", "--out", "adapters", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert {file.name for file in (tmp_path / "adapters").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    by_peft = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), tmp_path / "adapters").eval()
    torch.testing.assert_close(by_peft(input_ids=tokens).logits, expected)
    plain = AutoModelForCausalLM.from_pretrained(base).eval()
    assert not torch.allclose(plain(input_ids=tokens).logits, expected, atol=1e-3)
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    found = oc.evaluate(tmp_path / "whole", plan="shard2 mb4")
    assert found.evaluation.loss == pytest.approx(summary["evaluation"]["loss"], rel=1e-4)

    weights = load_file(base / "model.safetensors")
    save_file({name: tensor * 1.1 for name, tensor in weights.items()}, base / "model.safetensors", {"format": "pt"})
    message = run("steps=10", "--plan", "mb8", "--out", "whole", "--change", "steps", code=1)
    assert "base" in message
