"""Makes docs/report.png: a comparison of three made-up runs, as Chromium shows it.

    PYTHONPATH=.:src python docs/report_picture.py

The runs are generated, so the figures in the picture say nothing about any loader.
"""

import subprocess
import tempfile
from pathlib import Path

import cv2
import numpy as np
from tests.measure.made_runs import oxe29_names, write_made_run

from headrace.measure.report import write_comparison

OUT = Path(__file__).parent / "report.png"
WIDTH, HEIGHT = 1120, 1985


def main() -> None:
    """Write the picture."""
    names = oxe29_names()
    weights = np.linspace(3, 1, len(names))
    with tempfile.TemporaryDirectory() as root:
        steady = write_made_run(Path(root, "steady"), names, weights=weights, batches=800, seed=1)
        stalls = write_made_run(
            Path(root, "cold_disk"), names, weights=weights, batches=500, seed=2, rate=940,
            stalls=0.02, memory_mb=310, first_s=1.9, sticky=0.5,
        )  # fmt: skip
        killed = write_made_run(
            Path(root, "killed"), names, weights=weights, batches=260, seed=3, rate=1130,
            memory_mb=220, growth_mb=420, status="failed",
            cause="killed by the system, out of memory",
        )  # fmt: skip
        text = (killed / "batch_times.jsonl").read_text()
        (killed / "batch_times.jsonl").write_text(text[:-40])
        page = write_comparison([steady, stalls, killed], Path(root, "comparison.html"))
        shot = Path(root, "shot.png")
        command = [
            "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            f"--user-data-dir={root}/profile", f"--window-size={WIDTH},{HEIGHT}",
            "--blink-settings=preferredColorScheme=1", f"--screenshot={shot}", page.as_uri(),
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=100)
        # Fewer shades of the smoothed edges: a third of the bytes, and no eye sees it.
        image = cv2.imread(str(shot)) // 16 * 17
        cv2.imwrite(str(OUT), image, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
