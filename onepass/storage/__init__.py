"""Store models as programs that run without the code that defined the network."""

from onepass.storage.models import load, save

__all__ = ["load", "save"]
