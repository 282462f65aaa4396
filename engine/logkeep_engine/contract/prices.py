"""The prices of an object store, as a user writes them in a small file or in a KafkaArchive. No price has a default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model
from logkeep_engine.contract.visible import visible

GIB = 1 << 30
Price = Annotated[float, Field(strict=True, ge=0, le=1_000_000_000, allow_inf_nan=False)]
Word = Annotated[str, Field(strict=True, min_length=1, max_length=40)]


class RequestPrices(Model):
    """Prices of 1000 requests. `put` is also that of each part of an upload, of its beginning and of its end; `get`
    that of HEAD."""

    put: Price
    """1000 requests that write: an object, or the beginning, a part or the end of an upload."""
    get: Price
    """1000 requests that read an object, a part of one, or what is known of it (HEAD)."""
    list: Price
    """1000 requests that list objects."""
    delete: Price
    """1000 requests that delete, each of up to 1000 objects."""


class Prices(Model):
    """Prices in one currency, whose name is any word. `egress_per_gib` is for bytes that leave the store."""

    currency: Word
    """Name of the currency, in any words."""
    storage_class: Word
    """Name of the storage class, in any words."""
    storage_per_gib_month: Price = Field(alias="storagePerGiBMonth")
    """Price of storing a GiB for a month."""
    requests_per_1000: RequestPrices = Field(alias="requestsPer1000")
    """Prices of requests."""
    egress_per_gib: Price = Field(alias="egressPerGiB")
    """Price of a GiB that leaves the store; 0 if the engines run where it is."""

    def month(self, size: int) -> float:
        """Return the price of storing this many bytes for a month."""
        return size / GIB * self.storage_per_gib_month


def price_text(price: float, currency: str) -> str:
    """12.30 USD: with two digits after the point, or more of a small number, since that is not nothing."""
    currency = visible(currency)  # a line break in it would begin a line of its own
    if price >= 0.1 or price == 0:
        return f"{price:,.2f} {currency}"
    return f"{price:.2g} {currency}" if price >= 0.0001 else f"below 0.0001 {currency}"
