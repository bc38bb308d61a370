"""Makes docs/pictures/report.png: the report of a run or comparison, as Chromium shows it.

python docs/report_picture.py RUN
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import cv2

OUT = Path(__file__).parent / "pictures" / "report.png"
WIDTH, HEIGHT = 1120, 2205


def main() -> None:
    """Write the picture."""
    page = Path(sys.argv[1], "report.html").resolve()
    with tempfile.TemporaryDirectory() as root:
        shot = Path(root, "shot.png")
        command = [
            "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
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
