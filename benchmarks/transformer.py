"""A published run as the predictor takes it: the shape of a transformer as a profile, its software as an engine."""

import math
from dataclasses import dataclass, replace

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, split_evenly
from onecurve.describe.profile import Collective, ComputeLoad, Direction, ModuleProfile, Profile, Work

_BYTES = 2
_OPERATIONS = 130
"""Of a block with experts, forward."""
_ROUTING = 16
"""How often a routed token is read or written, forward."""
_GROUPED = 2.5
"""How many times as long as one large product the products of many experts take."""
_PRECISIONS = {"mxfp8": "fp8", "nvfp4": "fp4"}


@dataclass(frozen=True)
class Software:
    """Facts about a framework as it was when the measurement was made; `efficiency` is the one fitted number."""

    fused_attention: bool
    sequence: bool
    """Whether activations between blocks are cut along the sequence over `tensor`."""
    engine: Engine

    @property
    def engine_alike(self) -> Engine:
        """As if it were as fast as the others."""
        return replace(self.engine, efficiency=1.0)


MEGATRON_DEEPSPEED = Software(
    False,
    False,
    Engine(
        1.0,
        2,
        2,
        False,
        34,
        weight_bytes=2,
        stored_gradient_bytes=2,
        optimizer_state_bytes=16,
        shards_optimizer_state=True,
        keeps_gathered_copy=False,
        recomputes_attention=True,
    ),
)
# Its efficiency is that of fp8 and mixtures, most of its rows; on its few dense rows 1.0 would be nearer.
MEGATRON = Software(
    True, True, Engine(1.28, 4, 2, overlaps=True, update_bytes=34, keeps_gathered_copy=False, recomputes_attention=True)
)
COMPOSER = Software(True, False, Engine(0.898, 2, 2, update_bytes=28, recomputes_attention=True))
TORCHTITAN = Software(True, True, Engine(0.95, 4, 2, update_bytes=28, recomputes_attention=True))
JAX = Software(True, False, Engine(1.15, 2, 2, keeps_gathered_copy=False, recomputes_attention=True))
OTHER = Software(True, False, Engine(1.0, 4, 2, keeps_gathered_copy=False, recomputes_attention=True))


def software(source: str) -> tuple[str, Software]:
    """By the source's name."""
    known = (
        ("vTrain", "megatron-deepspeed", MEGATRON_DEEPSPEED),
        ("bigscience", "megatron-deepspeed", MEGATRON_DEEPSPEED),
        ("mosaicml", "composer", COMPOSER),
        ("torchtitan", "torchtitan", TORCHTITAN),
        ("JAX", "jax", JAX),
        ("Korthikanti", "megatron", Software(False, True, MEGATRON.engine)),
        ("Megatron", "megatron", MEGATRON),
        ("NeMo", "megatron", MEGATRON),
    )
    return next(((name, made) for word, name, made in known if word in source), ("other", OTHER))


