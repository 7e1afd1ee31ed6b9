"""REST over calibrations: how estimates become the provider's tokens."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.proxy.services import Services
from app.rest.dependencies import Listing, NewestFirst, Tenant, TheServices, listing, made_of
from app.store import StoredCalibration
from app.store.calibration_rows import read_own_calibrations


class CalibrationOut(BaseModel):
    id: str
    object: Literal["calibration"] = "calibration"
    upstream: str
    model: str
    formula: str = Field(description="What the estimates were counted with.")
    tools: bool = Field(description="Whether it holds for requests with tools or for those without.")
    ratio: float = Field(description="Tokens the provider counts for one that is estimated.")
    offset: float = Field(description="Tokens the provider counts in every prompt beside those.")
    samples: int = Field(description="Answered requests it was learnt from.")
    source: Literal["prior", "learnt"] = Field(description="prior: what is expected of the model's family.")
    note: str | None = Field(description="Why somebody should look at it.")
    updated_at: datetime


router = APIRouter(prefix="/context", tags=["models"])


@router.get("/calibration")
async def list_calibrations(services: TheServices, tenant: Tenant, paging: NewestFirst) -> Listing[CalibrationOut]:
    """How the caller's estimates become the provider's tokens, for the models its requests taught; newest first."""
    await services.providers.flush()
    found = await services.store.rest(read_own_calibrations, tenant, paging)
    return listing(found, partial(_calibration, services))


def _calibration(services: Services, stored: StoredCalibration) -> CalibrationOut:
    key, calibration = stored.key, services.providers.in_force(stored)
    return made_of(
        CalibrationOut,
        key,
        ratio=round(calibration.ratio, 4),
        offset=round(calibration.offset, 1),
        samples=calibration.samples,
        source="learnt" if calibration.samples else "prior",
        note=calibration.note,
        updated_at=stored.updated_at,
    )
