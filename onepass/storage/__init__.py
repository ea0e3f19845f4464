"""Store models as programs that run without the code that defined the network."""

from onepass.storage.load import load
from onepass.storage.save import save

__all__ = ["load", "save"]