@dataclass(frozen=True)
class Run:
    """One row."""

    row: dict[str, str]

    def number(self, name: str, default: float = 0.0) -> float:
        text = self.row.get(name) or ""
        return float(text) if text else default

    @property
    def source(self) -> str:
        return self.row["source"]

    @property
    def measured(self) -> float:
        return self.number("step_time_s")

    @property
    def dense(self) -> bool:
        return self.row["precision"] in ("bf16", "fp16") and not self.row["moe_experts"]

    def hosts(self) -> HostGroup:
        name = self.row["gpu"]
        low_power = name.endswith("500W")
        found = hosts_of("H100-80GB-SXM" if low_power else name, 1)
        network = found.inter_host
        if "1600 Gbps" in self.row["notes"]:
            network = Link(network.latency, 25e9)
        if "Jean Zay" in self.row["notes"] or "bigscience" in self.source:  # four Omni-Path links of 100 Gbit/s a host
            network = Link(network.latency, 6.25e9)
        device = found.device
        if low_power:  # clocks fall with the power that a part may draw: 500 of 700 W, (500/700)^(1/2)
            device = replace(device, flops={k: v * 0.845 for k, v in device.flops.items()})
        count = max(1, int(self.number("gpus")) // found.devices_per_host)
        return HostGroup(device, count, found.devices_per_host, 0, found.intra_host, network)

    def plan(self) -> Plan:
        tp, pp, dp = (int(self.number(name, 1)) for name in ("tp", "pp", "dp"))
        sharded = self.row["sharding"] in ("zero3", "zero2")
        shard = max(1, min(dp, int(self.number("shard_group") or dp))) if sharded else 1
        expert = max(1, min(int(self.number("ep", 1)), dp // shard)) if self.row["moe_experts"] else 1
        virtual = int(self.number("vpp", 1))
        micro = max(1, int(self.number("micro_batch", 1)))
        rounds = max(1, math.ceil(self.number("global_batch") / (dp * micro)))
        layers = int(self.number("layers"))
        recompute = self.row["recompute"]
        return Plan(
            Mesh(pipeline=pp, replicate=max(1, dp // shard // expert), shard=shard, expert=expert, tensor=tp),
            micro,
            rounds,
            precision=_PRECISIONS.get(self.row["precision"], self.row["precision"]),  # type: ignore[arg-type]
            sharding="zero2" if self.row["sharding"] == "zero2" else "zero3",
            reduce="round",
            recompute="full" if recompute == "full" else "selective" if "selective" in recompute else "none",
            schedule="interleaved" if virtual > 1 else "1f1b",
            sequence=software(self.source)[1].sequence,
            stages=split_evenly(layers, pp * virtual) if pp > 1 else (),
        )

    def profile(self, made: Software) -> Profile:
        return Shape(self, made).profile()

    def engine(self, made: Software) -> Engine:
        """With bf16 DeepSpeed adds up gradients in fp32, beside those in bf16."""
        if "bigscience" in self.source and self.row["precision"] == "bf16":
            return replace(made.engine, stored_gradient_bytes=6)
        return made.engine


class Shape:
    """What one tensor rank computes of a decoder-only transformer, for one micro-batch."""

    def __init__(self, run: Run, made: Software) -> None:
        number = run.number
        self.made = made
        self.tensor = int(number("tp", 1))
        self.layers = int(number("layers"))
        self.width, self.ffn, self.vocabulary = number("hidden"), number("ffn_hidden"), number("vocab")
        self.ups = 2 if number("gated_ffn") else 1
        self.heads = number("heads")
        self.values = (number("kv_heads") or self.heads) / self.heads * self.width
        self.length = number("seq_len")
        self.experts, self.active = number("moe_experts"), number("moe_topk")
        self.expert_ranks = int(number("ep", 1))
        self.neighbours = run.hosts().devices_per_host
        self.samples = max(1.0, number("micro_batch", 1))
        self.tokens = self.samples * self.length / max(1.0, number("cp", 1))
        self.input_bytes = self.tokens * self.width * _BYTES

    @property
    def per_token(self) -> float:
        """How many experts a token goes through."""
        return self.active if self.experts else 1.0

    def profile(self) -> Profile:
        cut = self.tensor
        feed = (self.ups + 1) * self.width * self.ffn * (self.experts / self.expert_ranks if self.experts else 1)
        parameters = int((2 * self.width**2 + 2 * self.values * self.width + feed) / cut)
        scores = 0.0 if self.made.fused_attention else 5 * self.heads * self.length / self.width
        kept, input_bytes = self._kept(scores), int(self.input_bytes)
        matmul_output_bytes = self._kept(0.0) - input_bytes  # selective recomputation is of the scores alone
        block = ModuleProfile(
            ("blocks.*",) * self.layers,
            parameters,
            parameters,
            0,
            0,
            self._block(),
            kept,
            input_bytes,
            matmul_output_bytes,
        )
        words = int(self.vocabulary * self.width / cut)
        output = int(10 * self.tokens * self.vocabulary / cut)  # the logits in two bytes, then twice in four
        outside = ModuleProfile((), words, words, 0, 0, self._outside(), output, 0)
        return Profile(int(self.samples), (block,), outside, 0, 2)

    def _kept(self, scores: float) -> int:
        """Activations of a block, as Korthikanti et al. count them; without dropout's masks where it is not used."""
        whole, cut = (0.0, 34.0) if self.made.sequence else (10.0, 24.0)
        return int(self.tokens * self.width * (whole + (cut + scores) / self.tensor))

    def _block(self) -> Work:
        matmuls = [
            (self.tokens, (self.width + 2 * self.values) / self.tensor, self.width),
            (self.tokens, self.width, self.width / self.tensor),
            (self.tokens * self.per_token, self.ups * self.ffn / self.tensor, self.width),
            (self.tokens * self.per_token, self.width, self.ffn / self.tensor),
        ]
        flops = sum(2 * m * n * k for m, n, k in matmuls)
        bytes_moved = sum(_BYTES * (m * k + k * n + m * n) for m, n, k in matmuls)
        summed = 0.0
        if self.experts:  # the weights of all experts here are read, and their gradients are added up in four bytes
            weights = sum(n * k for _, n, k in matmuls[2:])
            here = self.experts / self.expert_ranks
            bytes_moved += _BYTES * (here - 1) * weights
            summed = 8 * here * weights
        scores = self.tokens * self.length * self.heads / self.tensor
        attention = 4 * self.tokens * self.length * self.width / self.tensor
        stream = self.input_bytes / (self.tensor if self.made.sequence else 1)
        inner = self.tokens * self.per_token * self.ffn * self.ups * _BYTES / self.tensor
        # Two norms, two residual sums with dropout, copies of heads; the activation function.
        between = 14 * stream + 2 * inner
        forward_flops = {"matrix": flops, "attention": attention}
        backward_flops = {"matrix": 2 * flops, "attention": 2.5 * attention}
        seen = back = 0.0
        if not self.made.fused_attention:  # scores are written and read: scaled, masked, softmax, dropped
            forward_flops, backward_flops = {"matrix": flops + attention}, {"matrix": 2 * (flops + attention)}
            seen, back = 6 * scores * _BYTES, 18 * scores * _BYTES
        sent = int(self.input_bytes)
        whens: tuple[Direction, ...] = ("forward", "backward")
        exchanges = [Collective("all_reduce", sent, when) for when in whens for _ in range(2)]
        operations = 26
        if self.experts:  # tokens are put in the experts' order, sent to them, brought back and weighed
            between += _ROUTING * self.input_bytes * self.per_token
            grouped = 1 + (_GROUPED - 1) * sum(2 * m * n * k for m, n, k in matmuls[2:]) / flops
            forward_flops["matrix"], backward_flops["matrix"] = grouped * flops, 2 * grouped * flops
            exchanges += [Collective("all_to_all", self._routed(), when, "expert") for when in whens for _ in range(2)]
            operations = _OPERATIONS
        return Work(
            ComputeLoad({k: int(v) for k, v in forward_flops.items()}, int(bytes_moved + between + seen), operations),
            ComputeLoad(
                {k: int(v) for k, v in backward_flops.items()},
                int(2 * bytes_moved + summed + 1.7 * between + back),
                98 + operations,
            ),
            tuple(exchanges),
        )

    def _routed(self) -> int:
        """Bytes sent to experts, as far as they are felt: a token goes to a host once, however many of its experts are
        there, and other rounds compute meanwhile."""
        hosts = max(1.0, self.expert_ranks * self.tensor / self.neighbours)
        copies = hosts * (1 - (1 - 1 / hosts) ** self.per_token)
        input_bytes = self.input_bytes / (
            self.tensor if self.made.sequence else 1
        )  # each tensor rank sends its part of them
        return int(Constants().overlap_penalty * input_bytes * min(copies, self.per_token))

    def _outside(self) -> Work:
        columns = self.vocabulary / self.tensor
        flops = 2 * self.tokens * columns * self.width
        logits = self.tokens * columns
        bytes_moved = _BYTES * (self.tokens * self.width + columns * self.width + logits)
        return Work(
            ComputeLoad({"matrix": int(flops)}, int(bytes_moved + 30 * logits + 4 * self.input_bytes), 20),
            ComputeLoad({"matrix": int(2 * flops)}, int(2 * bytes_moved + 21 * logits + 4 * self.input_bytes), 30),
        )
