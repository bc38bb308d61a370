"""Teachers from local files, and training without them."""

import dataclasses

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

from headrace.recipes.laq import Laq, LaqConfig, Teachers, load_teachers  # noqa: E402
from headrace.recipes.laq.teachers import DinoV3, load_dino, load_raft  # noqa: E402
from tests.recipes.laq.test_model import frames, mini  # noqa: E402


class Shift(nn.Module):
    """A flow teacher that always says: three pixels to the right, one up."""

    def forward(self, first, last):
        flow = torch.tensor([3.0, -1.0]).view(1, 2, 1, 1) + 0 * first[:, :2]
        return flow * 0, flow  # its iterations


class Means(nn.Module):
    """A feature teacher: the colours of 16 x 16 pixels, repeated."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return nn.functional.avg_pool2d(images, 16).repeat(1, 128, 1, 1)


def published(model):
    """A state dict as DINOv3 is published, with what a plain look does not need."""
    state = {n: torch.randn_like(v) * 0.05 for n, v in model.state_dict().items() if n != "periods"}
    state["rope_embed.periods"] = model.periods.to(torch.bfloat16)
    state["mask_token"] = torch.zeros(1, 384)
    for i in range(12):
        mask = torch.ones(3 * 384)
        mask[384:768] = 0
        state[f"blocks.{i}.attn.qkv.bias_mask"] = mask
    return state


def test_without_files_training_continues_and_each_missing_one_is_named(tmp_path):
    config = mini(features="dino", flow_decoder=True, dino_weights=str(tmp_path / "dino.pth"))
    with (
        pytest.warns(UserWarning, match=rf"dino_weights.*{tmp_path / 'dino.pth'}"),
        pytest.warns(UserWarning, match="flow_weights"),
    ):
        model = Laq.build(config)
    assert (model.config.features, model.config.flow_decoder) == ("pixel", False)
    model(frames()).loss.backward()


def test_a_required_teacher_without_a_file_is_an_error(tmp_path):
    path = str(tmp_path / "dino.pth")
    config = mini(features="dino", dino_weights=path, teachers_required=True)
    with pytest.raises(ValueError, match=str(path)):
        load_teachers(config)


def test_a_model_that_needs_a_teacher_is_not_built_without_it():
    with pytest.raises(ValueError, match="features"):
        Laq(mini(features="dino"))
    with pytest.raises(ValueError, match="flow_decoder"):
        Laq(mini(flow_decoder=True))


def test_dino_loads_its_published_weights_and_keys_have_no_bias(tmp_path):
    state = published(DinoV3())
    torch.save(state, tmp_path / "dino.pth")
    model = load_dino(tmp_path / "dino.pth")
    bias = model.blocks[0].attn.qkv.bias
    assert (bias[384:768] == 0).all()
    assert torch.equal(bias[:384], state["blocks.0.attn.qkv.bias"][:384])
    assert sum(p.numel() for p in model.parameters()) == 21_600_768
    assert not any(p.requires_grad for p in model.parameters())
    images = torch.rand(2, 3, 64, 64)
    features = model(images)
    assert features.shape == (2, 384, 4, 4)
    torch.testing.assert_close(model(images[1:]), features[1:], atol=1e-4, rtol=1e-3)


def test_dino_positions_are_relative_turns_of_queries_and_keys():
    """The turn between two patches depends on their distance alone."""
    cos, sin = DinoV3()._rotation(4, 4)
    assert cos.shape == (16, 64)
    vector = torch.randn(64)

    def turned(place):
        low, high = vector.chunk(2)
        return vector * cos[place] + torch.cat([-high, low]) * sin[place]

    torch.testing.assert_close(turned(0) @ turned(1), turned(10) @ turned(11))
    assert not torch.allclose(turned(0) @ turned(1), turned(0) @ turned(4))


def test_weights_of_something_else_are_refused_by_file(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pth")
    with pytest.raises(ValueError, match=r"other\.pth.*DINOv3"):
        load_dino(tmp_path / "other.pth")


def test_the_model_learns_from_both_teachers_and_does_not_store_them():
    config = mini(features="dino", flow_decoder=True)
    model = Laq(config, Teachers(Means(), Shift()))
    out = model(frames())
    assert set(out.parts) == {"feature", "aux", "flow"}
    out.loss.backward()
    assert model.dino.project.weight.grad is not None
    assert not [name for name in model.state_dict() if name.startswith("teachers")]


def test_flow_is_measured_in_patches():
    model = Laq(mini(flow_decoder=True), Teachers(raft=Shift()))
    decoder = model.decoders["flow"].read
    with torch.no_grad():
        decoder.weight.zero_()
        decoder.bias.copy_(torch.tensor([3.0, -1.0]).repeat(64) / 8)
    assert model(frames()).parts["flow"].item() == pytest.approx(0, abs=1e-10)


@pytest.mark.filterwarnings("ignore")  # of tracing, which is out of fashion
def test_a_torchscript_file_is_a_teacher_too(tmp_path):
    images = torch.rand(1, 3, 32, 32)
    torch.jit.trace(Means(), images).save(str(tmp_path / "means.pt"))
    torch.jit.trace(Shift(), (images, images)).save(str(tmp_path / "shift.pt"))
    config = mini(features="dino", flow_decoder=True, teachers_required=True)
    files = {"dino_weights": str(tmp_path / "means.pt"), "flow_weights": str(tmp_path / "shift.pt")}
    model = Laq.build(dataclasses.replace(config, **files))
    assert model.config.features == "dino"
    assert model(frames()).parts["flow"] > 0


def test_a_state_dict_of_raft_needs_torchvision(tmp_path):
    torch.save({"weight": torch.zeros(2)}, tmp_path / "raft.pth")
    with pytest.raises(ValueError, match=r"raft\.pth .*torchvision"):
        load_raft(tmp_path / "raft.pth")


def test_the_default_config_asks_for_both_teachers():
    assert (LaqConfig().features, LaqConfig().flow_decoder) == ("dino", True)
