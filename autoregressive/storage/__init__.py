"""Store models as programs that run without the code that defined the network."""

from autoregressive.storage.load import load
from autoregressive.storage.save import save

__all__ = ["load", "save"]
