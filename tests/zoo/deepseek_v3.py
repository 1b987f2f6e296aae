"""DeepSeek V3: multi-head latent attention, a dense first layer and routed experts with a shared one."""

from common import SIZES, TOKENS, training_job
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


def job(experts: str = "eager"):
    config = {
        **SIZES,
        "num_key_value_heads": 4,
        "q_lora_rank": 16,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4,
        "v_head_dim": 8,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 2,
        "topk_group": 1,
        "first_k_dense_replace": 1,
        "experts_implementation": experts,
    }
    return training_job(lambda: DeepseekV3ForCausalLM(DeepseekV3Config(**config, **TOKENS)))
