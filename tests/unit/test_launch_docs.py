"""docs/launch.md: its commands are accepted, and its Kubernetes file is complete."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from onecurve.cli.arguments import read_arguments

TEXT = (Path(__file__).parent.parent.parent / "docs" / "launch.md").read_text()
COMMANDS = [
    match[1]
    for match in re.finditer(
        r"(?:^|`|srun [^`\n]*?|mpirun [^`\n]*?)onecurve ((?:run|probe) [^`\n]*)", TEXT, re.MULTILINE
    )
]


def test_there_are_commands() -> None:
    assert len(COMMANDS) >= 8


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_are_accepted(command: str) -> None:
    assert read_arguments(shlex.split(command)).verb


def test_the_kubernetes_file_starts_as_many_pods_as_hosts() -> None:
    service, job = yaml.safe_load_all(re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[1])
    spec = job["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    chosen = read_arguments(container["command"][1:])
    assert spec["completionMode"] == "Indexed"
    assert int(chosen.hosts) == spec["completions"] == spec["parallelism"]
    name = job["metadata"]["name"]
    assert chosen.join == f"{name}-0.{pod['subdomain']}:29500"
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
