"""Encoded images to frames of the batch, with TensorFlow's kernels."""

from __future__ import annotations

from typing import Any

__all__ = ["decode_all", "decode_frame", "decode_sample", "fit", "stack_sample"]

Size = tuple[int, int]


def decode_frame(encoded: Any, size: Size) -> Any:
    """An encoded image as TFDS decodes it, resized; uint8 [H, W, 3]."""
    import tensorflow as tf

    pixels = tf.io.decode_image(encoded, channels=3, expand_animations=False)
    pixels.set_shape([None, None, 3])
    return fit(pixels, size)


def fit(pixels: Any, size: Size) -> Any:
    """Images [..., h, w, c] at a size: bilinear, half-pixel centres, no antialias, 3 channels."""
    import tensorflow as tf

    channels = pixels.shape[-1]
    if channels == 1:
        pixels = tf.repeat(pixels, 3, axis=-1)
    resized = tf.image.resize(pixels[..., :3], size, method="bilinear")
    return tf.cast(tf.round(resized), tf.uint8)


def decode_all(encoded: Any, size: Size, parallel: int) -> Any:
    """All images of an episode, or of a batch."""
    import tensorflow as tf

    frames = tf.map_fn(
        lambda each: decode_frame(each, size),
        encoded,
        fn_output_signature=tf.TensorSpec((*size, 3), tf.uint8),
        parallel_iterations=parallel,
    )
    return tf.ensure_shape(frames, (None, *size, 3))


def decode_sample(sample: dict[str, Any], size: Size) -> dict[str, Any]:
    """A sample whose tuple of encoded frames has become uint8 [T, H, W, 3]."""
    import tensorflow as tf

    frames = tf.stack([decode_frame(each, size) for each in sample["frames"]])
    return {**sample, "frames": frames}


def stack_sample(sample: dict[str, Any]) -> dict[str, Any]:
    """A sample whose tuple of frames has become one tensor."""
    import tensorflow as tf

    return {**sample, "frames": tf.stack(sample["frames"])}
