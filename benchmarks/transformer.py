"""Convert a published run into the predictor's input: the model's sizes to a profile, its framework to an engine."""

import math
from dataclasses import dataclass, replace

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, split_evenly
from onecurve.describe.profile import Collective, ComputeLoad, Direction, ModuleProfile, Profile, Work

_ELEMENT_BYTES = 2
"""Bytes per element of weights and activations."""
_DENSE_BLOCK_OPS = 26
"""Operations in forward of a dense block."""
_MOE_BLOCK_OPS = 130
"""Operations in forward of a mixture-of-experts block."""
_ROUTING_PASSES = 16
"""Number of times that forward reads or writes a routed token."""
_GROUPED_MATMUL_FACTOR = 2.5
"""Time of the matrix products of many experts, as a multiple of one large product with the same FLOPs."""
_PRECISIONS = {"mxfp8": "fp8", "nvfp4": "fp4"}


@dataclass(frozen=True)
class Software:
    """A framework at the time of the measurement. The engine's `efficiency` is the only fitted number."""

    fused_attention: bool
    """True if attention does not write its scores to memory."""
    sequence: bool
    """True if activations between blocks are sharded along the sequence over `tensor` (sequence parallelism)."""
    engine: Engine

    @property
    def engine_without_efficiency(self) -> Engine:
        """The engine with the efficiency that is the default for all frameworks."""
        return replace(self.engine, efficiency=1.0)


MEGATRON_DEEPSPEED = Software(
    fused_attention=False,
    sequence=False,
    engine=Engine(
        efficiency=1.0,
        gradient_bytes=2,
        all_gather_bytes=2,
        overlaps=False,
        update_bytes=34,
        weight_bytes=2,
        stored_gradient_bytes=2,
        optimizer_state_bytes=16,
        shards_optimizer_state=True,
        keeps_gathered_copy=False,
        recomputes_attention=True,
    ),
)
# The efficiency is that of fp8 and mixture-of-experts rows, which are most of Megatron's rows; 1.0 would fit its few
# dense rows better.
MEGATRON = Software(
    fused_attention=True,
    sequence=True,
    engine=Engine(
        efficiency=1.28,
        gradient_bytes=4,
        all_gather_bytes=2,
        overlaps=True,
        update_bytes=34,
        keeps_gathered_copy=False,
        recomputes_attention=True,
    ),
)
COMPOSER = Software(
    fused_attention=True,
    sequence=False,
    engine=Engine(efficiency=0.898, gradient_bytes=2, all_gather_bytes=2, update_bytes=28, recomputes_attention=True),
)
TORCHTITAN = Software(
    fused_attention=True,
    sequence=True,
    engine=Engine(efficiency=0.95, gradient_bytes=4, all_gather_bytes=2, update_bytes=28, recomputes_attention=True),
)
JAX = Software(
    fused_attention=True,
    sequence=False,
    engine=Engine(
        efficiency=1.15, gradient_bytes=2, all_gather_bytes=2, keeps_gathered_copy=False, recomputes_attention=True
    ),
)
OTHER = Software(
    fused_attention=True,
    sequence=False,
    engine=Engine(
        efficiency=1.0, gradient_bytes=4, all_gather_bytes=2, keeps_gathered_copy=False, recomputes_attention=True
    ),
)


def software(source: str) -> tuple[str, Software]:
    """Return the name and the properties of the framework behind a source. `source`: the column of that name."""
    known = (
        ("vTrain", "megatron-deepspeed", MEGATRON_DEEPSPEED),
        ("bigscience", "megatron-deepspeed", MEGATRON_DEEPSPEED),
        ("mosaicml", "composer", COMPOSER),
        ("torchtitan", "torchtitan", TORCHTITAN),
        ("JAX", "jax", JAX),
        ("Korthikanti", "megatron", replace(MEGATRON, fused_attention=False)),
        ("Megatron", "megatron", MEGATRON),
        ("NeMo", "megatron", MEGATRON),
    )
    return next(((name, framework) for word, name, framework in known if word in source), ("other", OTHER))


