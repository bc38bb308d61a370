"""Pictures of what a model and its codes have learned: arrays in, RGB images out.

Drawn by matplotlib, which the extra `plots` installs. `validation` decides what is drawn and when.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from headrace.errors import UsageError
from headrace.measure import theme
from headrace.recipes.training.run_folder import read_rows

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Image: TypeAlias = NDArray[np.uint8]  #: [H, W, 3]
Plot: TypeAlias = "Callable[[Axes], None]"  #: draws into axes

SAMPLES = "samples.png"  #: in the folder of a step: rows of t, t+k and the prediction, unscaled
METRICS = "metrics.csv"  #: beside the folders of the steps

_TILE = 112  # pixels of the longer side of a frame in a picture
_PLOT = (440, 210)  # width and height of a plot, in pixels
_MARGIN = 64  # left of a plot, for its scale
_SHOWN_SEQUENCES = 24
#: Of codes: colours by Okabe and Ito, which also colour-blind people tell apart, and markers.
_COLOURS = ["#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#000000"]
_MARKERS = "os^DvPX*"
_SMALL = 10  # font size of what matters less; a point is a pixel here
_STYLE: Any = {
    "font.size": 11,
    "axes.labelsize": 11,
    "axes.titlecolor": theme.SOFT,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "legend.fontsize": _SMALL,
    "legend.frameon": False,
    "legend.handletextpad": 0.3,
    "legend.title_fontsize": _SMALL,
    "xtick.major.size": 0,
    "ytick.major.pad": 4,
}


# -- how codes are used --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CodeUsage:
    """How often each code is used."""

    counts: NDArray[np.int64]  #: [K]
    used: int  #: codes that are used at all
    utilisation: float  #: the same as a share of the codebook
    entropy: float  #: in bits: log2(K) when all codes are used alike


@dataclass(frozen=True, slots=True)
class SequenceUsage:
    """How often each sequence of codes is used."""

    sequences: NDArray[np.int64]  #: [unique, codes], most used first
    counts: NDArray[np.int64]  #: [unique]
    unique: int
    possible: int  #: sequences that the codebook allows
    total: int  #: samples
    entropy: float  #: in bits


def code_usage(indices: NDArray[Any], codebook_size: int) -> CodeUsage:
    """Usage of the codes in indices [N, codes]."""
    counts = np.bincount(indices.reshape(-1).astype(np.int64), minlength=codebook_size)
    used = int((counts > 0).sum())
    return CodeUsage(counts, used, used / codebook_size, _entropy(counts))


def sequence_usage(indices: NDArray[Any], codebook_size: int) -> SequenceUsage:
    """Usage of the sequences in indices [N, codes]; ties in the order of their codes."""
    total, codes = indices.shape
    sequences, counts = np.unique(indices.astype(np.int64), axis=0, return_counts=True)
    order = np.argsort(-counts, kind="stable")
    entropy, possible = _entropy(counts), codebook_size**codes
    return SequenceUsage(sequences[order], counts[order], len(counts), possible, total, entropy)


def _entropy(counts: NDArray[Any]) -> float:
    share = counts[counts > 0] / max(1, counts.sum())
    return float(-(share * np.log2(share)).sum()) + 0.0  # no negative zero


# -- pictures --------------------------------------------------------------------------------------


def picture(
    title: str,
    tiles: Mapping[str, NDArray[np.uint8]] | None = None,
    plots: Sequence[Plot] = (),
    labels: Sequence[str] | None = None,
) -> Image:
    """Frames at the left, plots at the right.

    `tiles` are columns of frames [B, 3, H, W] by their heads, `labels` stand above their rows.
    """
    with theme.style():
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        matplotlib.rcParams.update(_STYLE)
        across, down, above = _tile_size(tiles), 0, 14 if labels else 0
        left, top = 8, 30 if title else 8
        if tiles:
            rows = len(next(iter(tiles.values())))
            down = top + 16 + rows * (across[1] + 4 + above) + 8
            left += len(tiles) * (across[0] + 4)
        width = left + (_MARGIN + _PLOT[0] + 72 if plots else 4)
        figure = theme.figure(width, max(down, top + len(plots) * (_PLOT[1] + 74)))
        _text(figure, 8, 20, title, weight="bold", size=14)
        for column, (head, images) in enumerate((tiles or {}).items()):
            x = 8 + column * (across[0] + 4)
            _text(figure, x, top + 12, head, weight="bold")
            for row, image in enumerate(images):
                y = top + 16 + row * (across[1] + 4 + above) + above
                _tile(figure, x, y, image, across)
                if labels and column == 0:
                    _text(figure, x, y - 3, labels[row], color=theme.SOFT, size=_SMALL)
        for number, plot in enumerate(plots):
            plot(_axes(figure, left + _MARGIN, top + 24 + number * (_PLOT[1] + 74)))
        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def code_bars(indices: NDArray[Any], codebook_size: int) -> Plot:
    """How often each code is used; indices [N, codes]."""
    usage = code_usage(indices, codebook_size)

    def plot(axes: Axes) -> None:
        axes.set_title(
            f"codes used {usage.used} / {codebook_size} ({usage.utilisation:.0%}), "
            f"entropy {usage.entropy:.2f} of {math.log2(codebook_size):.2f} bit"
        )
        labels = [str(code) for code in range(codebook_size)]
        _bars(axes, usage.counts, labels, _palette(codebook_size))
        even, edge = usage.counts.mean(), axes.get_yaxis_transform()
        axes.axhline(even, color=theme.SOFT, linewidth=1, linestyle=(0, (4, 3)))
        axes.text(
            1.01, even, "even use", color=theme.SOFT, size=_SMALL, va="center", transform=edge
        )

    return plot


def sequence_bars(indices: NDArray[Any], codebook_size: int) -> Plot:
    """The most used sequences of codes, in the colour of their first code; indices [N, codes]."""
    usage = sequence_usage(indices, codebook_size)

    def plot(axes: Axes) -> None:
        axes.set_title(
            f"{usage.unique:,} of {usage.possible:,} sequences in {usage.total:,} samples, "
            f"entropy {usage.entropy:.2f} bit"
        )
        shown, colours = usage.sequences[:_SHOWN_SEQUENCES], _palette(codebook_size)
        labels = ["".join(map(_digit, row)) for row in shown]
        _bars(axes, usage.counts[: len(shown)], labels, [colours[int(row[0])] for row in shown])
        axes.tick_params("x", rotation=90 if len(shown) > 8 else 0)

    return plot


def action_dots(
    actions: NDArray[Any], first_codes: NDArray[Any], codebook_size: int, datasets: int = 1
) -> Plot:
    """The first two numbers of the real actions [N, A], marked by the first code [N].

    The axes end at the 1st and 99th percentile, so that a few wild actions do not hide the rest;
    those are drawn at the edge. Units are those of the data, so that those of several `datasets`
    may differ.
    """
    points = np.asarray(actions, np.float64)[:, :2]

    def plot(axes: Axes) -> None:
        of = f" of {datasets} datasets" if datasets > 1 else ""
        axes.set_title(f"{len(points):,} actions{of} by first code")
        axes.set_xlabel("action[0], sum of the window")
        axes.set_ylabel("action[1], sum of the window")
        axes.grid(True)
        for line in (axes.axhline, axes.axvline):
            line(0, color=theme.SOFT, linewidth=1, zorder=1)
        if not len(points):
            return
        low, high = np.percentile(points, 1, axis=0), np.percentile(points, 99, axis=0)
        centre, half = (low + high) / 2, np.where(high > low, (high - low) / 2, 1.0)
        inside = np.clip(points, centre - half, centre + half)
        colours = _palette(codebook_size)
        for code in np.unique(first_codes)[:16]:
            x, y = inside[first_codes == code].T
            style: Any = {"marker": _MARKERS[int(code) % len(_MARKERS)], "label": code}
            style |= {"color": colours[int(code)], "edgecolors": theme.INK, "linewidths": 0.4}
            axes.scatter(x, y, s=46, **style)
        axes.set_xlim(centre[0] - 1.06 * half[0], centre[0] + 1.06 * half[0])
        axes.set_ylim(centre[1] - 1.06 * half[1], centre[1] + 1.06 * half[1])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.03), title="code", borderaxespad=0.2)

    return plot


def curves(table: Sequence[Mapping[str, float]], names: Sequence[str]) -> Plot:
    """Numbers of the rows of metrics.csv over their steps."""

    def plot(axes: Axes) -> None:
        values: list[float] = []
        for name, colour in zip(names, theme.COLOURS, strict=False):
            points = [(r["step"], r[name]) for r in table if math.isfinite(r.get(name, math.nan))]
            if points:
                style, mark = "--" if "copy" in name else "-", "o" if len(points) < 40 else ""
                x, y = zip(*points, strict=True)
                axes.plot(x, y, style, marker=mark, markersize=2.5, color=colour, label=name)
                values += y
        axes.grid(True)
        axes.set_xlabel("step")
        if not values:
            return
        if min(values) > 0 and max(values) > 20 * min(values):
            axes.set_yscale("log")
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 0.98), ncols=2)

    return plot


def image_tiles(frames: NDArray[np.uint8], recon: NDArray[np.uint8]) -> Image:
    """frames [B, 3, 2, H, W] and recon [B, 3, H, W] as one image: rows of t, t+k, prediction."""
    wide = np.concatenate([frames[:, :, 0], frames[:, :, -1], recon], axis=-1)  # [B, 3, H, 3W]
    tall = np.concatenate(list(wide), axis=1)  # [3, B*H, 3W]
    return np.ascontiguousarray(np.moveaxis(tall, 0, -1))


def _bars(axes: Axes, counts: NDArray[Any], labels: Sequence[str], colours: Sequence[Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    bars = axes.bar(range(len(counts)), counts, 0.78, color=colours)
    if len(counts) <= 16:
        texts = [f"{count:,}" for count in counts]
        axes.bar_label(bars, texts, size=_SMALL, color=theme.SOFT, padding=2)
    every = -(-len(counts) // 32)
    axes.set_xticks(range(0, len(counts), every), labels[::every])
    axes.set_ylim(0, max(1, int(counts.max(initial=0))) * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.margins(x=0.02)


def _palette(count: int) -> list[Any]:
    """Colours that are easily told apart, as far as there are such."""
    if count <= len(_COLOURS):
        return _COLOURS[:count]
    import matplotlib

    return [matplotlib.colormaps["turbo"](i / (count - 1)) for i in range(count)]


def _digit(code: int) -> str:
    """A code in one letter where that is possible."""
    return "0123456789abcdefghijklmnopqrstuvwxyz"[code] if code < 36 else f"<{code}>"


# -- the course of a run -------------------------------------------------------------------------


def step_folders(folder: Path) -> list[tuple[int, Path]]:
    """The steps that have pictures, in their order."""
    found = []
    for path in folder.glob("step_*"):
        number = path.name.removeprefix("step_")
        if number.isdigit() and path.is_dir():
            found.append((int(number), path))
    return sorted(found)


def progress_strip(folder: str | Path, target: str | Path | None = None, rows: int = 4) -> Path:
    """Draw how a run has learned, from its folder of pictures, into its progress.png.

    Left: samples of the validation, t and t+k, and the prediction at the first step with pictures,
    one in the middle and the last. Right: the losses, and below them the error of the prediction
    and, for comparison, that of a copy of frame t.
    """
    folder = Path(folder)
    steps = [(step, path / SAMPLES) for step, path in step_folders(folder)]
    steps = [(step, path) for step, path in steps if path.exists()]
    if not steps:
        raise UsageError(
            f"{str(folder)!r} has no pictures of a validation",
            remedy="Give the folder that ValidationPictures wrote to",
        )
    chosen = [steps[i] for i in sorted({0, len(steps) // 2, len(steps) - 1})]
    images = [(step, _read(path)) for step, path in chosen]
    last = images[-1][1]
    size = last.shape[1] // 3

    def column(image: Image, place: int) -> NDArray[np.uint8]:
        cut = image[: rows * size, place * size : (place + 1) * size]
        return np.moveaxis(cut.reshape(-1, size, size, 3), -1, 1)

    columns = {"t": column(last, 0), "t+k": column(last, 1)}
    for step, image in images:
        if image.shape == last.shape:
            columns[f"step {step:,}"] = column(image, 2)
    table = read_rows(folder / METRICS)
    plots = [curves(table, ("train/loss", "val/loss"))]
    plots += [curves(table, ("val/recon_mse", "val/copy_mse"))]
    return save_png(picture("", columns, plots), target or folder / "progress.png")


# -- figures and files -----------------------------------------------------------------------------


def save_png(image: Image, path: str | Path) -> Path:
    """Write a picture, and the folders above it; fast rather than as small as possible."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    fast = [cv2.IMWRITE_PNG_COMPRESSION, 1]
    if not cv2.imwrite(str(path), cv2.cvtColor(image, cv2.COLOR_RGB2BGR), fast):
        raise UsageError(f"the picture {str(path)!r} cannot be written", remedy="End it in .png")
    return path


