"""The output of `onecurve probe`."""

from onecurve.describe.cluster import Cluster, HostGroup, Link
from onecurve.describe.cluster_shorthand import cluster_text
from onecurve.describe.units import bytes_text, counted, rate_text, seconds_text


def cluster_lines(cluster: Cluster) -> list[str]:
    """The measured rates of each group of hosts."""
    return [cluster_text(cluster), *(line for group in cluster.groups for line in _group_lines(group))]


def _group_lines(group: HostGroup) -> list[str]:
    device = group.device
    hosts = counted(group.count, "host")
    unit = "core" if group.kind == "cpu" else "device"
    lines = [f"  one {unit} of {group.devices_per_host} on {'each of ' if group.count > 1 else ''}{hosts}:"]
    for precision, rates in device.matmul_rates.items():
        by_size = ", ".join(f"{size}: {rate_text(rate)}FLOP/s" for size, rate in rates.items())
        lines.append(f"    matmul {precision:<5} {by_size}")
    lines.append(
        f"    memory bandwidth {rate_text(device.memory_bandwidth)}B/s, "
        f"smallest operation {seconds_text(device.op_seconds)}"
    )
    for split in group.core_splits:
        ranks = group.cores_per_host // split.threads
        lines.append(
            f"  {ranks} × {split.threads} threads: per rank {split.matmul_speedup:.2f}× the matmul rate and "
            f"{split.memory_speedup:.2f}× the memory bandwidth of one core alone, "
            f"{split.op_slowdown:.2f}× the time per operation"
        )
    lines.append(f"  within a host:  {_link_text(group.intra_host)}")
    if group.inter_host != group.intra_host:
        lines.append(f"  between hosts:  {_link_text(group.inter_host)}")
    lines.append(
        f"  memory {bytes_text(device.memory)}, fixed overhead per rank {bytes_text(group.rank_overhead_bytes)}"
    )
    return lines


def _link_text(link: Link) -> str:
    text = f"bandwidth {rate_text(link.bandwidth)}B/s, latency {seconds_text(link.latency)}"
    if link.overlap_penalty is None:
        return text
    return f"{text}, {link.overlap_penalty:.0%} of overlapped communication time slows compute"
