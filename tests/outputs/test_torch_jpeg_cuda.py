"""JPEGs decoded by the GPU: the same samples, and pixels within a few levels of the CPU's."""

import gc
import logging
import threading
from itertools import islice

import cv2
import numpy as np
import pytest
import simplejpeg
import torch

import headrace as hr
from headrace.decoding.frame import FrameDecoder
from headrace.outputs.torch import TorchLoader
from headrace.outputs.torch.jpeg import JpegDecoder
from headrace.testing import synthesize

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")

NAMES = ("bridge", "bc_z", "droid", "utaustin_mutex", "kuka")


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    """JPEGs of three sizes and PNGs; the split of all episodes but one."""
    root = tmp_path_factory.mktemp("jpeg")
    synthesize(root, only=NAMES, episodes=3, seed=5, _max_steps=9)
    return hr.Mixture.from_dict(
        {
            "root": str(root),
            "defaults": {
                "split": "train[:2]",
                "val_split": "train[2:]",
                "offset": 2,
                "weight": 1.0,
            },
            "sources": [{"name": name} for name in NAMES],
        }
    )


@pytest.fixture
def loaders(mixture):
    made = []

    def make(**options):
        defaults = {"batch_size": 16, "image_size": 256, "keep_free": 0, "device": "cuda"}
        made.append(TorchLoader(options.pop("mixture", mixture), **{**defaults, **options}))
        return made[-1]

    yield make
    for loader in made:
        loader.close()


def smooth(size, seed=0):
    """A picture with edges and colours, as cameras see them."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (size[0] // 16 + 1, size[1] // 16 + 1, 3), np.uint8)
    picture = cv2.resize(coarse, size[::-1], interpolation=cv2.INTER_CUBIC)
    cv2.circle(picture, (size[1] // 2, size[0] // 2), 30, (255, 40, 0), -1)
    return picture


@pytest.mark.parametrize("chroma", ["444", "422", "420"])
@pytest.mark.parametrize("size", [(256, 256), (480, 640), (180, 320), (64, 64), (37, 91)])
@pytest.mark.parametrize("library", ["nvidia.nvimgcodec", "torchvision"])
def test_pixels_agree_with_the_cpu_s(library, chroma, size):
    pytest.importorskip(library)
    data = simplejpeg.encode_jpeg(smooth(size), quality=90, colorsubsampling=chroma)
    here = np.empty((256, 256, 3), np.uint8)
    FrameDecoder().decode(data, here)
    frames = np.zeros((1, 1, 256, 256, 3), np.uint8)
    frames.reshape(-1)[: len(data)] = np.frombuffer(data, np.uint8)
    lengths = np.array([[len(data)]], np.int32)
    there = JpegDecoder("bilinear", library)(
        torch.from_numpy(frames), lengths, torch.device("cuda", 0)
    )
    difference = np.abs(there[0, 0].permute(1, 2, 0).cpu().numpy().astype(int) - here)
    interpolated = library == "nvidia.nvimgcodec" or chroma == "444"
    assert difference.mean() < (1.5 if interpolated else 5)
    assert np.percentile(difference, 99) <= (4 if interpolated else 32)


@pytest.mark.parametrize("layout", ["BCTHW", "BTHWC"])
@pytest.mark.parametrize("options", [{}, {"pin": False}, {"metadata": "none"}])
def test_batches_are_those_of_the_cpu_but_for_a_few_levels(loaders, layout, options):
    gpu, cpu = loaders(decode="gpu", layout=layout, **options), loaders(layout=layout, **options)
    worst = 0.0
    for there, here in zip(islice(gpu, 40), cpu, strict=False):
        assert there.keys() == here.keys()
        for name, value in here.items():
            if not isinstance(value, torch.Tensor):
                assert there[name] == value
            elif name != "frames":
                assert torch.equal(there[name], value)
        a, b = there["frames"], here["frames"]
        assert a.shape == b.shape
        assert a.dtype == b.dtype
        assert a.is_contiguous()
        worst = max(worst, (a.float() - b.float()).abs().flatten(1).mean(1).max().item())
    assert 0 < worst < 3.0
    statistics = gpu.statistics().engine
    busy = {stage.name: stage.busy_s for stage in statistics.stages}
    assert busy["decode"] > 0, "PNGs are decoded here"


def test_a_state_continues_with_the_next_batch_though_others_are_ahead(loaders):
    first = loaders(decode="gpu")
    for _ in islice(first, 7):
        pass
    state = first.state_dict()
    expected = [batch["draws"].tolist() for batch in islice(first, 3)]
    other = loaders(decode="gpu")
    other.load_state_dict(state)
    assert [batch["draws"].tolist() for batch in islice(other, 3)] == expected
    first.load_state_dict(state)
    assert [batch["draws"].tolist() for batch in islice(first, 3)] == expected
    plain = loaders()
    plain.load_state_dict(state)
    assert [batch["draws"].tolist() for batch in islice(plain, 3)] == expected


def test_validation_runs_beside_training(loaders):
    gpu, cpu = loaders(decode="gpu"), loaders()
    for _ in range(2):
        for there, here in zip(islice(gpu, 5), cpu, strict=False):
            assert torch.equal(there["draws"], here["draws"])
        passes = [[b["draws"].tolist() for b in loader.validation(3)] for loader in (gpu, cpu)]
        assert passes[0] == passes[1]


def test_validation_in_a_tight_budget_takes_turns_with_training(loaders):
    gpu, cpu = loaders(decode="gpu", memory="60MiB", workers=0), loaders()
    for _ in range(3):
        for there, here in zip(islice(gpu, 5), cpu, strict=False):
            assert torch.equal(there["draws"], here["draws"])
        assert len(list(gpu.validation(2))) == 2


def test_a_jpeg_that_the_gpu_refuses_is_decoded_here(loaders, monkeypatch):
    gpu, cpu = loaders(decode="gpu"), loaders()
    assert gpu._target is not None
    decode = gpu._target._decoder._decode

    def refuse(images, device):
        if any(len(image) % 3 == 0 for image in images):
            raise RuntimeError("refused")
        return decode(images, device)

    monkeypatch.setattr(gpu._target._decoder, "_decode", refuse)
    for there, here in zip(islice(gpu, 6), cpu, strict=False):
        assert torch.equal(there["draws"], here["draws"])
        difference = (there["frames"].float() - here["frames"].float()).abs().flatten(1).mean(1)
        assert difference.max() < 2.0
        assert (difference == 0).any()


def test_auto_tries_both_and_says_what_it_chose(loaders, caplog):
    loader = loaders(decode="auto", batch_size=32)
    with caplog.at_level(logging.WARNING, logger="headrace"):
        for number, batch in enumerate(loader):
            assert batch["frames"].shape == (32, 3, 2, 256, 256)
            torch.cuda.synchronize()
            if "decode: the" in caplog.text or number > 3000:
                break
    assert "decodes from here on" in caplog.text


def device_threads():
    return [t for t in threading.enumerate() if t.name.startswith("headrace")]


def test_closing_and_letting_go_end_all_threads(mixture, loaders):
    closed = loaders(decode="gpu")
    next(iter(closed))
    closed.close()
    options = {"batch_size": 16, "image_size": 256, "device": "cuda", "decode": "gpu"}
    abandoned = TorchLoader(mixture, **options)
    next(iter(abandoned))
    del abandoned
    gc.collect()
    for thread in device_threads():
        thread.join(5)
    assert not device_threads()
