import pytest

from onecurve.describe.summary import ExportSummary, RunSummary

EXPORT = {"source": "runs/1", "step": 10, "path": "model.safetensors", "tensors": 4, "bytes": 400}


def test_fields_are_given_by_name() -> None:
    assert ExportSummary(**EXPORT).tensors == 4
    with pytest.raises(TypeError, match="positional"):
        ExportSummary(*EXPORT.values())
    with pytest.raises(TypeError, match="positional"):
        RunSummary("runs/1", "mb8 fp32", 1, 10, 10, "finished", 0.5, None, None, None, 60.0, 100.0)
