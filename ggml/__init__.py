"""The pinned ggml: fetched, verified, built once into the user's cache, and asked about its devices.

>>> from draftsmith import ggml
>>> install = ggml.ensure()                       # doctest: +SKIP
>>> install.version, install.backends             # doctest: +SKIP
('0.25.3', ('cpu', 'rpc'))
>>> [device.name for device in ggml.devices(install)]  # doctest: +SKIP
['CPU']
"""

from __future__ import annotations

from . import headers
from .cache import cache_dir
from .device import Device, devices
from .install import GgmlInstall
from .options import Options
from .progress import Progress, Silent
from .resolve import ensure, locate

__all__ = [
    "Device",
    "GgmlInstall",
    "Options",
    "Progress",
    "Silent",
    "cache_dir",
    "devices",
    "ensure",
    "headers",
    "locate",
]
