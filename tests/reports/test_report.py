"""The page of a model: what its data holds, that it stays small, and that no text of a model gets out of its place."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from click.testing import CliRunner
from large_graphs import another, transformer
from report_models import IMAGE, SCRIPT, hostile, nested

import torchport as tp
from torchport.cli.main import cli
from torchport.errors import FileError, OptionError, SaveError, ViewerMissingError
from torchport.optimization.accuracy import Accuracy, Limits
from torchport.optimization.quantization_report import Layer, Quantized
from torchport.reports import page as page_module
from torchport.reports.model_data import ModelData
from torchport.reports.weight_values import WeightReader


def data_of(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="text/plain" id="model-data">([A-Za-z0-9+/=]+)</script>', text)
    assert found is not None
    content: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return content


def node(data: dict[str, Any], name: str) -> dict[str, Any]:
    nodes = data["model"]["nodes"]
    return {column: values[nodes["name"].index(name)] for column, values in nodes.items()}


def test_a_page_holds_the_model(onnx_file: Path, tmp_path: Path) -> None:
    report = tp.report(onnx_file, tmp_path / "page.html")
    data = data_of(tmp_path / "page.html")
    model = data["model"]
    assert (report.nodes, report.faults, report.agrees) == (4, 0, None)
    assert report.bytes == (tmp_path / "page.html").stat().st_size
    assert data["verdicts"][0]["state"] == "good"
    conv = node(data, "node_Conv_6")
    assert model["operators"][conv["operator"]] == "Conv"
    assert model["modules"]["paths"][conv["module"]] == "norm"
    assert model["sources"][conv["source"]].endswith("small_net.py:19")
    assert conv["attributes"]["strides"] == "[1,1]"
    assert model["docs"]["Conv"]["attributes"]["strides"]["doc"].startswith("Stride along each spatial axis")
    assert [model["values"]["name"][v] for v in conv["inputs"]] == ["x", "conv.weight", "conv.bias"]
    assert model["types"][model["values"]["type"][conv["outputs"][0]]] == "float32[batch,8,height,width]"
    assert {label: value for label, value, _ in data["facts"]}["parameters"] == "269 (269)"


def test_weights_have_their_statistics(exported: tp.Exported) -> None:
    data = ModelData(exported.model).json_form()
    numbers = exported.model.graph.initializers["conv.weight"].const_value
    assert numbers is not None
    array = numbers.numpy()
    found = data["weights"][data["values"]["name"].index("conv.weight")]
    assert (found["elements"], found["bytes"], found["read"]) == (216, 864, 216)
    assert found["statistics"]["mean"] == pytest.approx(float(array.mean()), rel=1e-5)
    assert found["statistics"]["std"] == pytest.approx(float(array.std()), rel=1e-5)
    assert sum(found["histogram"]["counts"]) == 216


def test_a_large_weight_is_sampled_and_says_so() -> None:
    array = np.linspace(-1, 1, 1_000_000, dtype=np.float32)
    found = WeightReader(10.0).read(ir.tensor(array))
    assert found["read"] == 65536
    assert found["statistics"]["min"] == -1.0
    assert found["statistics"]["max"] == 1.0


def test_weights_with_odd_numbers_are_read() -> None:
    array = np.array([np.nan, np.inf, -np.inf, *range(20)], np.float32)
    found = WeightReader(10.0).read(ir.tensor(array))
    assert (found["statistics"]["nan"], found["statistics"]["inf"]) == (1, 2)
    assert sum(found["histogram"]["counts"]) == 20
    assert WeightReader(10.0).read(ir.tensor(np.full(20, np.nan, np.float32)))["histogram"] is None


def test_weights_are_left_unread_when_the_time_is_over(exported: tp.Exported) -> None:
    weights = ModelData(exported.model, weight_seconds=0.0).json_form()["weights"]
    assert weights
    assert all(weight["read"] == 0 for weight in weights.values())


def test_graphs_in_graphs_are_there(tmp_path: Path) -> None:
    tp.report(nested(), tmp_path / "page.html")
    model = data_of(tmp_path / "page.html")["model"]
    graphs = [graph["name"] for graph in model["graphs"]]
    assert sorted(graphs) == ["Twice", "body", "else", "nested", "then"]
    assert model["functions"] == {"mine::Twice": graphs.index("Twice")}
    bodies = dict(node(data_of(tmp_path / "page.html"), "branch")["bodies"])
    assert bodies == {"then_branch": graphs.index("then"), "else_branch": graphs.index("else")}


def test_modules_come_from_names_where_nothing_else_tells() -> None:
    model = transformer(20, modules=False)
    for one in model.graph:
        one.name = "/" + str(one.name).replace(".", "/")
    modules = ModelData(model).json_form()["modules"]
    assert modules["source"] == "names"
    assert modules["paths"][:3] == ["", "blocks", "blocks/0"]


def test_modules_come_from_the_scopes_that_torch_writes() -> None:
    model = transformer(20, modules=False)
    for one in model.graph:
        one.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'layer1', 'layer1.0', 'relu']"
    next(iter(model.graph)).metadata_props["pkg.torch.onnx.name_scopes"] = "[[" * 1000
    modules = ModelData(model).json_form()["modules"]
    assert (modules["source"], modules["paths"]) == ("torch", ["", "layer1", "layer1.0"])


def test_5000_nodes_take_less_than_5_mb(tmp_path: Path) -> None:
    assert tp.report(transformer(5000), tmp_path / "page.html").bytes < 5_000_000


def test_no_text_of_a_model_stands_in_the_html(tmp_path: Path) -> None:
    tp.report(hostile(), tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert SCRIPT not in text
    assert IMAGE not in text
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    names = data_of(tmp_path / "page.html")["model"]["nodes"]["name"]
    assert names[0] == SCRIPT
    assert max(map(len, names)) <= 2000


def test_a_page_allows_its_own_script_only(onnx_file: Path, tmp_path: Path) -> None:
    tp.report(onnx_file, tmp_path / "page.html")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', (tmp_path / "page.html").read_text())
    assert policy is not None
    assert policy[1].startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy[1]


def test_the_same_model_gives_the_same_page(onnx_file: Path, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        tp.report(onnx_file, tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_errors_lie_over_the_graph(exported: tp.Exported, onnx_file: Path, tmp_path: Path) -> None:
    changed = exported.model.clone()
    bias = changed.graph.initializers["fc.bias"]
    assert bias.const_value is not None
    bias.const_value = ir.tensor(bias.const_value.numpy() + 0.5, name="fc.bias")
    report = tp.report(changed, tmp_path / "page.html", against=onnx_file)
    data = data_of(tmp_path / "page.html")
    overlay = data["overlays"][0]
    found = {data["model"]["nodes"]["name"][n]: e for n, e in zip(overlay["nodes"], overlay["numbers"], strict=True)}
    assert report.agrees is False
    assert data["verdicts"][0]["state"] == "bad"
    assert data["plots"][0]["bars"][-1]["good"] is False
    assert max(found, key=lambda name: found[name]) == "node_linear"
    assert found["node_Conv_6"] == 0.0


def test_times_lie_over_the_graph(onnx_file: Path, tmp_path: Path, torchport: Callable[..., Any]) -> None:
    done: subprocess.CompletedProcess[str] = torchport(
        "report", onnx_file, "--profile", "--at", "batch=2,height=8,width=8", "-o", tmp_path / "page.html"
    )
    assert done.returncode == 0, done.stderr
    assert "4 nodes, no findings" in done.stdout
    data = data_of(tmp_path / "page.html")
    assert data["overlays"][0]["name"] == "Time"
    assert sum(data["overlays"][0]["numbers"]) > 0
    assert "Time by kernel" in [table["title"] for table in data["tables"]]


def test_results_of_other_verbs_stand_on_the_page(exported: tp.Exported, onnx_file: Path, tmp_path: Path) -> None:
    report = tp.report(onnx_file, tmp_path / "page.html", results=[exported, exported.proof])
    data = data_of(tmp_path / "page.html")
    assert report.agrees is True
    assert [table["title"] for table in data["tables"]][:3] == ["Proof", "Attempts of the export", "Proof"]
    assert len(data["tables"][0]["rows"]) == len(exported.proof.cases)
    assert data["verdicts"][0]["text"] == exported.proof.verdict_line()
    assert max(bar["number"] for bar in data["plots"][0]["bars"]) == exported.proof.summary()["max_rel"]
    with pytest.raises(OptionError, match="shows no str"):
        tp.report(onnx_file, tmp_path / "page.html", results=["text"])


def test_a_difference_lies_over_the_second_model(tmp_path: Path) -> None:
    changed = another(100)
    report = tp.report(changed, tmp_path / "page.html", results=[tp.graph.diff(transformer(100), changed)])
    data = data_of(tmp_path / "page.html")
    overlay = data["overlays"][0]
    kinds = {
        data["model"]["nodes"]["name"][place]: overlay["kinds"][int(number) - 1]
        for place, number in zip(overlay["nodes"], overlay["numbers"], strict=True)
    }
    assert report.agrees is False
    assert kinds["renamed"] == "renamed"
    assert kinds["blocks.0.softmax_9"] == "changed"
    assert kinds["added"] == "added"
    tp.report(transformer(100), tmp_path / "page.html", results=[tp.graph.diff(changed, transformer(100))])
    gone = [table for table in data_of(tmp_path / "page.html")["tables"] if table["title"] == "Nodes that are gone"]
    assert [row[:2] for row in gone[0]["rows"]] == [["added", "Tanh"]]


def test_quantized_layers_lie_over_the_graph(onnx_file: Path, tmp_path: Path) -> None:
    done = Quantized(
        model="small.onnx",
        path=str(onnx_file),
        scheme="dynamic-int8",
        engine="onnxruntime",
        layers=(
            Layer("node_Conv_6", "Conv", "quantized", noise=1e-4),
            Layer("node_linear", "Gemm", "float", "it costs too much", noise=math.inf),
            Layer("gone", "Gemm", "quantized"),
        ),
        accuracy=Accuracy((), 4),
        limits=Limits(cosine=0.99),
        expected="",
        speed=None,
        float_bytes=1000,
        bytes=400,
        calibration_samples=0,
        tries=1,
        seconds=1.0,
    )
    tp.report(onnx_file, tmp_path / "page.html", results=[done])
    data = data_of(tmp_path / "page.html")
    overlay = data["overlays"][0]
    names = [data["model"]["nodes"]["name"][place] for place in overlay["nodes"]]
    assert [overlay["kinds"][int(number) - 1] for number in overlay["numbers"]] == ["quantized", "float"]
    assert names == ["node_Conv_6", "node_linear"]
    assert [row[0]["node"] for row in data["tables"][0]["rows"]][2] == -1


def test_verify_writes_a_page(
    onnx_file: Path, tmp_path: Path, torchport: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom small_net import SmallNet\n\ntorch.manual_seed(0)\nnet = SmallNet().eval()\n"
    )
    shutil.copy(Path(__file__).parents[1] / "shared" / "small_net.py", tmp_path)
    done = torchport("verify", onnx_file, "--against", "net.py:net", "--report", "verify.html", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Proof" in [table["title"] for table in data_of(tmp_path / "verify.html")["tables"]]


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (["bench", "MODEL", "--report", "missing/page.html"], "create the folder"),
        (["verify", "MODEL", "--against", "net.py:net", "--report", "page.onnx"], "HTML page"),
        (["compare", "net.py:net", "other.py:net", "--report", "page.html"], "must be an ONNX file"),
    ],
)
def test_a_page_that_cannot_be_written_is_said_before_the_work(call: list[str], reason: str, onnx_file: Path) -> None:
    done = CliRunner().invoke(cli, [str(onnx_file) if word == "MODEL" else word for word in call])
    assert done.exit_code == 2
    assert reason in done.output


def test_sizes_and_inputs_that_nothing_uses_are_mistakes(onnx_file: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="sizes are for a profile"):
        tp.report(onnx_file, tmp_path / "page.html", at={"batch": 2})
    with pytest.raises(OptionError, match="needs inputs"):
        tp.report(onnx_file, tmp_path / "page.html", inputs=(np.zeros((1, 3, 8, 8), np.float32),))


def test_results_show_themselves_in_notebooks(exported: tp.Exported) -> None:
    text = exported.proof._repr_html_()
    assert text.startswith("<pre>case")
    assert "<" not in text.removeprefix("<pre>").removesuffix("</pre>")


def test_a_mistake_ends_with_2_and_writes_nothing(onnx_file: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="HTML page"):
        tp.report(onnx_file, onnx_file)
    with pytest.raises(FileError):
        tp.report(tmp_path / "missing.onnx", tmp_path / "page.html")
    with pytest.raises(SaveError):
        tp.report(onnx_file, tmp_path / "missing" / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_without_its_script_the_page_says_what_to_do(
    onnx_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_module, "_BUNDLE", tmp_path)
    with pytest.raises(ViewerMissingError, match="make viewer"):
        tp.report(onnx_file, tmp_path / "page.html")


def test_a_wheel_carries_the_script() -> None:
    root = Path(__file__).parents[2]
    assert "reports/viewer/dist/viewer.*" in (root / "pyproject.toml").read_text()
    assert {path.name for path in page_module._BUNDLE.glob("viewer.*")} == {"viewer.js", "viewer.css"}
