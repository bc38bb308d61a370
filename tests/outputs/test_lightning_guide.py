"""The code of docs/training.md runs as it stands there, only smaller."""

import re
from pathlib import Path

import pytest
import yaml

from tests.outputs.conftest import mixture_dict

pytest.importorskip("lightning.pytorch")

GUIDE = Path(__file__).parents[2] / "docs" / "training.md"
#: What makes it small.
SMALL = {
    "image_size=256": "image_size=32",
    "batch_size=64": "batch_size=4",
    "max_epochs=100": "max_epochs=1, accelerator='cpu', logger=False",
    "range(100)": "range(1)",
    "steps_per_epoch=1000": "steps_per_epoch=3",
    "% 1000": "% 2",
    "100_000": "4",
}

#: Lightning warns of much that is meant so here, accelerate of what is not installed.
pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def block(containing):
    """The block of code that has a text in it, small."""
    (code,) = (
        code
        for code in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S)
        if containing in code
    )
    for large, small in SMALL.items():
        code = code.replace(large, small)
    return code


@pytest.fixture(autouse=True)
def here(tmp_path, data, monkeypatch):
    """A folder with the mixture that the guide speaks of."""
    monkeypatch.chdir(tmp_path)
    Path("mixture.yaml").write_text(yaml.safe_dump(mixture_dict(data)))


def test_the_five_lines_train_the_model_below_them(capsys):
    names = {"__name__": "guide"}
    five, model = block("HeadraceDataModule("), block("class Model(")
    imports, _, rest = five.partition("\n\n")
    exec(imports, names)
    exec(model, names)
    exec(rest, names)
    assert names["trainer"].global_step == 3
    assert "val/loss" in names["trainer"].callback_metrics
    assert len(Path("runs/first/batch_times.jsonl").read_text().splitlines()) == 3


def test_the_plain_loop_resumes():
    code, first, second = block("checkpoint.exists()"), {}, {}
    exec(code, first)
    assert first["step"] == 4
    exec(code.replace("step == 4", "step == 5"), second)
    assert second["state"]["step"] == 4
    assert second["batch"]["draws"].tolist() == [16, 17, 18, 19]


def test_the_loop_with_accelerate_saves_the_position():
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    exec(block("Accelerator()"), {})
    (file,) = Path("state").glob("custom_checkpoint_*.pkl")
    assert torch.load(file)["draws"] == 12
