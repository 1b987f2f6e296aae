"""A notebook plans, checks, trains on two ranks, plots and loads."""

import json

import nbformat
from nbclient import NotebookClient

CELLS = [
    "import torch\nfrom torch import nn\nimport onecurve as oc\n%pwd",
    "SIZE = 4\nwidth = 8",
    """class Points:
    def __len__(self):
        return 64

    def __getitem__(self, index):
        x = torch.randn(SIZE, generator=torch.Generator().manual_seed(index))
        return x, x.sum()[None]""",
    """def network():
    return nn.Sequential(nn.Linear(SIZE, width), nn.Tanh(), nn.Linear(width, 1))


def regression(steps: int = 30):
    return oc.Job(
        model=network, loss=oc.loss.mse, data=Points, optimizer=oc.AdamW(lr=0.05), global_batch=8, steps=steps,
        evaluate=oc.Evaluate(Points, every=15),
    )""",
    "width = 6",  # the present value counts
    "advice = oc.plan(regression)\nadvice",
    "checked = oc.check(regression, plans=['replicate2 mb4', 'shard2 mb4'])\nassert checked.holds\nchecked",
    "run = oc.run(regression, ranks=2, out='runs/first')\nrun",
    "run.plot()",
    "table = run.records()\nassert len(table) == 30\nfloat(table['loss'].iloc[-1] if hasattr(table, 'iloc') else 0)",
    "model = oc.load('runs/first')\nassert model[0].weight.shape == (6, 4)\nmodel(torch.ones(1, 4)).item()",
    "fit = regression(12)\none = oc.run(fit, ranks=1, out='runs/one')\none.steps",
]


def test_a_notebook_from_plan_to_load(tmp_path) -> None:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS])
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = {cell.source: cell.outputs for cell in notebook.cells}

    def html(cell: str) -> str:
        return "".join(str(output.get("data", {}).get("text/html", "")) for output in outputs[cell])

    assert "time per step" in html(CELLS[5])
    assert "holds" in html(CELLS[6])
    assert "step 30/30" in html(CELLS[7])  # the bar
    assert "30 of 30 (finished)" in html(CELLS[7])
    assert "<polyline" in html(CELLS[8])
    assert outputs[CELLS[11]][-1]["data"]["text/plain"] == "12"
    (path,) = (tmp_path / ".onecurve").glob("*/regression.py")
    script = path.read_text()
    assert "width = 6" in script
    origin = json.loads((tmp_path / "runs" / "first" / "run.json").read_text())
    assert origin["script"] == str(path)


def test_what_other_processes_cannot_see_is_named(tmp_path) -> None:
    cells = [
        "import torch\nimport onecurve as oc\nrows = torch.ones(3)",
        "def job():\n    return oc.Job(model=lambda: rows)",
        "try:\n    oc.plan(job)\nexcept oc.OnecurveError as error:\n    print(error)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
    (output,) = notebook.cells[2].outputs
    assert "the job uses 'rows', an object of type Tensor" in output["text"]
