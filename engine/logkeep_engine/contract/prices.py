"""The prices of an object store, as a user writes them in a small file. No price has a default."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from logkeep_engine.contract.model import Model

Price = Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)]
Word = Annotated[str, Field(strict=True, min_length=1, max_length=40)]


class RequestPrices(Model):
    """Prices of 1000 requests. `put` is also that of each part of an upload, of its beginning and of its end; `get`
    that of HEAD."""

    put: Price
    get: Price
    list: Price
    delete: Price


class Prices(Model):
    """Prices in one currency, whose name is any word. `egress_per_gib` is for bytes that leave the store."""

    currency: Word
    storage_class: Word
    storage_per_gib_month: Price = Field(alias="storagePerGiBMonth")
    requests_per_1000: RequestPrices = Field(alias="requestsPer1000")
    egress_per_gib: Price = Field(alias="egressPerGiB")
