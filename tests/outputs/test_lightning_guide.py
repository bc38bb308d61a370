"""The code of the tutorial and of the guides to PyTorch and Lightning runs, only smaller."""

import re
from pathlib import Path

import pytest
import yaml

from headrace.testing import synthesize
from tests.outputs.conftest import mixture_dict

pytest.importorskip("lightning.pytorch")

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = DOCS / "tutorial.md"
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


#: The same of the tutorial.
FIRST_SMALL = {
    "batch_size=64": "batch_size=4",
    "steps_per_epoch=200": "steps_per_epoch=2",
    "every_n_steps=100": "every_n_steps=1",
    "every_n_train_steps=100": "every_n_train_steps=1",
    "limit_val_batches=10": "limit_val_batches=1, accelerator='cpu', logger=False",
}


def blocks(language, page=TUTORIAL):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


def block(page, containing):
    """The block of a guide's code that has a text in it, small."""
    (code,) = (code for code in blocks("python", DOCS / "guides" / page) if containing in code)
    for large, small in SMALL.items():
        code = code.replace(large, small)
    return code


@pytest.fixture(autouse=True)
def here(tmp_path, data, monkeypatch):
    """A folder with the mixture that the guides speak of."""
    monkeypatch.chdir(tmp_path)
    Path("mixture.yaml").write_text(yaml.safe_dump(mixture_dict(data)))


def test_the_tutorial_trains_from_nothing_and_resumes(capsys):
    only = re.findall(r"--only (\w+)", TUTORIAL.read_text())[:3]
    synthesize(Path("data"), preset="plain", only=only, episodes=10, seed=0, _max_steps=9)
    Path("mixture.yaml").write_text(blocks("yaml")[0])
    code = blocks("python")[0]
    for large, small in FIRST_SMALL.items():
        assert large in code, f"the tutorial no longer has {large}"
        code = code.replace(large, small)
    for epochs, begins in ((2, 1), (3, 5)):  # the second continues after the first one's four steps
        exec(code.replace("max_epochs=3", f"max_epochs={epochs}"), {"__name__": "__main__"})
        told = capsys.readouterr().out
        assert re.findall(r"\[Step (\d+)\]", told) == [
            str(n) for n in range(begins, 2 * epochs + 1)
        ]
        assert f"[Summary] complete: {2 * epochs} steps" in told


def test_the_short_form_trains_any_model():
    names = {"__name__": "guide"}
    exec(blocks("python")[0], names)  # for its model
    exec(
        block("lightning.md", 'callbacks=default_callbacks("runs/first")').replace(
            "image_size=32", "image_size=64"
        ),
        names,
    )
    assert names["trainer"].global_step == 3
    assert "val/loss" in names["trainer"].callback_metrics
    assert len(Path("runs/first/batch_times.jsonl").read_text().splitlines()) == 3


def test_the_plain_loop_ends_resumes_and_does_nothing_where_it_was_done():
    code, first, again, longer = block("pytorch.md", "checkpoint.exists()"), {}, {}, {}
    exec(code, first)
    assert first["step"] == 4
    exec(code, again)
    assert again["step"] == 4
    assert "batch" not in again
    exec(code.replace("STEPS = 4", "STEPS = 5"), longer)
    assert (longer["state"]["step"], longer["step"]) == (4, 5)
    assert longer["loader"].statistics().draws == 20


def test_the_loop_with_accelerate_saves_the_position():
    torch = pytest.importorskip("torch")
    pytest.importorskip("accelerate")
    exec(block("pytorch.md", "Accelerator()"), {})
    (file,) = Path("state").glob("custom_checkpoint_*.pkl")
    assert torch.load(file)["draws"] == 12