@dataclass(frozen=True)
class Run:
    """One row of a CSV file of published runs."""

    row: dict[str, str]

    def number(self, name: str, default: float = 0.0) -> float:
        """Return the value of a numeric column, or the default if it is empty."""
        text = self.row.get(name) or ""
        return float(text) if text else default

    @property
    def source(self) -> str:
        return self.row["source"]

    @property
    def measured(self) -> float:
        """Measured seconds per step."""
        return self.number("step_time_s")

    @property
    def dense(self) -> bool:
        """True for a model without experts in bf16 or fp16."""
        return self.row["precision"] in ("bf16", "fp16") and not self.row["moe_experts"]

    def hosts(self) -> HostGroup:
        """Return the hosts of the run, from the catalogue and the row's notes."""
        name = self.row["gpu"]
        low_power = name.endswith("500W")
        listed = hosts_of("H100-80GB-SXM" if low_power else name, 1)
        network = listed.inter_host
        if "1600 Gbps" in self.row["notes"]:
            network = Link(network.latency, 25e9)
        if "Jean Zay" in self.row["notes"] or "bigscience" in self.source:
            network = Link(network.latency, 6.25e9)  # each host has four Omni-Path links of 100 Gbit/s
        device = listed.device
        if low_power:  # clock speed falls with the square root of the power limit: 500 of 700 W
            device = replace(device, flops={kind: rate * 0.845 for kind, rate in device.flops.items()})
        return HostGroup(
            device=device,
            count=max(1, int(self.number("gpus")) // listed.devices_per_host),
            devices_per_host=listed.devices_per_host,
            cores_per_host=0,
            intra_host=listed.intra_host,
            inter_host=network,
        )

    def plan(self) -> Plan:
        tp, pp, dp = (int(self.number(name, 1)) for name in ("tp", "pp", "dp"))
        sharded = self.row["sharding"] in ("zero3", "zero2")
        shard = max(1, min(dp, int(self.number("shard_group") or dp))) if sharded else 1
        expert = max(1, min(int(self.number("ep", 1)), dp // shard)) if self.row["moe_experts"] else 1
        stages_per_rank = int(self.number("vpp", 1))
        micro_batch = max(1, int(self.number("micro_batch", 1)))
        rounds = max(1, math.ceil(self.number("global_batch") / (dp * micro_batch)))
        layers = int(self.number("layers"))
        recompute = self.row["recompute"]
        return Plan(
            mesh=Mesh(pipeline=pp, replicate=max(1, dp // shard // expert), shard=shard, expert=expert, tensor=tp),
            micro_batch=micro_batch,
            rounds=rounds,
            precision=_PRECISIONS.get(self.row["precision"], self.row["precision"]),  # type: ignore[arg-type]
            sharding="zero2" if self.row["sharding"] == "zero2" else "zero3",
            reduce="round",
            recompute="full" if recompute == "full" else "selective" if "selective" in recompute else "none",
            schedule="interleaved" if stages_per_rank > 1 else "1f1b",
            sequence=software(self.source)[1].sequence,
            stages=split_evenly(layers, pp * stages_per_rank) if pp > 1 else (),
        )

    def profile(self, framework: Software) -> Profile:
        return Shape(self, framework).profile()

    def engine(self, framework: Software) -> Engine:
        """Return the framework's engine. In bf16, DeepSpeed stores gradient sums in fp32 besides the bf16 gradients."""
        if "bigscience" in self.source and self.row["precision"] == "bf16":
            return replace(framework.engine, stored_gradient_bytes=6)
        return framework.engine


class Shape:
    """The sizes of a decoder-only transformer, and its costs on one tensor rank for one micro-batch."""

    def __init__(self, run: Run, framework: Software) -> None:
        number = run.number
        self.framework = framework
        self.tensor = int(number("tp", 1))
        self.layers = int(number("layers"))
        self.width, self.ffn, self.vocabulary = number("hidden"), number("ffn_hidden"), number("vocab")
        self.up_projections = 2 if number("gated_ffn") else 1
        self.heads = number("heads")
        self.kv_width = (number("kv_heads") or self.heads) / self.heads * self.width
        self.length = number("seq_len")
        self.experts, self.top_k = number("moe_experts"), number("moe_topk")
        self.expert_ranks = int(number("ep", 1))
        self.devices_per_host = run.hosts().devices_per_host
        self.samples = max(1.0, number("micro_batch", 1))
        self.tokens = self.samples * self.length / max(1.0, number("cp", 1))
        self.input_bytes = self.tokens * self.width * _ELEMENT_BYTES

    @property
    def experts_per_token(self) -> float:
        """Number of experts that process a token; 1 for a dense model."""
        return self.top_k if self.experts else 1.0

    def profile(self) -> Profile:
        local_experts = self.experts / self.expert_ranks if self.experts else 1
        ffn_parameters = (self.up_projections + 1) * self.width * self.ffn * local_experts
        parameters = int((2 * self.width**2 + 2 * self.kv_width * self.width + ffn_parameters) / self.tensor)
        score_bytes = 0.0 if self.framework.fused_attention else 5 * self.heads * self.length / self.width
        input_bytes = int(self.input_bytes)
        block = ModuleProfile(
            names=("blocks.*",) * self.layers,
            parameters=parameters,
            trainable=parameters,
            parameter_bytes=0,
            trainable_bytes=0,
            work=self._block_work(),
            activation_bytes=self._activation_bytes(score_bytes),
            input_bytes=input_bytes,
            # Selective recomputation drops only the attention scores.
            matmul_output_bytes=self._activation_bytes(0.0) - input_bytes,
        )
        vocabulary_parameters = int(self.vocabulary * self.width / self.tensor)
        outside = ModuleProfile(
            names=(),
            parameters=vocabulary_parameters,
            trainable=vocabulary_parameters,
            parameter_bytes=0,
            trainable_bytes=0,
            work=self._outside_work(),
            # 10 bytes per logit: one copy in two bytes and two copies in four.
            activation_bytes=int(10 * self.tokens * self.vocabulary / self.tensor),
            input_bytes=0,
        )
        return Profile(
            samples=int(self.samples),
            blocks=(block,),
            outside=outside,
            shared_activation_bytes=0,
            optimizer_tensors=2,
        )

    def _activation_bytes(self, score_bytes: float) -> int:
        """Return the bytes of activations of a block, as counted by Korthikanti et al. (2022).

        `score_bytes`: bytes of attention scores per token and unit of width.
        """
        replicated, split = (0.0, 34.0) if self.framework.sequence else (10.0, 24.0)
        return int(self.tokens * self.width * (replicated + (split + score_bytes) / self.tensor))

    def _block_work(self) -> Work:
        matmuls = [
            (self.tokens, (self.width + 2 * self.kv_width) / self.tensor, self.width),
            (self.tokens, self.width, self.width / self.tensor),
            (self.tokens * self.experts_per_token, self.up_projections * self.ffn / self.tensor, self.width),
            (self.tokens * self.experts_per_token, self.width, self.ffn / self.tensor),
        ]
        flops = sum(2 * m * n * k for m, n, k in matmuls)
        bytes_moved = sum(_ELEMENT_BYTES * (m * k + k * n + m * n) for m, n, k in matmuls)
        gradient_sum_bytes = 0.0
        if self.experts:  # the weights of all local experts are read, and their gradients are summed in four bytes
            expert_weights = sum(n * k for _, n, k in matmuls[2:])
            local_experts = self.experts / self.expert_ranks
            bytes_moved += _ELEMENT_BYTES * (local_experts - 1) * expert_weights
            gradient_sum_bytes = 8 * local_experts * expert_weights
        scores = self.tokens * self.length * self.heads / self.tensor
        attention = 4 * self.tokens * self.length * self.width / self.tensor
        residual_bytes = self.input_bytes / (self.tensor if self.framework.sequence else 1)
        ffn_bytes = self.tokens * self.experts_per_token * self.ffn * self.up_projections * _ELEMENT_BYTES / self.tensor
        # Two norms, two residual sums with dropout, copies of heads; the activation function.
        elementwise_bytes = 14 * residual_bytes + 2 * ffn_bytes
        forward_flops = {"matrix": flops, "attention": attention}
        backward_flops = {"matrix": 2 * flops, "attention": 2.5 * attention}
        forward_score_bytes = backward_score_bytes = 0.0
        if not self.framework.fused_attention:  # scores are written and read by scaling, mask, softmax and dropout
            forward_flops, backward_flops = {"matrix": flops + attention}, {"matrix": 2 * (flops + attention)}
            forward_score_bytes, backward_score_bytes = 6 * scores * _ELEMENT_BYTES, 18 * scores * _ELEMENT_BYTES
        directions: tuple[Direction, ...] = ("forward", "backward")
        size = int(self.input_bytes)
        collectives = [Collective("all_reduce", size, when) for when in directions for _ in range(2)]
        operations = _DENSE_BLOCK_OPS
        if self.experts:  # tokens are sorted by expert, sent to the experts, sent back and combined
            elementwise_bytes += _ROUTING_PASSES * self.input_bytes * self.experts_per_token
            expert_flops = sum(2 * m * n * k for m, n, k in matmuls[2:])
            slowdown = 1 + (_GROUPED_MATMUL_FACTOR - 1) * expert_flops / flops
            forward_flops["matrix"], backward_flops["matrix"] = slowdown * flops, 2 * slowdown * flops
            size = self._all_to_all_bytes()
            collectives += [Collective("all_to_all", size, when, "expert") for when in directions for _ in range(2)]
            operations = _MOE_BLOCK_OPS
        return Work(
            ComputeLoad(
                {kind: int(count) for kind, count in forward_flops.items()},
                int(bytes_moved + elementwise_bytes + forward_score_bytes),
                operations,
            ),
            ComputeLoad(
                {kind: int(count) for kind, count in backward_flops.items()},
                int(2 * bytes_moved + gradient_sum_bytes + 1.7 * elementwise_bytes + backward_score_bytes),
                98 + operations,
            ),
            tuple(collectives),
        )

    def _all_to_all_bytes(self) -> int:
        """Return the bytes sent to experts, scaled by the fraction that is not hidden behind other rounds' compute.

        A token is sent to a host once, even if several of its experts are there.
        """
        hosts = max(1.0, self.expert_ranks * self.tensor / self.devices_per_host)
        copies = hosts * (1 - (1 - 1 / hosts) ** self.experts_per_token)
        # Under sequence parallelism, each tensor rank sends only its part of the tokens.
        input_bytes = self.input_bytes / (self.tensor if self.framework.sequence else 1)
        return int(Constants().overlap_penalty * input_bytes * min(copies, self.experts_per_token))

    def _outside_work(self) -> Work:
        columns = self.vocabulary / self.tensor
        flops = 2 * self.tokens * columns * self.width
        logits = self.tokens * columns
        bytes_moved = _ELEMENT_BYTES * (self.tokens * self.width + columns * self.width + logits)
        return Work(
            ComputeLoad({"matrix": int(flops)}, int(bytes_moved + 30 * logits + 4 * self.input_bytes), 20),
            ComputeLoad({"matrix": int(2 * flops)}, int(2 * bytes_moved + 21 * logits + 4 * self.input_bytes), 30),
        )
