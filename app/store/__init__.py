"""The store: conversations, chunks, leases, calibrations, usage and more, in SQLite or PostgreSQL. All SQL is here."""

from app.store.calibrations import CalibrationKey, StoredCalibration
from app.store.conversations import ConversationSeen, Pin, StoredConversation, Wanted
from app.store.engine import (
    DatabaseUnusable,
    DatabaseURLError,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    UnknownCursor,
)
from app.store.histories import LatestHistory, StoredHistory, StoredMessage
from app.store.leases import Claim, Lease
from app.store.store import Store
from app.store.tables import Page, Paging
from app.store.usage import StoredUsage, UsagePage, UsageRecord, UsageReport, UsageSum, UsageSums
