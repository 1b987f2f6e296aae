"""The models of the zoo: every job file with the arguments that the table of results has a row for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ZooModel:
    name: str
    script: str
    """Job file in this folder."""
    arguments: tuple[str, ...] = ()
    """Arguments of its `job()`, as on the command line."""


ZOO: tuple[ZooModel, ...] = (
    # Decoders
    ZooModel("llama", "llama.py"),
    ZooModel("qwen2", "qwen2.py"),
    ZooModel("qwen3", "qwen3.py"),
    ZooModel("gemma2", "gemma2.py"),
    ZooModel("gemma2 no cache", "gemma2.py", ("cache=false",)),
    ZooModel("gemma3", "gemma3.py"),
    ZooModel("gemma3 no cache", "gemma3.py", ("cache=false",)),
    ZooModel("mistral", "mistral.py"),
    ZooModel("mistral no cache", "mistral.py", ("cache=false",)),
    ZooModel("phi3", "phi3.py"),
    ZooModel("phi3 grouped queries", "phi3.py", ("kv=2",)),
    ZooModel("gptneox", "gptneox.py"),
    ZooModel("opt", "opt.py"),
    ZooModel("opt layerdrop", "opt.py", ("layerdrop=0.2",)),
    ZooModel("bloom", "bloom.py"),
    ZooModel("gptj", "gptj.py"),
    ZooModel("gpt2", "gpt2.py"),
    ZooModel("falcon", "falcon.py"),
    ZooModel("falcon new", "falcon.py", ("new=true",)),
    ZooModel("mamba", "mamba.py"),
    ZooModel("mamba2", "mamba2.py"),
    ZooModel("olmo2", "olmo2.py"),
    ZooModel("starcoder2", "starcoder2.py"),
    ZooModel("rwkv", "rwkv.py"),
    # Mixtures of experts
    ZooModel("mixtral", "mixtral.py"),
    ZooModel("mixtral aux", "mixtral.py", ("aux=true",)),
    ZooModel("mixtral grouped_mm", "mixtral.py", ("experts=grouped_mm",)),
    ZooModel("qwen_moe", "qwen_moe.py"),
    ZooModel("qwen2_moe", "qwen2_moe.py"),
    ZooModel("deepseek_v3", "deepseek_v3.py"),
    ZooModel("gpt_oss", "gpt_oss.py"),
    ZooModel("plain_moe", "plain_moe.py"),
    # Encoders
    ZooModel("bert", "bert.py"),
    ZooModel("distilbert", "distilbert.py"),
    ZooModel("roberta", "roberta.py"),
    ZooModel("deberta", "deberta.py"),
    ZooModel("electra", "electra.py"),
    ZooModel("albert", "albert.py"),
    ZooModel("mobilebert", "mobilebert.py"),
    ZooModel("xlm_roberta", "xlm_roberta.py"),
    ZooModel("modernbert", "modernbert.py"),
    # Encoder-decoder models
    ZooModel("t5", "t5.py"),
    ZooModel("t5 untied", "t5.py", ("tied=false",)),
    ZooModel("bart", "bart.py"),
    ZooModel("bart layerdrop", "bart.py", ("layerdrop=0.2",)),
    ZooModel("marian", "marian.py"),
    ZooModel("mbart", "mbart.py"),
    ZooModel("nn_transformer", "nn_transformer.py"),
    # Speech
    ZooModel("whisper", "whisper.py"),
    ZooModel("wav2vec2", "wav2vec2.py"),
    ZooModel("spec_augment", "spec_augment.py"),
    ZooModel("hubert", "hubert.py"),
    ZooModel("audio_spectrogram", "audio_spectrogram.py"),
    # Vision
    ZooModel("vit_hf", "vit_hf.py"),
    ZooModel("dinov2", "dinov2.py"),
    ZooModel("convnextv2", "convnextv2.py"),
    ZooModel("segformer", "segformer.py"),
    ZooModel("plain_unet", "plain_unet.py"),
    ZooModel("timm_vit", "timm_vit.py"),
    ZooModel("timm_vit eva", "timm_vit.py", ("name=eva",)),
    ZooModel("timm_vit mixer", "timm_vit.py", ("name=mixer",)),
    ZooModel("timm_vit regnet", "timm_vit.py", ("name=regnet",)),
    ZooModel("tv_resnet18", "tv_resnet18.py"),
    ZooModel("tv_resnet18 local", "tv_resnet18.py", ("batch_norm=local",)),
    ZooModel("tv_convnext", "tv_convnext.py"),
    ZooModel("tv_convnext drop", "tv_convnext.py", ("drop=0.2",)),
    ZooModel("tv_swin", "tv_swin.py"),
    ZooModel("tv_efficientnet", "tv_efficientnet.py"),
    ZooModel("tv_mobilenet_v3", "tv_mobilenet_v3.py"),
    ZooModel("tv_densenet", "tv_densenet.py"),
    ZooModel("tv_vgg11", "tv_vgg11.py"),
    ZooModel("tv_fasterrcnn", "tv_fasterrcnn.py"),
    ZooModel("tv_fasterrcnn weighted", "tv_fasterrcnn.py", ("form=weighted",)),
    ZooModel("inception_like", "inception_like.py"),
    # Vision and language
    ZooModel("clip", "clip.py"),
    ZooModel("clip per_sample", "clip.py", ("loss=per_sample",)),
    ZooModel("siglip", "siglip.py"),
    ZooModel("blip", "blip.py"),
    ZooModel("vilt", "vilt.py"),
    ZooModel("llava", "llava.py"),
    # Generative models of images and vectors, and a discriminator
    ZooModel("diffusers_unet", "diffusers_unet.py"),
    ZooModel("diffusers_unet_cond", "diffusers_unet_cond.py"),
    ZooModel("diffusers_dit", "diffusers_dit.py"),
    ZooModel("vae", "vae.py"),
    ZooModel("vq", "vq.py"),
    ZooModel("vq average", "vq.py", ("buffers=average",)),
    ZooModel("vit_mae", "vit_mae.py"),
    ZooModel("discriminator", "discriminator.py"),
    # Multilayer perceptrons, recurrent, tabular, recommender and graph models
    ZooModel("mlp", "mlp.py"),
    ZooModel("siamese", "siamese.py"),
    ZooModel("tab_transformer", "tab_transformer.py"),
    ZooModel("lstm", "lstm.py"),
    ZooModel("gru", "gru.py"),
    ZooModel("dlrm", "dlrm.py"),
    ZooModel("dlrm sparse", "dlrm.py", ("sparse=true", "opt=sgd")),
    ZooModel("gnn", "gnn.py"),
    ZooModel("gnn plain", "gnn.py", ("form=plain",)),
    ZooModel("gnn gat plain", "gnn.py", ("kind=gat", "form=plain")),
    # Features of torch and of training scripts
    ZooModel("lora", "lora.py"),
    ZooModel("lora_dropout0", "lora_dropout0.py"),
    ZooModel("pretrained", "pretrained.py"),
    ZooModel("padded_hf", "padded_hf.py"),
    ZooModel("padded_hf weighted", "padded_hf.py", ("form=weighted",)),
    ZooModel("hf_collator", "hf_collator.py"),
    ZooModel("hidden_states", "hidden_states.py"),
    ZooModel("hidden_states gpt2", "hidden_states.py", ("name=gpt2",)),
    ZooModel("kwargs_only", "kwargs_only.py"),
    ZooModel("kwargs_only dict", "kwargs_only.py", ("out=dict",)),
    ZooModel("kwargs_only tuple", "kwargs_only.py", ("out=tuple",)),
    ZooModel("mha", "mha.py"),
    ZooModel("parametrized", "parametrized.py"),
    ZooModel("parametrized spectral", "parametrized.py", ("kind=spectral",)),
    ZooModel("parametrized orthogonal", "parametrized.py", ("kind=orthogonal",)),
    ZooModel("parametrized old_weight", "parametrized.py", ("kind=old_weight",)),
    ZooModel("parametrized old_spectral", "parametrized.py", ("kind=old_spectral",)),
    ZooModel("complex_params", "complex_params.py"),
    ZooModel("ema_buffer", "ema_buffer.py"),
    ZooModel("ema_buffer average", "ema_buffer.py", ("buffers=average",)),
    ZooModel("frozen", "frozen.py"),
    ZooModel("frozen half", "frozen.py", ("frozen=2",)),
    ZooModel("sometimes", "sometimes.py"),
    ZooModel("sometimes rare", "sometimes.py", ("kind=rare",)),
    ZooModel("checkpointing", "checkpointing.py"),
    ZooModel("checkpointing reentrant", "checkpointing.py", ("reentrant=true",)),
    ZooModel("checkpointing gpt2", "checkpointing.py", ("name=gpt2",)),
    ZooModel("compiled", "compiled.py"),
    ZooModel("compiled aot_eager", "compiled.py", ("backend=aot_eager",)),
    ZooModel("compiled inplace aot_eager", "compiled.py", ("how=inplace", "backend=aot_eager")),
    ZooModel("compiled blocks aot_eager", "compiled.py", ("how=blocks", "backend=aot_eager")),
)

CI_MODELS: tuple[str, ...] = (
    "ema_buffer",  # state that forward changes
    "vae",  # random draws in forward
)
"""Names of the models that CI checks: one for each kind named behind it."""