def _read(path: Path) -> Image:
    image = cv2.imread(str(path))
    if image is None:
        raise UsageError(f"{str(path)!r} is not a readable picture", remedy="Remove it")
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _axes(figure: Figure, left: int, top: int) -> Axes:
    """Axes of a plot at a place in pixels, counted from the upper left corner."""
    across, down = figure.bbox.width, figure.bbox.height
    width, height = _PLOT
    return figure.add_axes(
        (left / across, 1 - (top + height) / down, width / across, height / down)
    )


def _text(figure: Figure, x: float, y: float, text: str, **style: Any) -> None:
    """A line of text with its baseline at (x, y), in pixels from the upper left corner."""
    across, down = figure.bbox.width, figure.bbox.height
    figure.text(x / across, 1 - y / down, theme.printable(text), **style)


def _tile_size(tiles: Mapping[str, NDArray[np.uint8]] | None) -> tuple[int, int]:
    """Width and height of a frame in a picture."""
    if not tiles:
        return 0, 0
    height, width = next(iter(tiles.values())).shape[-2:]
    return round(_TILE * width / max(height, width)), round(_TILE * height / max(height, width))


def _tile(figure: Figure, x: int, y: int, frame: NDArray[np.uint8], size: tuple[int, int]) -> None:
    """A frame [3, H, W]; small ones are enlarged without smoothing, so that pixels are seen."""
    method = cv2.INTER_NEAREST if size[0] >= frame.shape[-1] else cv2.INTER_AREA
    image = cv2.resize(np.ascontiguousarray(np.moveaxis(frame, 0, -1)), size, interpolation=method)
    figure.figimage(image, x, round(figure.bbox.height) - y - size[1])
