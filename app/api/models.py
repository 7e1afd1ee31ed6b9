"""REST routes of models: context windows with their sources, and calibrations of token counts."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from app.api.dependencies import Tenant, TheServices, made_of
from app.api.paging import Listing, NewestFirst, OldestFirst, listing, page_of
from app.providers.providers import Provider
from app.proxy.exchange import Services
from app.store import StoredCalibration, StoreUnavailable
from app.store.calibrations import read_models_used, read_own_calibrations


class ModelOut(BaseModel):
    id: str
    object: Literal["model_window"] = "model_window"
    upstream: str = Field(description="The upstream's name in the settings.")
    context_window: int = Field(description="Tokens, prompt and completion together.")
    max_input_tokens: int | None = Field(description="Maximum tokens of a prompt, if the window allows more.")
    max_output_tokens: int | None = Field(description="Maximum tokens of an answer.")
    source: Literal["config", "provider", "learnt", "bundled", "default"]
    note: str | None = Field(description="Remark on the window.")
    base_model: str = Field(description="Model with the same tokenizer and window.")
    listed: bool = Field(description="Whether the provider lists it.")


class CalibrationOut(BaseModel):
    id: str
    object: Literal["calibration"] = "calibration"
    upstream: str
    model: str
    formula: str = Field(description="Formula that the estimates were counted with.")
    tools: bool = Field(description="Whether it holds for requests with tools or for those without.")
    ratio: float = Field(description="Tokens the provider counts for one that is estimated.")
    offset: float = Field(description="Tokens the provider counts in every prompt beside those.")
    samples: int = Field(description="Answered requests it was learnt from.")
    source: Literal["prior", "learnt"] = Field(description="prior: the usual values of the model's family.")
    note: str | None = Field(description="Reason why the operator should look at it.")
    updated_at: datetime


router = APIRouter(prefix="/context", tags=["models"])


@router.get("/calibration")
async def list_calibrations(services: TheServices, tenant: Tenant, paging: NewestFirst) -> Listing[CalibrationOut]:
    """How the caller's estimates become the provider's tokens, for the models its requests taught; newest first."""
    await services.providers.calibrations.flush()
    found = await services.store.rest(read_own_calibrations, tenant, paging)
    return listing(found, _calibration)


def _calibration(stored: StoredCalibration) -> CalibrationOut:
    calibration = stored.calibration
    return made_of(
        CalibrationOut,
        stored.key,
        ratio=round(calibration.line.ratio, 4),
        offset=round(calibration.line.offset, 1),
        samples=calibration.samples,
        source="learnt" if calibration.samples else "prior",
        note=calibration.note,
        updated_at=stored.updated_at,
    )


@router.get("/models")
async def list_models(services: TheServices, tenant: Tenant, paging: OldestFirst) -> Listing[ModelOut]:
    """The windows Steno assumes, and where each is from: of models that the provider lists, that the settings name, and
    that the caller used; by name. A model that several upstreams list is there once for each, and counts once."""
    used: list[str] = []
    with suppress(StoreUnavailable):  # Models in memory are still shown.
        used = await services.store.rest(read_models_used, tenant)
    providers = services.providers.known(tenant, used)
    page = page_of({name: name for name in providers}, paging, paging.after)
    return made_of(
        Listing[ModelOut],
        page,
        data=[_model(services, provider, name, tenant) for name in page.data for provider in providers[name]],
    )


def _model(services: Services, provider: Provider, name: str, tenant: str) -> ModelOut:
    window = provider.windows.window_of(name, tenant)
    return made_of(
        ModelOut,
        window,
        id=name,
        upstream=provider.name,
        context_window=window.context,
        max_input_tokens=window.max_input,
        max_output_tokens=window.max_output,
        base_model=services.base_model(name),
        listed=name in provider.windows.listings.open_names,
    )
