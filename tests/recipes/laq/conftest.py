"""Moving pictures and two tiny datasets. Modules of tests skip themselves without torch."""

import pytest

from headrace.testing import synthesize

NAMES = ("berkeley_cable_routing", "columbia_cairlab_pusht_real")

MIXTURE = """
root: {root}
defaults: {{split: "train[:2]", val_split: "train[2:]", offset: 2, weight: 1.0}}
sources: [{{name: berkeley_cable_routing}}, {{name: columbia_cairlab_pusht_real}}]
"""


@pytest.fixture(autouse=True)
def _one_thread_and_a_seed():
    """Tests share the machine and repeat themselves exactly."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def squares():
    """A textured square that moves left or right, `each` times every way.

    uint8 frames [2 * each, 3, 2, 32, 32] and directions [2 * each]. Texture matters: the first
    norm of the model takes the mean of a patch away, so a plain patch is invisible.
    """
    import torch

    generator = torch.Generator().manual_seed(5)
    texture = torch.randint(60, 256, (3, 8, 8), generator=generator, dtype=torch.uint8)
    ground = torch.randint(0, 60, (3, 32, 32), generator=generator, dtype=torch.uint8)

    def make(each):
        frames = ground[None, :, None].repeat(2 * each, 1, 2, 1, 1)
        directions = torch.arange(2 * each) % 2
        frames[:, :, 0, 12:20, 12:20] = texture
        for i, direction in enumerate(directions.tolist()):
            left = 20 if direction else 4
            frames[i, :, 1, 12:20, left : left + 8] = texture
        return frames, directions

    return make


@pytest.fixture(scope="session")
def mixture(tmp_path_factory):
    """Two datasets of three short episodes, one to validate on."""
    folder = tmp_path_factory.mktemp("laq_program")
    synthesize(folder / "data", only=NAMES, episodes=3, seed=5, workers=1, _max_steps=8)
    (folder / "mixture.yaml").write_text(MIXTURE.format(root=folder / "data"))
    return folder / "mixture.yaml"
