"""The store: conversations, heads, summary chunks, leases, calibrations, in SQLite or PostgreSQL. All SQL is here."""

from app.store.calibrations import CalibrationKey, StoredCalibration
from app.store.conversations import Conversation, ConversationSeen
from app.store.errors import (
    AccessRefused,
    DatabaseUnusable,
    DatabaseURLError,
    MigrationFailed,
    SchemaTooNew,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    UnknownCursor,
)
from app.store.facade import Check, Store
from app.store.learned_windows import LearnedWindow
from app.store.lease import Busy, Lease
from app.store.pages import Order, Page

__all__ = [
    "AccessRefused",
    "Busy",
    "CalibrationKey",
    "Check",
    "Conversation",
    "ConversationSeen",
    "DatabaseURLError",
    "DatabaseUnusable",
    "LearnedWindow",
    "Lease",
    "MigrationFailed",
    "Order",
    "Page",
    "SchemaTooNew",
    "StatementRefused",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "StoredCalibration",
    "UnknownCursor",
]
