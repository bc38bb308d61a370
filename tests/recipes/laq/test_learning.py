"""The debug experiment in small: seconds on one core, and it learns."""

import pytest

torch = pytest.importorskip("torch")
lightning = pytest.importorskip("lightning")

import headrace as hr  # noqa: E402
from headrace.outputs.lightning import HeadraceDataModule  # noqa: E402
from headrace.recipes.laq import LaqConfig, TrainingOptions  # noqa: E402
from headrace.recipes.laq.task import LaqTask  # noqa: E402
from headrace.recipes.laq.validation import ValidationPictures  # noqa: E402
from headrace.recipes.training.run_folder import read_rows  # noqa: E402
from headrace.testing import synthesize  # noqa: E402
from tests.recipes.laq.runs import Losses, trainer  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # lightning's advice on workers and the like


def test_the_tiny_model_learns_what_moves_from_plain_scenes(tmp_path):
    synthesize(tmp_path / "data", "plain", 24, only=["bc_z"], workers=1, _max_steps=26)
    mixture = hr.Mixture.from_dict(
        {
            "root": str(tmp_path / "data"),
            "defaults": {"split": "train[:80%]", "val_split": "train[80%:]", "offset": 4},
            "sources": [{"name": "bc_z", "weight": 1.0}],
        }
    )
    config = LaqConfig.tiny(image_size=32, spatial_depth=1, temporal_depth=1, decoder_depth=1)
    training = TrainingOptions(steps=120, warmup=20, lr=5e-3, betas=(0.9, 0.98))
    data = HeadraceDataModule(mixture, batch_size=16, image_size=32, keep_free=0, workers=0)
    torch.manual_seed(0)
    losses, pictures = Losses(), ValidationPictures(tmp_path / "pictures")
    options = {"val_check_interval": 24, "limit_val_batches": 4}
    trainer(tmp_path, 120, [losses, pictures], **options).fit(LaqTask(config, training), data)
    first, *_, last = read_rows(tmp_path / "pictures" / "metrics.csv")
    assert sum(losses.all[-10:]) / 10 < 0.2 * losses.all[0]
    assert last["val/recon_mse"] < 0.8 * first["val/recon_mse"]
    assert last["val/recon_mse"] < last["val/copy_mse"]
    assert last["val/codebook_entropy"] > 1
    assert last["val/sequences"] > 4
    assert (tmp_path / "pictures" / "progress.png").exists()
