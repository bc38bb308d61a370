"""The use of a GPU: by NVML where there is one, else nothing, and never the end of a run."""

import json
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("lightning.pytorch")
pynvml = pytest.importorskip("pynvml")

from headrace.outputs.lightning import GpuUsage, HeadraceDataModule, default_callbacks  # noqa: E402
from headrace.outputs.torch import GpuReader, peak_flops  # noqa: E402
from tests.outputs.conftest import OPTIONS  # noqa: E402
from tests.outputs.lightning_runs import Model, trainer  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
on_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
UUID = "8f6a0e4c-1111-2222-3333-444455556666"


@pytest.mark.parametrize(
    ("device", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA L40S", 362e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla V100-PCIE-32GB", 112e12),
        ("NVIDIA GeForce RTX 3090 Ti", 80e12),
        ("NVIDIA GeForce RTX 5090", 210e12),
        ("NVIDIA H1000", None),
    ],
)
def test_peaks_are_found_by_the_whole_name(device, peak):
    assert peak_flops(device) == peak


class Driver:
    """NVML of one GPU, or of a part of one; the real one needs a driver."""

    def __init__(self, monkeypatch, uuid):
        self.open, self.fails, self.mig = 0, None, uuid.startswith("MIG-")
        self._uuid = uuid
        for name in ("Init", "Shutdown", "DeviceGetHandleByUUID", "DeviceGetMemoryInfo"):
            monkeypatch.setattr(pynvml, f"nvml{name}", getattr(self, name))
        monkeypatch.setattr(pynvml, "nvmlDeviceGetUtilizationRates", self.rates)
        about = SimpleNamespace(uuid=UUID, name="NVIDIA H200", total_memory=140)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: about)

    def Init(self):  # noqa: N802
        self.open += 1

    def Shutdown(self):  # noqa: N802
        self.open -= 1

    def DeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != self._uuid:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "handle"

    def DeviceGetMemoryInfo(self, handle):  # noqa: N802
        assert handle == "handle"
        if self.fails:
            raise pynvml.NVMLError(self.fails)
        return SimpleNamespace(used=100, total=141)

    def rates(self, handle):
        if self.mig:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(gpu=97, memory=3)


@pytest.mark.parametrize(("kind", "busy"), [("GPU", 97.0), ("MIG", None)])
def test_the_device_is_found_by_its_uuid_whole_or_in_part(monkeypatch, kind, busy):
    driver = Driver(monkeypatch, f"{kind}-{UUID}")
    reader = GpuReader(torch.device("cuda", 1))
    reading = reader.read()
    assert (reading.utilization, reading.memory_used, reading.memory_total) == (busy, 100, 141)
    reader.close()
    assert driver.open == 0


def test_a_driver_that_fails_during_a_run_is_one_warning_and_no_readings(monkeypatch, caplog):
    driver = Driver(monkeypatch, f"GPU-{UUID}")
    reader = GpuReader(torch.device("cuda"))
    assert reader.read() is not None
    driver.fails = pynvml.NVML_ERROR_UNKNOWN
    assert [reader.read() for _ in range(3)] == [None] * 3
    assert len(caplog.records) == 1
    assert "Unknown Error" in caplog.text
    assert driver.open == 0


def test_without_a_driver_or_the_package_there_are_no_readings(monkeypatch, caplog):
    Driver(monkeypatch, "GPU-another")
    assert GpuReader(torch.device("cuda")).read() is None
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)
    assert GpuReader(torch.device("cuda")).read() is None
    assert "headrace[train]" in caplog.records[1].getMessage()


def test_a_run_without_a_gpu_has_no_figures_of_one(tmp_path, mixture, capsys):
    usage = GpuUsage(1, flops_per_step=1e9)
    callbacks = [usage, *default_callbacks(tmp_path, every_n_steps=1)]
    made = trainer(tmp_path, max_steps=2, callbacks=callbacks)
    made.fit(Model(), HeadraceDataModule(mixture, **OPTIONS))
    assert usage.figures() is None
    assert not [name for name in made.callback_metrics if name.startswith("gpu/")]
    assert "gpu" not in json.loads((tmp_path / "result.json").read_text())
    assert "[GPU]" not in capsys.readouterr().out


@on_cuda
def test_a_run_on_a_gpu_has_its_utilisation_memory_and_mfu(tmp_path, mixture, capsys):
    class Busy(Model):
        """Multiplies matrices for some milliseconds a step."""

        def training_step(self, batch, batch_idx):
            work = torch.randn(8192, 8192, device=self.device, dtype=torch.bfloat16)
            for _ in range(20):
                work = (work @ work).tanh()
            return super().training_step(batch, batch_idx) + 0 * work.float().mean()

    name = torch.cuda.get_device_name()
    usage = GpuUsage(10, flops_per_step=20 * 2 * 8192**3, peak_flops=peak_flops(name) or 1e15)
    callbacks = [usage, *default_callbacks(tmp_path, every_n_steps=10)[-1:]]
    made = trainer(tmp_path, accelerator="cuda", max_steps=200, callbacks=callbacks)
    made.fit(Busy(), HeadraceDataModule(mixture, **OPTIONS))
    gpu = json.loads((tmp_path / "result.json").read_text())["gpu"]
    assert gpu == usage.figures()
    assert gpu["name"] == name
    assert 0 < gpu["utilization_percent"]["p10"] <= gpu["utilization_percent"]["mean"] <= 100
    assert 2 * 8192**2 < gpu["memory_peak_bytes"] <= gpu["memory_total_bytes"]
    assert 0.05 < gpu["mfu"] < 1
    assert {"gpu/utilization_percent", "gpu/memory_mb", "gpu/mfu"} <= set(made.callback_metrics)
    assert "[GPU] " in capsys.readouterr().out


@on_cuda
def test_the_reader_reads_the_device_that_torch_means():
    held = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    reader = GpuReader(held.device)
    reading = reader.read()
    assert held.numel() < reading.memory_used <= reading.memory_total
    assert reading.memory_total >= torch.cuda.get_device_properties(held.device).total_memory
    reader.close()
