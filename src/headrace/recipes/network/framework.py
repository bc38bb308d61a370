"""JAX, or an explanation of its absence; the tokenizer does without."""

from __future__ import annotations

from headrace.errors import UsageError

try:
    import jax
    from jax import numpy as jnp
except ModuleNotFoundError as error:
    if error.name != "jax":
        raise
    raise UsageError(
        "the model of the network recipe (headrace.recipes.network.model) needs jax, "
        "which is not installed",
        remedy="pip install 'headrace[jax]', and JAX's own wheel for your accelerator",
    ) from error

__all__ = ["jax", "jnp"]
