"""Batches on a JAX device: `device_batches`. Needs jax: `pip install 'headrace[jax]'`."""

from headrace.errors import UsageError

try:
    import jax as _jax  # noqa: F401  (asked for here, so that its absence is explained once)
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise UsageError(
        "batches on a device (headrace.outputs.jax) need jax, which is not installed",
        remedy="pip install 'headrace[jax]', and JAX's own wheel for your accelerator",
    ) from error

from headrace.outputs.jax.device import device_batches

__all__ = ["device_batches"]
