"""The store: conversations, their heads, summary chunks and leases, in SQLite or PostgreSQL. All SQL is here."""

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
from app.store.lease import Busy, Lease
from app.store.pages import Order, Page

__all__ = [
    "AccessRefused",
    "Busy",
    "Check",
    "Conversation",
    "ConversationSeen",
    "DatabaseURLError",
    "DatabaseUnusable",
    "Lease",
    "MigrationFailed",
    "Order",
    "Page",
    "SchemaTooNew",
    "StatementRefused",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "UnknownCursor",
]
