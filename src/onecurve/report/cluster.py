"""What a probe found, for a person."""

from onecurve.describe.cluster import Cluster, Hosts, Link
from onecurve.describe.fleet import cluster_text
from onecurve.describe.units import bytes_text, rate_text, seconds_text


def cluster_lines(cluster: Cluster) -> list[str]:
    return [cluster_text(cluster), *(line for group in cluster.groups for line in _group(group))]


def _group(group: Hosts) -> list[str]:
    device = group.device
    lines = [f"  one {'core' if group.kind == 'cpu' else 'device'} of {group.count} × {group.devices}:"]
    for precision, known in device.rates.items():
        by_size = ", ".join(f"{size}: {rate_text(rate)}FLOP/s" for size, rate in known.items())
        lines.append(f"    products in {precision:<5} {by_size}")
    lines.append(f"    memory {rate_text(device.bandwidth)}B/s, smallest operation {seconds_text(device.operation)}")
    for split in group.splits:
        ranks = group.cores // split.threads
        lines.append(
            f"  {ranks} × {split.threads} threads: each multiplies {split.matrix:.2f}× as fast as one core alone, "
            f"moves bytes {split.memory:.2f}×, starts operations in {split.operation:.2f}× the time"
        )
    lines.append(f"  inside a host:  {_link(group.inside)}")
    if group.network != group.inside:
        lines.append(f"  between hosts:  {_link(group.network)}")
    lines.append(f"  memory {bytes_text(device.memory)}, of which every rank takes {bytes_text(group.overhead)}")
    return lines


def _link(link: Link) -> str:
    felt = "" if link.felt is None else f", {link.felt:.0%} of it felt beside computing"
    return f"{rate_text(link.bandwidth)}B/s, {seconds_text(link.latency)} before the first byte{felt}"
