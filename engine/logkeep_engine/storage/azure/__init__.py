"""A storage in a container of Azure Blob Storage."""

from logkeep_engine.storage.azure.storage import AzureStorage

__all__ = ["AzureStorage"]
