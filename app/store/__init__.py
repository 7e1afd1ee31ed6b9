"""The store: conversations, chunks, leases, calibrations, usage and more, in SQLite or PostgreSQL. All SQL is here."""

from app.store.calibration_rows import CalibrationKey, StoredCalibration
from app.store.conversation_lists import ConversationList, ListedConversation, Sorting, Wanted
from app.store.conversation_rows import ConversationSeen, Pulse, StoredConversation
from app.store.errors import (
    AccessRefused,
    DatabaseUnusable,
    DatabaseURLError,
    MigrationFailed,
    SchemaTooNew,
    SchemaTooOld,
    StatementRefused,
    StoreError,
    StoreUnavailable,
    UnknownCursor,
    WrongSecret,
)
from app.store.facade import Check, Store
from app.store.histories import LatestHistory, StoredHistory, StoredMessage
from app.store.learned_windows import LearnedWindow
from app.store.lease import Busy, Lease
from app.store.pages import Order, Page, Paging
from app.store.pins import Pin
from app.store.tenant_rows import SeenTenant
from app.store.usage_records import StoredUsage, TurnUsage, UsagePage, UsageRecord
from app.store.usage_reports import DayUsage, Grouping, UsageGroup, UsageOverview, UsageReport, UsageSum, UsageSums
