"""Libraries that take long to load, loaded when something of them is used first: many a command needs none of them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

__all__ = ["LazyModule", "NDArray", "np"]


class LazyModule:
    """Stands for a module; what is taken from it is kept, and costs an attribute from then on."""

    def __init__(self, name: str) -> None:
        """Load nothing yet."""
        self._name = name

    def __getattr__(self, name: str) -> object:
        """Load the module, and return what it has by that name."""
        found: object = getattr(importlib.import_module(self._name), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    np = LazyModule("numpy")
    NDArray = "numpy.typing.NDArray"
    """For annotations only, which nobody evaluates."""
