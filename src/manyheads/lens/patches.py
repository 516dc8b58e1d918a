"""Weights of patches, laid over the picture that they are of."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from torch import Tensor

from manyheads.errors import OptionError, ShapeError
from manyheads.lens.checks import check_tensor, check_texts
from manyheads.lens.labels import label
from manyheads.lens.paper import INK, new_figure, picture_path, plain_settings, save, write

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIDE, _TITLE, _GAP = 2.6, 0.3, 0.1


def draw_patches(
    image: Float[Tensor, "channels height width"],
    weights: Float[Tensor, "maps patches"],
    grid: tuple[int, int],
    *,
    titles: tuple[str, ...] = (),
    path: str | os.PathLike[str] | None = None,
) -> "Figure":
    """Draw a picture, and beside it the picture lit where each map reads it.

    Args:
        image: 1 or 3 channels of numbers from 0 to 1.
        weights: Of heads, or relevance, on the patches alone: the class token left out. Each map
            is scaled to its own greatest weight.
        grid: (rows, columns) of patches, which are laid row by row.
        titles: Stand above the maps.
        path: Also write the picture there; the ending says how (.png, .svg, .pdf).

    Returns:
        A matplotlib figure that belongs to no window.

    Raises:
        ShapeError: If the image has not 1 or 3 channels, or the weights are not one a patch.
        OptionError: If weights are below 0 or not finite, titles are not one a map, or the path is
            no picture's.
        MissingExtraError: Without matplotlib.

    Example:
        >>> import torch
        >>> figure = draw_patches(torch.rand(3, 8, 8), torch.rand(2, 4), (2, 2))
        >>> len(figure.axes)  # the picture and two maps
        3
    """
    check_tensor("image", image)
    check_tensor("weights", weights)
    if image.ndim != 3 or image.shape[0] not in (1, 3):
        raise ShapeError(
            f"image must be (channels, height, width) with 1 or 3 channels; got shape "
            f"{tuple(image.shape)}. Choose one of the batch."
        )
    is_pair = isinstance(grid, Sequence) and len(grid) == 2
    if not is_pair or not all(isinstance(each, int) and each > 0 for each in grid):
        raise OptionError(
            f"grid must be (rows, columns) of patches; got grid={grid!r}. A picture of 224 x 224 "
            f"in patches of 16 has (14, 14)."
        )
    rows, columns = grid
    if weights.ndim != 2 or weights.shape[1] != rows * columns or 0 in weights.shape:
        raise ShapeError(
            f"weights must be (maps, {rows * columns}) for a grid of {rows} x {columns}; got shape "
            f"{tuple(weights.shape)}. Leave the class token out: weights[:, 1:]."
        )
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()):
        raise OptionError(
            f"weights must be finite and not below 0; got {float(weights.min()):.3g} to "
            f"{float(weights.max()):.3g}. Apply the softmax first."
        )
    if titles != ():
        check_texts("titles", titles, len(weights), "one above each map, or leave them out")
    picture = image.detach().float().cpu().clamp(0, 1).permute(1, 2, 0).numpy()
    lit = [
        lit_by(picture, each.reshape(rows, columns).detach().float().cpu().numpy())
        for each in weights
    ]
    with plain_settings():
        target = picture_path(path)
        return save(_draw([picture, *lit], ("", *(titles or [""] * len(lit)))), target)


def lit_by(picture: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A picture that keeps its light where the weight is greatest and is dim where it is 0.

    Args:
        picture: (height, width, channels).
        weights: (rows, columns) of patches.
    """
    height, width, _ = picture.shape
    rows, columns = weights.shape
    light = weights / max(float(weights.max()), 1e-12)
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    return picture * (0.12 + 0.88 * light[down][:, across])[..., None]


def _draw(pictures: list[np.ndarray], titles: tuple[str, ...]) -> "Figure":
    height, width, _ = pictures[0].shape
    tall = _SIDE * height / width
    top = _TITLE if any(titles) else _GAP
    across = len(pictures) * (_SIDE + _GAP) + _GAP
    down = top + tall + _GAP
    figure = new_figure(across, down)
    for place, (picture, title) in enumerate(zip(pictures, titles, strict=True)):
        left = _GAP + place * (_SIDE + _GAP)
        axes = figure.add_axes((left / across, _GAP / down, _SIDE / across, tall / down))
        shown = picture if picture.shape[2] == 3 else picture[..., 0]
        axes.imshow(shown, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.axis("off")
        if title:
            heading = label(title, width=36)
            at = (left / across, 1 - 0.08 / down)
            write(figure.text(*at, heading.text, fontsize=8, va="top", color=INK), heading)
    return figure
